"""How many calls of one kind may run at once, in all processes together, without asking anyone on a call's path.

Each process leases places from the Store ahead of their use and gives back what it does not need. Leases are kept per window
of a few seconds: a process that dies takes its places along until its window ends, no longer. Shortly before that every
process leases for the next window what it holds in this one, before anybody may ask for more there, so what runs across the
border is never somebody else's. What is leased never exceeds the limit, and so neither does what runs; what lies unused in
leases shrinks to nothing as the limit comes near, within five seconds where a process has no calls.

Time is Unix seconds, as the windows are everyone's; it is an argument everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gateway.store.contract import Store

WINDOW_SECONDS: Final = 10.0
_AHEAD_SECONDS: Final = 1.0  # before its end in which the next one is leased: clocks may differ by less
_GRACE_SECONDS: Final = 30.0  # a counter outlives its window, for clocks that lag
_SPARE: Final = 0.25  # share of the free places that lies ready here, so that most calls need not wait
_LOOK_SECONDS: Final = 0.5  # after which others' use is looked at again
_IDLE_SECONDS: Final = (
    5.0  # without a call, after which one place is enough, and looking seldom: there are many tenants
)
_HASTE_SECONDS: Final = 0.05  # after which hunger may have a lease refreshed again, so that is when to come back
_RETRY_SECONDS: Final = 1.0  # where all places are taken: a running call ends at any moment


class Places:
    """This process's part of one limit; `running` says how many of its calls run."""

    __slots__ = (
        "_asked_at",
        "_busy_until",
        "_carried",
        "_denied",
        "_end",
        "_grow_at",
        "_heard",
        "_hungry",
        "_kept",
        "_leased",
        "_name",
        "_used",
        "key",
        "limit",
        "running",
    )

    def __init__(
        self, key: str, limit: int, running: Callable[[], int], hungry: Callable[[], None] = lambda: None
    ) -> None:
        self.key = key
        self.limit = limit
        self.running = running
        self._hungry = hungry
        self._name = ""  # of the window
        self._end = -math.inf
        self._leased = 0  # in this window
        self._carried: int | None = None  # leased for the next one
        self._kept: int | None = limit  # allowed until the Store is heard in this window; None: it was
        self._denied = 0  # calls that found no place since the last refresh
        self._used = 0.0  # by all processes in this window, as far as known
        self._asked_at = -math.inf
        self._heard = False
        self._busy_until = -math.inf
        self._grow_at = -math.inf

    def __repr__(self) -> str:
        return f"<Places {self.key} {self.running()} of {self.allowed} leased of {self.limit}>"

    @property
    def allowed(self) -> int:
        """How many calls may run here now; without ever having heard the Store, as many as all together."""
        return self._leased if self._kept is None else max(self._leased, self._kept)

    @property
    def used(self) -> int:
        """How many calls run in all processes, as far as known here, their spare places included."""
        return min(self.limit, max(0, round(self._used) - self._leased) + self.running())

    def wait(self) -> float:
        """Return 0.0 if one more call may run, else after how many seconds to try again; a place is leased sooner then."""
        if self.running() < self.allowed:
            return 0.0
        self._denied += 1
        if self._used >= self.limit:
            return _RETRY_SECONDS
        self._hungry()
        return _HASTE_SECONDS

    async def refresh(self, store: Store, now: float) -> None:
        """Lease what is needed, give back what is not; raises StoreError, and then nothing is lost that was held."""
        self._turn(now)
        if self.running() or self._denied:
            self._busy_until = now + _IDLE_SECONDS
        idle = now >= self._busy_until
        lacking = self._target(1 if idle else self.limit) - self._leased
        look = _IDLE_SECONDS if idle else _LOOK_SECONDS
        if self._kept is not None and self._heard:  # after a time without the Store: what is held is leased again, and
            lacking, self._grow_at = self._kept - self._leased, now + _AHEAD_SECONDS  # growth waits for all others
        elif now < self._grow_at:
            lacking = min(lacking, 0)
        if lacking or self._kept is not None or abs(now - self._asked_at) >= look:
            await self._lease(store, lacking, now)
        if self._end - now <= _AHEAD_SECONDS and self._carried is None:
            name, end = _window(self._end)
            self._carried = await self._ask(store, name, self._leased, end - now)

    async def end(self, store: Store) -> None:
        """Give all places back; raises StoreError."""
        if self._leased and self._name:
            await self._ask(store, self._name, -self._leased, WINDOW_SECONDS)
        self._leased, self._kept = 0, 0

    def _turn(self, now: float) -> None:
        """Begin the window of `now`, with what was leased for it; without that, what was held is still held to be ours."""
        name, end = _window(now)
        if name == self._name:
            return
        if self._carried is not None and now >= self._end:
            self._leased, self._used = self._carried, 0.0
        elif self._name:
            self._kept, self._leased = self.allowed, 0
        self._name, self._end, self._carried = name, end, None

    def _target(self, most_spare: int) -> int:
        """Return what should lie ready: for what runs, and for a little more while there is plenty."""
        needed, self._denied = self.running() + self._denied, 0
        free = max(0.0, self.limit - max(self._used, self._leased))
        spare = max(int(_SPARE * free), 1 if free >= self.limit / 2 else 0)
        return min(self.limit, needed + min(spare, most_spare))

    async def _lease(self, store: Store, lacking: int, now: float) -> None:
        """Take or give back in this window; what is taken after the next one was leased, there too."""
        if self._carried is not None and lacking > 0:
            more = await self._ask(store, _window(self._end)[0], lacking, self._end + WINDOW_SECONDS - now)
            self._carried += more
            lacking = more
        back = min(lacking, 0)
        self._leased += back  # what is given back lets nobody in any more, also while the Store is asked
        try:
            granted = await self._ask(store, self._name, lacking, self._end - now)
        except BaseException:
            self._leased -= back
            raise
        self._leased += granted - back
        self._kept, self._heard = None, True
        self._asked_at = now

    async def _ask(self, store: Store, name: str, amount: int, rest: float) -> int:
        grant = await store.lease(f"{self.key}:{name}", amount, limit=self.limit, ttl=rest + _GRACE_SECONDS)
        if name == self._name:
            self._used = grant.used
        return math.floor(grant.granted)


def _window(now: float) -> tuple[str, float]:
    """Return the name of the window that a time lies in, and when it ends."""
    number = math.floor(now / WINDOW_SECONDS)
    return f"{WINDOW_SECONDS:g}s-{number}", (number + 1.0) * WINDOW_SECONDS
