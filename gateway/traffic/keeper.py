"""Takes in what finished calls showed and brings it to the disk beside the calls. Off the calls' path but for one append.

The buffer is bounded. What does not fit, what a disk refuses for too long and what a bound on the disk removes is counted,
never dropped silently. What waits in memory, a second's worth, is lost with a process that is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.loop import Loop
from gateway.traffic.files import Files
from gateway.traffic.lines import TEXT_BYTES, line_of, observed

if TYPE_CHECKING:
    from classifier.scorer import Scorer, View
    from gateway.config import Classifier
    from gateway.pools import Pools
    from gateway.record import Finished
    from gateway.traffic.lines import Observed, Privacy
    from gateway.wire import Call

Observer = Callable[["Finished", "Call"], None]
DROPPED: Final = ("buffer", "expired")  # why an observation was not kept, or no longer is
FLUSH_SECONDS: Final = 1.0
EXPIRE_SECONDS: Final = 60.0
MOST_WAITING: Final = 4096  # observations
MOST_BYTES: Final = 32 << 20  # that they hold on to
_AT_ONCE: Final = 8  # observations whose features are computed before calls go on: a millisecond
_VIEW_BYTES: Final = 8192  # that the clipped texts of a request take, about
_log = logging.getLogger(__name__)


class Keeper:
    """An `Observer` of finished calls. Build it in the process that serves, and start it on its loop.

    Args:
        settings: what is kept, where and for how long.
        pools, scorer: those that the calls met.
        origin: a name that no other process has.
        writers: processes that keep together.
        kept: hears how many observations were written.
        dropped: hears how many were not, or are no longer there, and why.
        trouble: hears what is wrong with the disk, None when it is well again.
    """

    def __init__(
        self,
        settings: Classifier,
        pools: Pools,
        scorer: Scorer,
        *,
        origin: str,
        writers: int = 1,
        kept: Callable[[int], None] = lambda _: None,
        dropped: Callable[[str, int], None] = lambda _reason, _count: None,
        trouble: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        assert settings.observations != "off"
        self._privacy: Privacy = settings.observations
        self._pools = pools
        self._scorer = scorer
        self._kept, self._dropped, self._trouble = kept, dropped, trouble
        self._files = Files(
            Path(settings.observations_path),
            origin,
            most_bytes=settings.observations_bytes,
            seconds=settings.observations_days * 86_400,
            writers=writers,
        )
        self._waiting: deque[tuple[Observed, bytes, View]] = deque()
        self._lines: list[bytes] = []
        self._bytes = 0  # that both hold on to
        self._writing: asyncio.Task[None] | None = None
        self._failing = False
        self._expire_at = 0.0
        self._loop = Loop(self._step)

    def __repr__(self) -> str:
        return f"<Keeper {self._privacy} {len(self._waiting) + len(self._lines)} waiting, {self._files!r}>"

    def __call__(self, finished: Finished, call: Call) -> None:
        """Take in what a finished call showed, if anything; never waits."""
        if finished.pool not in self._pools:
            return
        seen = observed(finished, self._pools[finished.pool])
        if seen is None:
            return
        body = call.body if self._privacy == "text" and len(call.body) <= TEXT_BYTES else b""
        size = len(body) + _VIEW_BYTES
        if len(self._waiting) + len(self._lines) >= MOST_WAITING or self._bytes + size > MOST_BYTES:
            self._dropped("buffer", 1)
            return
        self._bytes += size
        self._waiting.append((seen, body, call.view))

    def start(self) -> None:
        """Begin to write."""
        self._loop.start()

    async def stop(self) -> None:
        """Write what waits, and end."""
        await self._loop.stop()
        await self.flush()  # of a write that was under way
        await self.flush()
        if self._lines:
            self._dropped("buffer", len(self._lines))
        self._files.close()

    async def flush(self) -> None:
        """Write what waits now; calls go on in between. Whoever is cancelled meanwhile does not tear a write."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._writing)

    async def _write(self) -> None:
        try:
            while self._waiting:
                self._encode()
                await asyncio.sleep(0)
            lines = list(self._lines)
            if lines:
                await asyncio.to_thread(self._files.append, b"".join(lines))
                del self._lines[: len(lines)]
                self._bytes -= sum(map(len, lines))
                self._kept(len(lines))
                self._tell(None)
        except OSError as wrong:
            self._tell(str(wrong))
        finally:
            self._writing = None

    def _encode(self) -> None:
        """Turn a few observations into lines: that is as long as calls may have to wait."""
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            seen, body, view = self._waiting.popleft()
            line = line_of(seen, body, view, self._scorer)
            self._lines.append(line)
            self._bytes += len(line) - len(body) - _VIEW_BYTES

    async def expire(self) -> None:
        """Remove what is too old or too much."""
        gone = await asyncio.to_thread(self._files.expire, time.time())
        if gone:
            self._dropped("expired", gone)

    async def _step(self) -> float:
        await self.flush()
        if time.monotonic() >= self._expire_at:
            self._expire_at = time.monotonic() + EXPIRE_SECONDS
            await self.expire()
        return FLUSH_SECONDS

    def _tell(self, wrong: str | None) -> None:
        """Log and report when the disk's condition changes."""
        if (wrong is not None) != self._failing:
            self._failing = wrong is not None
            _log.error("observations cannot be written: %s", wrong) if wrong else _log.warning(
                "observations are written"
            )
        self._trouble(wrong)
