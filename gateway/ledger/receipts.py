"""What became of a call, to be asked afterwards by its request id: the last calls of this process, and what to share.

Receipts are for people who wonder about one call. They are best effort: bounded, dropped when old, never a reason to wait.
Records of calls are soon written down as JSON, many at once, and let go: ten thousand of them lie in memory that no cache
holds, and making and dropping one there took every call an eighth of its CPU.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.record import Finished

KEPT: Final = 4096  # calls; about 1 KB each
KEPT_ALONE: Final = 10_000  # where no Store has them too
RECENT: Final = 64  # calls of which the whole record is at hand
_TOGETHER: Final = 64  # calls that are written down at once
_ENCODE: Final = msgspec.json.Encoder().encode


class Receipts:
    """A ring of the last finished calls, and a queue of those that other processes cannot see yet."""

    __slots__ = ("_count", "_fresh", "_kept", "_recent", "_shared", "_unshared", "_written")

    def __init__(self, kept: int | None = None, *, shared: bool = True) -> None:
        """Begin with none, to keep so many calls and a few more; `shared` tells whether a Store is to have them too."""
        self._kept = kept or (KEPT if shared else KEPT_ALONE)
        self._shared = shared
        self._recent: deque[Finished] = deque(maxlen=min(RECENT, self._kept))
        self._fresh: list[Finished] = []  # not written down yet
        self._written: deque[tuple[int, bytes]] = deque()  # how many, and a line break and JSON of each; oldest first
        self._count = 0  # of those
        self._unshared: deque[tuple[str, bytes]] = deque(maxlen=self._kept)

    def __repr__(self) -> str:
        return f"<Receipts {self._count + len(self._fresh)}/{self._kept}, {len(self._unshared)} to share>"

    def append(self, call: Finished) -> None:
        """Keep a finished call; of several with the same request id the last one is told."""
        self._recent.append(call)
        self._fresh.append(call)
        if len(self._fresh) >= _TOGETHER:
            self._write_down()

    def get(self, request_id: str) -> dict[str, Any] | None:
        """Return the receipt of a call that this process served, as JSON types, or None."""
        for call in reversed(self._fresh):
            if call.request_id == request_id:
                return decode(encode(call))
        mark = b'\n{"request_id":%b,' % _ENCODE(request_id)
        for _, lines in reversed(self._written):
            if (at := lines.rfind(mark)) >= 0:
                return decode(lines[at + 1 :].partition(b"\n")[0])
        return None

    def last(self, count: int) -> list[Finished]:
        """Return up to `count` of the calls that this process served last, newest first; at most RECENT."""
        return list(reversed(self._recent))[:count]

    def unshared(self, count: int) -> dict[str, bytes]:
        """Take up to `count` receipts that the Store has not been given yet, oldest first, by request id."""
        self._write_down()
        return dict(self._unshared.popleft() for _ in range(min(count, len(self._unshared))))

    def _write_down(self) -> None:
        calls, self._fresh = self._fresh, []
        if not calls:
            return
        lines = [encode(call) for call in calls]
        self._written.append((len(lines), b"\n" + b"\n".join(lines)))
        self._count += len(lines)
        while self._count - self._written[0][0] >= self._kept:
            self._count -= self._written.popleft()[0]
        if self._shared:
            self._unshared.extend((call.request_id, line) for call, line in zip(calls, lines, strict=True))


def encode(call: Finished) -> bytes:
    """Return a receipt as the Store keeps it. What was said in a call is not in its receipt."""
    return _ENCODE(replace(call, prompt="") if call.prompt else call)


def decode(receipt: bytes) -> dict[str, Any]:
    """Return a receipt that was written down, as JSON types."""
    return msgspec.json.decode(receipt, type=dict[str, Any])
