"""The slow hand on the wheel: published thresholds followed every second, guards advanced every window. Beside the calls.

A sink of finished calls and a reader of what was scraped; decides nothing about a single call. What it finds is where decisions
read it: `Live.thresholds`, and the verdict on each `Pool`. Every change of a guard is one line in the log.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.loop import Loop
from gateway.routing.guards import GUARDS, Guards, Verdict, Window
from gateway.scrape import INTERVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.metrics import Metrics
    from gateway.pools import Pool, Pools
    from gateway.record import Finished
    from gateway.routing import Curves
    from gateway.routing.thresholds import Thresholds
    from gateway.scrape import Scrape

TICK_SECONDS = 1.0
WINDOW_SECONDS = 30.0
OTHER_REASONS = frozenset({"explore", "header", "policy", "shadow", "only_pool", "constraint", "pool_down", "guard"})
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sums:
    """What one pool's calls of the running window have shown."""

    calls: int = 0
    tokens: float = 0.0
    steps: float = 0.0
    needed: float = 0.0

    def take(self, finished: Finished) -> None:
        if finished.acceptance is None or finished.steps is None:
            return
        self.calls += 1
        self.tokens += finished.acceptance * finished.steps
        self.steps += finished.steps
        self.needed += finished.break_even or 0.0

    @property
    def acceptance(self) -> float | None:
        return self.tokens / self.steps if self.steps else None


class Steering(Loop):
    """Keeps thresholds and guards; `tick` is called every TICK_SECONDS by its own task, or by a test."""

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        pools: Pools,
        curves: Curves,
        thresholds: Thresholds,
        scrape: Scrape,
        clock: Callable[[], float],
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        super().__init__(self._again)
        self._config = config
        self._pools = pools
        self._curves = curves
        self._thresholds = thresholds
        self._scrape = scrape
        self._clock = clock
        self._window_seconds = window_seconds
        self._window_ends = 0.0
        self._sums: dict[str, _Sums] = {}
        self._revisions: dict[str, str] = {}
        self.guards = Guards()

    def __call__(self, finished: Finished) -> None:
        """Take a finished call into the running window; what speculated for another reason than to win accuses no choice."""
        if finished.speculative and finished.reason in OTHER_REASONS:
            return
        if finished.outcome == "ok" and not finished.biased and finished.source in ("engine", "events"):
            self._sums.setdefault(finished.pool, _Sums()).take(finished)

    async def _again(self) -> float:
        self.tick(self._clock(), time.time())
        return TICK_SECONDS

    def tick(self, now: float, wall: float) -> None:
        """Follow thresholds, and close the window if its time is over; `now` is monotonic, `wall` Unix seconds."""
        for model in self._config().models:
            self._thresholds.refresh(self._pools.view(model.name, now), self._curves, now=wall)
        for pool in self._pools:
            pool.let_in()  # the look above may have found that a replica has come back
        window_ends = now >= self._window_ends
        for pool in self._pools:
            if pool.speculative:
                self._guard(pool, now, self._close_window if window_ends else self._look)
        if window_ends:
            self._window_ends = now + self._window_seconds
            self._sums.clear()

    def show(self, metrics: Metrics) -> None:
        """Set the gauges of thresholds, guards and of how old the engines' figures are."""
        now = self._clock()
        for pool in self._pools:
            found = self._thresholds.published.get(pool.name)
            if found is not None:
                metrics.balance(pool.config.model, pool.name, threshold=found.threshold, break_even=found.break_even)
            for guard in GUARDS if pool.name in self._revisions else ():
                metrics.guard(guard, pool.name, "active" if guard == pool.verdict.guard else "clear")
            for index, replica in enumerate(pool.replicas):
                age = self._scrape.of(replica).age(now)
                if age is not None:
                    metrics.scraped(pool.name, index, age_seconds=age)

    def _guard(self, pool: Pool, now: float, step: Callable[[Pool, float], Verdict]) -> None:
        if self._revisions.setdefault(pool.name, pool.revision) != pool.revision:
            self._revisions[pool.name] = pool.revision
            self.guards.forget(pool.name)
        before = pool.verdict
        pool.verdict = after = step(pool, now)
        if after.guard != before.guard:
            _log.warning("pool %s: guard %s: %s", pool.name, after.guard or "none", after.reason or "released")

    def _close_window(self, pool: Pool, now: float) -> Verdict:
        return self.guards.window(pool.name, self._facts(pool, now))

    def _look(self, pool: Pool, now: float) -> Verdict:
        view = pool.view(now)
        return self.guards.moment(
            pool.name, live_replicas=view.live_replicas, queued=view.queued, slots=max(view.slots, 1)
        )

    def _facts(self, pool: Pool, now: float) -> Window:
        seen = self._sums.get(pool.name, _Sums())
        control = _Sums()
        for other in self._pools.of_model(pool.config.model):
            if not other.config.speculative and (sums := self._sums.get(other.name)):
                control.calls += sums.calls
                control.tokens += sums.tokens
                control.steps += sums.steps
        ages = [age for replica in pool.replicas if (age := self._scrape.of(replica).age(now)) is not None]
        view = pool.view(now)
        return Window(
            calls=seen.calls,
            acceptance=seen.acceptance,
            break_even=seen.needed / seen.calls if seen.calls else None,
            control=control.acceptance,
            control_calls=control.calls,
            signal_age=min(ages) if ages else None,
            scrape_seconds=INTERVAL_SECONDS,
            live_replicas=view.live_replicas,
            queued=view.queued,
            slots=max(view.slots, 1),
        )
