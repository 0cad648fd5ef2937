"""Limits that many processes keep together, without asking anyone on a request's path.

Each process leases a part of a limit from the Store ahead of its use, spends it locally, and gives back what it does not
need. What is leased never exceeds the limit, so what is admitted exceeds it only by what calls use beyond their estimates
and by one call per process; what lies unused in leases shrinks as the limit comes near. Together: within 5 %.

Time is Unix seconds, as the windows are everyone's; it is an argument everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from gateway.store.contract import Store, StoreError
from gateway.store.places import Places

_log: Final = logging.getLogger("draftlane.allotments")

REFRESH_SECONDS: Final = 0.25
_HASTE_SECONDS: Final = 0.05  # after which hunger may have a lease refreshed again, so that is when to come back
# Leased though nothing was asked for lately, so that the first call need not wait: shares of the limit, of what is left.
_FLOOR: Final = 0.05
_FLOOR_OF_REST: Final = 0.05
_ADVANCE: Final = 0.01  # share of the limit that may be spent before the Store has been asked
_AHEAD: Final = 2.0  # refreshes that a lease should last
_GRACE_SECONDS: Final = 120.0  # a counter outlives its window, for clocks that lag

# Returns the name of the window that a time lies in, and when it ends.
Window = Callable[[float], tuple[str, float]]


def every(seconds: int) -> Window:
    """Return windows of a fixed length, such as minutes or, by 86,400, UTC days."""

    def window(now: float) -> tuple[str, float]:
        number = math.floor(now / seconds)
        return f"{seconds}s-{number}", (number + 1.0) * seconds

    return window


def monthly(now: float) -> tuple[str, float]:
    """Return the calendar month, UTC, that a time lies in, and when it ends."""
    at = datetime.fromtimestamp(now, UTC)
    end = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return f"{at.year}-{at.month:02d}", end.timestamp()


class Allotment:
    """This process's part of one limit."""

    __slots__ = (
        "_asked_at",
        "_end",
        "_fallback",
        "_hungry",
        "_leased",
        "_next",
        "_rate",
        "_spent",
        "_wanted",
        "_window",
        "key",
        "limit",
        "name",
        "used",
    )

    def __init__(self, key: str, limit: float, window: Window, hungry: Callable[[], None] = lambda: None) -> None:
        self.key = key
        self.limit = limit
        self.used: float | None = None  # by all processes in this window, leases included; None: not known yet
        self.name = ""  # of the window
        self._window = window
        self._hungry = hungry
        self._end = -math.inf
        self._leased = self._spent = 0.0
        self._next: tuple[str, float] = ("", 0.0)  # leased for the coming window
        self._wanted = 0.0  # since the last refresh
        self._rate = 0.0  # wanted per second
        self._fallback = 0.0  # what this process spent in the last window
        self._asked_at = -math.inf

    def __repr__(self) -> str:
        return f"<Allotment {self.key} {self._spent:.6g} of {self._leased:.6g} leased of {self.limit:.6g}>"

    def wait(self, amount: float, now: float) -> float:
        """Return 0.0 if a call may spend now, else after how many seconds to try again; what was wanted is leased sooner."""
        if now >= self._end:
            self._turn(now)
        if self._spent < self._credit():
            return 0.0
        self._wanted += amount
        if self.exhausted:
            return max(self._end - now, 0.001)
        self._hungry()
        return _HASTE_SECONDS

    def spend(self, amount: float, now: float) -> None:
        """Spend an estimate, whether there is enough or not: what is too much is owed to the next lease."""
        if now >= self._end:
            self._turn(now)
        self._wanted += amount
        self._spent += amount

    def take(self, amount: float, now: float) -> float:
        """Spend an estimate; return 0.0, or after how many seconds to try again. Never waits.

        The last call of a lease may exceed it: what it takes too much is owed to the next lease.
        """
        wait = self.wait(amount, now)
        if not wait:
            self.spend(amount, now)
        return wait

    @property
    def exhausted(self) -> bool:
        """Whether all processes together have leased the whole limit of this window."""
        return self.used is not None and self.used >= self.limit

    @property
    def spent(self) -> float:
        """What was spent of the limit in this window: here, and leased by others, whether they have spent it or not."""
        return min(self.limit, max(0.0, (self.used or 0.0) - self._leased) + self._spent)

    def ends_in(self, now: float) -> float:
        """Return the seconds until the window ends and everything is free again."""
        return max(0.0, self._window(now)[1] - now)

    def settle(self, difference: float, now: float) -> None:
        """Correct an estimate: what a call used beyond it, negative if it used less."""
        if now >= self._end:
            self._turn(now)
        self._spent += difference

    async def refresh(self, store: Store, now: float) -> None:
        """Lease what will be needed, give back what will not; raises StoreError, and then nothing has changed."""
        self._turn(now)  # also into an earlier window, if the clock was set back
        self._measure(now)
        name, target = self.name, self._target()
        lacking = target - (self._leased - self._spent)
        if lacking > 0 or lacking < -target:
            granted, used = await self._lease(store, name, lacking, self._end - now)
            if name == self.name:  # else the window has turned while we waited, and the lease is void with it
                self._leased += granted
                self.used = used
        elif self.used is None:
            self.used = self._leased
        await self._look_ahead(store, now)

    def _credit(self) -> float:
        """Return what may be spent: the lease, or, while the Store has not been heard, what was proven harmless."""
        if self.used is not None:
            return self._leased
        return max(self._leased, _ADVANCE * self.limit, self._fallback)

    def _turn(self, now: float) -> None:
        """Begin the window of `now`, with what was leased for it in advance."""
        name, end = self._window(now)
        if name == self.name:
            return
        coming, leased = self._next
        self._fallback = min(self._spent, self.limit)
        self._leased, self._spent = (leased, 0.0) if coming == name else (0.0, 0.0)
        self.used = self._leased if coming == name else None
        self.name, self._end, self._next = name, end, ("", 0.0)

    def _measure(self, now: float) -> None:
        passed = now - self._asked_at
        if 0 < passed < math.inf:
            self._rate += 0.5 * (self._wanted / passed - self._rate)
        self._asked_at, self._wanted = now, 0.0

    def _target(self) -> float:
        """Return what should lie ready: enough until after the next refresh, and never more than helps."""
        rest = max(0.0, self.limit - (self.used or 0.0))
        floor = min(_FLOOR * self.limit, _FLOOR_OF_REST * rest)
        return min(self.limit, max(floor, _AHEAD * REFRESH_SECONDS * self._rate))

    async def _lease(self, store: Store, name: str, amount: float, rest: float) -> tuple[float, float]:
        grant = await store.lease(f"{self.key}:{name}", amount, limit=self.limit, ttl=rest + _GRACE_SECONDS)
        return grant.granted, grant.used

    async def _look_ahead(self, store: Store, now: float) -> None:
        """Shortly before a window ends, lease for the next one: its first calls come before the next refresh."""
        if self._end - now > 2 * REFRESH_SECONDS or self._next[0]:
            return
        name, end = self._window(self._end)
        granted, _ = await self._lease(store, name, max(self._target(), _FLOOR * self.limit), end - now)
        self._next = (name, granted)


