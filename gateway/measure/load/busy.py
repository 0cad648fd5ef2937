"""Whether the sender keeps up: how late its event loop runs, and how much of a core it uses.

Every measured time is taken by the same loop that reads all streams. A loop that is late makes the endpoint look slow, so
a run says how late it was: each turn that comes later than it should is a time that was measured too long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

import numpy as np

_EVERY: Final = 0.02  # seconds between looks
_KEPT: Final = 100_000  # looks: the last half an hour
LATE: Final = 0.010  # seconds, at p99, from which times are not to be trusted to the millisecond
BUSY: Final = 0.8  # of a core, from which queues form inside of the sender


class Busy:
    """Watches its event loop inside an `async with` block."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._began = (0.0, 0.0)
        self._ended: tuple[float, float] | None = None

    async def __aenter__(self) -> Self:
        self._began = (time.perf_counter(), time.thread_time())
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = (time.perf_counter(), time.thread_time())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_EVERY)
            self._lags.append(max(time.perf_counter() - before - _EVERY, 0.0))

    @property
    def share(self) -> float:
        """Of a core, used by this thread."""
        wall, used = self._ended or (time.perf_counter(), time.thread_time())
        return (used - self._began[1]) / max(wall - self._began[0], 1e-9)

    @property
    def late(self) -> float:
        """Seconds by which the loop was late, at p99."""
        return float(np.quantile(self._lags, 0.99)) if self._lags else 0.0

    @property
    def warning(self) -> str | None:
        """What to know of the times that were measured, if the sender did not keep up."""
        if self.late < LATE and self.share < BUSY:
            return None
        return (
            f"the sender itself was busy ({self.share:.0%} of a core, its loop {1000 * self.late:.0f} ms late at p99): single "
            "times may be too long by as much; send less at once, share the trace among several senders, or use an idle machine"
        )
