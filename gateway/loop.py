"""Work that goes on beside the calls: one step after another until it is stopped, whatever a step comes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

PAUSE_SECONDS = 1.0  # after a step that failed
_log = logging.getLogger(__name__)


class Loop:
    """Runs `step` in a task of its own; a step returns the seconds until the next one.

    A step that raises is logged and the loop goes on: a guard or a health check that has silently ended would be worse than
    the defect that ended it.
    """

    def __init__(self, step: Callable[[], Awaitable[float]], *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._step = step
        self._pause = pause_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, in the middle of a step if need be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                pause = await self._step()
            except Exception:  # noqa: BLE001 - see above
                _log.exception("%s failed; it goes on", getattr(self._step, "__qualname__", self._step))
                pause = self._pause
            await asyncio.sleep(pause)