class Allotments:
    """All limits of a process that it keeps with others, and the loop that refreshes their leases."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._allotments: dict[str, Allotment] = {}
        self._places: dict[str, Places] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None  # why limits hold per process only, for now

    def __repr__(self) -> str:
        return f"<Allotments {[*self._allotments.values(), *self._places.values()]!r}>"

    def of(self, key: str, limit: float, window: Window) -> Allotment:
        """Return the part of a limit, such as ("tokens:acme", 100_000, every(60)); a changed limit is taken over."""
        found = self._allotments.get(key)
        if found is None:
            found = self._allotments[key] = Allotment(key, limit, window, self._wake.set)
            self._wake.set()
        found.limit = limit
        return found

    def places(self, key: str, limit: int, running: Callable[[], int]) -> Places:
        """Return the part of a limit of calls at once, of which `running` run here; a changed limit is taken over."""
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Places(key, limit, running, self._wake.set)
            self._wake.set()
        found.limit, found.running = limit, running
        return found

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all limits but these, as after a reload."""
        kept = frozenset(keys)
        self._places = {key: found for key, found in self._places.items() if key in kept}
        self._allotments = {key: found for key, found in self._allotments.items() if key in kept}

    async def start(self) -> None:
        """Lease for the first calls, and begin to refresh."""
        await self.refresh()
        self._task = asyncio.create_task(self._loop(), name="allotments")

    async def stop(self) -> None:
        """End; places are given back, other leases end with their windows."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        with suppress(StoreError):
            for places in self._places.values():
                await places.end(self._store)

    async def refresh(self) -> None:
        """Refresh all leases now; while the Store is away each process keeps to its part of the last window."""
        try:
            for allotment in list(self._allotments.values()):
                await allotment.refresh(self._store, self._clock())
            for places in list(self._places.values()):
                await places.refresh(self._store, self._clock())
        except StoreError as wrong:
            if self.trouble is None:
                _log.error("limits hold per process only, as the Store is away: %s", wrong)
            self.trouble = str(wrong)
        else:
            self.trouble = None

    async def _loop(self) -> None:
        while True:
            due = REFRESH_SECONDS if self._allotments or self._places else None  # with no limits there is nothing to do
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), due)
            await self.refresh()
            self._wake.clear()
            await asyncio.sleep(_HASTE_SECONDS)
