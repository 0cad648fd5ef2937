"""Limits and budgets of tenants, each held where it belongs: minutes of a lone process in its own memory, all else together.

With a Store that others share, a minute's limit is one of all gateways; a day's or a month's budget is kept in the Store
always, as it must outlive the process. Either way nothing here waits: shared limits spend what was leased ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from gateway.admission import Alone, Minutes, Quota, Room
from gateway.config import Period
from gateway.store import Store
from gateway.store.allotments import Allotment, Allotments, Window, every, monthly

_WINDOWS: Final[dict[Period, Window]] = {"minute": every(60), "day": every(86_400), "month": monthly}


class Shared:
    """One limit that processes keep together, on the caller's monotonic clock; a `Quota`."""

    __slots__ = ("_allotment", "_now", "_quotas")

    def __init__(self, allotment: Allotment, quotas: Quotas) -> None:
        self._allotment = allotment
        self._quotas = quotas
        self._now = 0.0  # Unix time of the last look

    @property
    def limit(self) -> float:
        """The whole limit of one window."""
        return self._allotment.limit

    @property
    def used(self) -> float:
        """What all processes have used of it, as far as known here."""
        return self._allotment.spent

    @property
    def remaining(self) -> float:
        """What is left of it."""
        return self._allotment.limit - self._allotment.spent

    @property
    def exhausted(self) -> bool:
        """Whether it will let nobody in until its window ends."""
        return self._allotment.exhausted

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until a call may come in, 0 if now."""
        self._now = now + self._quotas.offset
        return self._allotment.wait(amount, self._now)

    def take(self, amount: float, now: float) -> int:
        """Count an amount as used, whether it fits or not; there is nothing to know about when it was."""
        self._now = now + self._quotas.offset
        self._allotment.spend(amount, self._now)
        return 0

    def correct(self, second: int, by: float, now: float) -> None:  # noqa: ARG002 - windows of a minute need to know it
        """Count more as used, or give back."""
        self._now = now + self._quotas.offset
        self._allotment.settle(by, self._now)

    def full_again_in(self) -> float:
        """Return the seconds until the window ends, seen from the last look."""
        return self._allotment.ends_in(self._now)

    def __repr__(self) -> str:
        return f"<Shared {self._allotment!r}>"


class Quotas:
    """All limits of a process. `offset` leads from the monotonic clock to Unix time and follows it when that is set.

    Args:
        store: where limits meet those of other processes.
        together: which periods are kept in the Store.
        clock, monotonic: Unix and monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        together: Iterable[Period] = ("minute", "day", "month"),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._together = frozenset(together)
        self._clock = clock
        self._monotonic = monotonic
        self._minutes = Minutes()
        self._allotments = Allotments(store, self._tick)
        self.offset = clock() - monotonic()

    def __repr__(self) -> str:
        return f"<Quotas {self._minutes!r} {self._allotments!r}>"

    @property
    def trouble(self) -> str | None:
        """Why limits hold per process only, for now; None while they hold for all together."""
        return self._allotments.trouble

    def of(self, key: str, limit: float, period: Period) -> Quota:
        """Return the limit of this key and period, with what was used of it; a changed limit is taken over."""
        if period in self._together:
            return Shared(self._allotments.of(f"{period}:{key}", limit, _WINDOWS[period]), self)
        return self._minutes.of(key, limit, period)

    def room(self, tenant: str, limit: int, running: Callable[[], int]) -> Room:
        """Return a tenant's limit of calls at once; `running` says how many of them run here."""
        if "minute" in self._together:
            return self._allotments.places(f"running:{tenant}", limit, running)
        return Alone(limit, running)

    def keep(self, keys: Iterable[tuple[str, Period]], tenants: Iterable[str] = ()) -> None:
        """Forget all limits but these, and those of calls at once but of these tenants, as after a reload."""
        kept = list(keys)
        self._allotments.keep(
            [*(f"{period}:{key}" for key, period in kept), *(f"running:{tenant}" for tenant in tenants)]
        )
        self._minutes.keep(key for key, period in kept if period not in self._together)

    async def start(self) -> None:
        """Lease for the first calls, and begin to refresh."""
        await self._allotments.start()

    async def refresh(self) -> None:
        """Lease what will be needed now."""
        await self._allotments.refresh()

    async def stop(self) -> None:
        """End."""
        await self._allotments.stop()

    def _tick(self) -> float:
        """Return Unix time, and follow it."""
        now = self._clock()
        self.offset = now - self._monotonic()
        return now
