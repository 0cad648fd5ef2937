"""Reading the engines' /metrics every few seconds: load that other gateways cause, and a cross-check of what calls show.

Gentle on purpose: engines have hung under eager scraping. Every replica has its own clock with jitter; one that fails is
asked less and less often. How old its last reading is, is published and never hidden.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway import figures
from gateway.control import Control
from gateway.figures import Figures, Interval
from gateway.loop import Loop
from gateway.pools import Pool, Pools, Replica
from gateway.reply import Broken

INTERVAL_SECONDS = 8.0
TIMEOUT_SECONDS = 3.0
LONGEST_INTERVAL_SECONDS = 60.0
STALE_SECONDS = 60.0  # after seven missed readings a figure is history
KEPT_INTERVALS = 15  # two minutes of them: what the estimates of a pool speak of
LARGEST_PAGE = 4 * 1024 * 1024


@dataclass(slots=True)
class Readings:
    """What one replica has shown."""

    last: Figures | None = None
    failures: int = 0
    due_at: float = 0.0
    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=KEPT_INTERVALS))
    restarts: int = 0

    def age(self, now: float) -> float | None:
        """Seconds since the last good reading; None when there was none."""
        return None if self.last is None else now - self.last.at

    def gauge(self, key: str, now: float) -> float | None:
        """A gauge of the last reading, unless that is stale."""
        if self.last is None or now - self.last.at > STALE_SECONDS:
            return None
        return self.last.values.get(key)


class Scrape(Loop):
    """Scrapes every replica until stopped; replicas that a reload brings are picked up by themselves."""

    def __init__(
        self,
        pools: Pools,
        control: Control,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(self._again)
        self._pools = pools
        self._control = control
        self._interval = interval_seconds
        self._clock = clock
        self._chance = chance
        self._readings: dict[str, Readings] = {}

    def of(self, replica: Replica) -> Readings:
        """Return what a replica has shown."""
        return self._readings.setdefault(replica.url, Readings())

    def recent(self, pool: Pool) -> Interval:
        """Return what a pool's replicas did of late, together."""
        total = Interval()
        for replica in pool.replicas:
            for interval in self.of(replica).intervals:
                total += interval
        return total

    async def scrape_due(self) -> None:
        """Read every replica whose time has come, side by side."""
        now = self._clock()
        due = [(pool, replica) for pool, replica in self._all() if self.of(replica).due_at <= now]
        await asyncio.gather(*(self._read(pool, replica) for pool, replica in due))

    async def freshen(self, seconds: float) -> None:
        """Read every replica whose figures are older than this, but for those that fail: they are left to their turn."""
        now = self._clock()
        well = [(pool, replica) for pool, replica in self._all() if not self.of(replica).failures]
        old = [(pool, replica) for pool, replica in well if (self.of(replica).age(now) or math.inf) > seconds]
        await asyncio.gather(*(self._read(pool, replica) for pool, replica in old))

    def _all(self) -> list[tuple[Pool, Replica]]:
        return [(pool, replica) for pool in self._pools for replica in pool.replicas]

    async def _again(self) -> float:
        await self.scrape_due()
        return min(1.0, self._interval / 4)

    async def _read(self, pool: Pool, replica: Replica) -> None:
        readings = self.of(replica)
        try:
            page = _page(*await self._control.get(pool, replica, "/metrics", TIMEOUT_SECONDS))
            found = figures.read(page, self._clock())
        except (TimeoutError, Broken, ValueError):
            readings.failures += 1
            replica.others = 0  # what is not known is not counted
        else:
            readings.failures = 0
            self._take(readings, found)
            waiting = found.values.get("waiting", 0.0)
            replica.others = max(0, round(found.values.get("running", 0.0) + waiting) - replica.running)
        wait = min(self._interval * 2**readings.failures, LONGEST_INTERVAL_SECONDS)
        readings.due_at = self._clock() + wait * (0.75 + 0.5 * self._chance())

    def _take(self, readings: Readings, found: Figures) -> None:
        if readings.last is not None:
            interval = figures.between(readings.last, found)
            if interval is None:
                readings.restarts += 1
                readings.intervals.clear()
            else:
                readings.intervals.append(interval)
        readings.last = found


def _page(status: int, body: bytes) -> str:
    """Return the text of an answer; raises ValueError where that is none of a page's."""
    if not 200 <= status < 300:
        raise ValueError(f"status {status}")
    return body[:LARGEST_PAGE].decode(errors="replace")
