"""One timer for all that may come too late: whoever waits for something is looked in on twenty times a second.

A timer for each limit of each call costs a fiftieth of a call's CPU, and hardly one of them ever goes off.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

EVERY_SECONDS = 0.05  # by so much a limit may be passed
_log = logging.getLogger(__name__)


class Waiting(Protocol):
    """Somebody who waits: `look_at` is the loop time before which there is nothing to see."""

    look_at: float

    def look(self, now: float) -> None:
        """See whether it has waited too long, at this loop time."""


class Rounds:
    """Looks in on those who wait, as long as there are any."""

    __slots__ = ("_loop", "_timer", "_waiting")

    def __init__(self) -> None:
        self._waiting: set[Waiting] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Rounds of {len(self._waiting)}>"

    def add(self, loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        """Look in on `waiting` until it is discarded."""
        if self._loop is not loop:  # in a loop that has ended nobody waits any more
            self._loop, self._waiting, self._timer = loop, set(), None
        self._waiting.add(waiting)
        if self._timer is None:
            self._timer = loop.call_later(EVERY_SECONDS, self._look_in, loop)

    def discard(self, waiting: Waiting) -> None:
        """What was waited for has come; nothing happens if nobody waited."""
        self._waiting.discard(waiting)

    def _look_in(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for each in [each for each in self._waiting if now >= each.look_at]:
            if each in self._waiting:  # still, as one look may end another's wait
                try:
                    each.look(now)
                except Exception:  # noqa: BLE001 - the others wait all the same
                    _log.exception("%r could not be looked in on", each)
        self._timer = loop.call_later(EVERY_SECONDS, self._look_in, loop) if self._waiting else None


ROUNDS = Rounds()  # of this process, whose event loop is one
