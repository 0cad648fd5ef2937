"""A count over the last minute, in slots of one second: at most `limit` within any 60 seconds, whenever they begin.

A token bucket would let twice its limit through in the first minute. The price of slots is that an amount counts for up
to one second longer than a minute. Time is an argument, and a clock that jumps back neither frees nor blocks anything.
"""

from __future__ import annotations

import math
from typing import Final

# Sixty whole seconds and the one under way: all of the last 60 seconds lies in one of them.
SLOTS: Final = 61
# Callers read the clock at slightly different moments; only more than this is a jump.
_JITTER: Final = 1.0


class Window:
    """A limit per minute and what was used of it."""

    __slots__ = ("_head", "_shift", "_slots", "_time", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: float = 0
        self._slots: list[float] = [0] * SLOTS
        self._time = -math.inf  # of the last look, on a clock that never goes back
        self._shift = 0.0  # from the caller's clock to that one
        self._head = 0  # the second that the newest slot stands for

    @property
    def remaining(self) -> float:
        """What is left until something expires; never below zero."""
        return max(0, self.limit - self.used)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left until something expires."""
        return self.used >= self.limit

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` fits, 0 if it does; more than the limit counts as the whole limit."""
        self._advance(now)
        excess = self.used + min(amount, self.limit) - self.limit
        if excess <= 0:
            return 0.0
        second = self._head - SLOTS
        while excess > 0:
            second += 1
            excess -= self._slots[second % SLOTS]
        return second + SLOTS - self._time

    def take(self, amount: float, now: float) -> int:
        """Count an amount as used now, whether it fits or not, and return the second it lies in."""
        self._advance(now)
        self._add(amount, self._head)
        return self._head

    def correct(self, second: int, by: float, now: float | None = None) -> None:
        """Count more as used now, or give back what was taken in `second` unless that has expired."""
        if now is not None:
            self._advance(now)
        if by > 0:
            self._add(by, self._head)
        elif second > self._head - SLOTS:
            self._add(-min(-by, self._slots[second % SLOTS]), second)

    def full_again_in(self) -> float:
        """Return the seconds until nothing counts any more, seen from the last look."""
        seconds = range(self._head, self._head - SLOTS, -1)
        newest = next((second for second in seconds if self._slots[second % SLOTS]), None)
        return 0.0 if newest is None else newest + SLOTS - self._time

    def _add(self, amount: float, second: int) -> None:
        self._slots[second % SLOTS] += amount
        self.used += amount

    def _advance(self, now: float) -> None:
        """Move to `now` and let expire what is older than the window."""
        time = now + self._shift
        if self._time - time > _JITTER:
            self._shift += self._time - time
        self._time = max(self._time, time)
        head = math.floor(self._time)
        if head == self._head:
            return
        for second in range(max(self._head, head - SLOTS) + 1, head + 1):
            self.used -= self._slots[second % SLOTS]
            self._slots[second % SLOTS] = 0
        self._head = head

    def __repr__(self) -> str:
        return f"<Window {self.used}/{self.limit}>"
