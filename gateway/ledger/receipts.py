"""What became of a call, to be asked afterwards by its request id: the last calls of this process, and what to share.

Receipts are for people who wonder about one call. They are best effort: bounded, dropped when old, never a reason to wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.record import Finished

KEPT: Final = 4096  # calls; about 2 KB each
KEPT_ALONE: Final = 10_000  # where no Store has them too
_ENCODE: Final = msgspec.json.Encoder().encode


class Receipts:
    """A ring of the last finished calls, and a queue of those that other processes cannot see yet."""

    __slots__ = ("_calls", "_kept", "_unshared")

    def __init__(self, kept: int | None = None, *, shared: bool = True) -> None:
        """Begin with none, to keep so many calls; `shared` tells whether a Store is to have them too."""
        self._kept = kept or (KEPT if shared else KEPT_ALONE)
        self._calls: OrderedDict[str, Finished] = OrderedDict()  # a dict would search for its oldest
        self._unshared: deque[Finished] = deque(maxlen=self._kept if shared else 0)

    def __repr__(self) -> str:
        return f"<Receipts {len(self._calls)}/{self._kept}, {len(self._unshared)} to share>"

    def append(self, call: Finished) -> None:
        """Keep a finished call; one that had the same request id is replaced."""
        self._calls.pop(call.request_id, None)
        self._calls[call.request_id] = call
        if len(self._calls) > self._kept:
            self._calls.popitem(last=False)
        self._unshared.append(call)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """Return the receipt of a call that this process served, as JSON types, or None."""
        call = self._calls.get(request_id)
        return None if call is None else decode(encode((call,))[request_id])

    def last(self, count: int) -> list[Finished]:
        """Return up to `count` of the calls that this process served last, newest first."""
        return list(islice(reversed(self._calls.values()), count))

    def unshared(self, count: int) -> list[Finished]:
        """Take up to `count` calls that the Store has not been given yet, oldest first."""
        return [self._unshared.popleft() for _ in range(min(count, len(self._unshared)))]


def encode(calls: Iterable[Finished]) -> dict[str, bytes]:
    """Return receipts as the Store keeps them, by request id. What was said in a call is not in its receipt."""
    return {call.request_id: _ENCODE(replace(call, prompt="") if call.prompt else call) for call in calls}


def decode(receipt: bytes) -> dict[str, Any]:
    """Return a receipt that the Store kept, as JSON types."""
    return msgspec.json.decode(receipt, type=dict[str, Any])
