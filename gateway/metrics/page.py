"""All metrics of one process: what finished calls count, the state of pools, models and guards as last set, and the page.

All label values come from `known`, the closed sets. No other module of the gateway names a label.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from prometheus_client import GCCollector, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.config import Config
from gateway.metrics.calls import Calls
from gateway.metrics.engines import Engines, Reading
from gateway.metrics.families import Families
from gateway.metrics.known import Known
from gateway.metrics.recent import Recent
from gateway.metrics.states import States
from gateway.record import Finished
from gateway.version import version

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOGETHER: Final = 64  # finished calls that are counted at once
_log = logging.getLogger(__name__)
PARTS: Final = ("store", "journal", "loop", "limits", "observations")


class Metrics:
    """All metrics of one process.

    Args:
        registry: where they are registered.
        config: the configuration in force.
        reasons: the closed set of a plan's reasons.
        policies: the closed set of counterfactuals.
        guards: the closed set of guards.
        clock: monotonic seconds.
    """

    __slots__ = (
        """_calls _clock _engines _families _guards _known _others _paid_until _prices _states _uncounted""".split()
    )

    def __init__(
        self,
        registry: CollectorRegistry,
        config: Config,
        *,
        reasons: Iterable[str] = (),
        policies: Iterable[str] = (),
        guards: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        reasons = tuple(reasons)
        self._clock = clock
        self._prices: dict[str, float] = {}
        self._paid_until: dict[str, float] = {}
        self._families = Families(registry)
        self._others = CollectorRegistry()  # written by prometheus_client
        registry.register(_Others(self._others))
        self._states = States(self._others)
        self._known = Known(reasons)
        self._guards = tuple(guards)
        self._engines = Engines(self._others)
        self._calls = Calls(self._families, self._known, reasons=reasons, policies=policies)
        self._uncounted: list[Finished] = []
        for family in self._families.all:
            family.before_reading = self._count
        _recent(self._others, self._families, clock)
        ProcessCollector(registry=self._others)
        GCCollector(registry=self._others)
        self._states.build.info({"version": version(), "python": platform.python_version()})
        for part in PARTS:
            self._states.degraded.labels(part).set(0)
        self._apply(config)

    def finished(self, record: Finished) -> None:
        """Count one finished call: with others, as code and rows that are at hand cost half; at the latest when it is read."""
        self._uncounted.append(record)
        if len(self._uncounted) >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        records, self._uncounted = self._uncounted, []
        for record in records:
            try:
                self._calls.finished(record)
            except Exception:  # noqa: BLE001 - one that fails must not take the others along
                _log.exception("call %s could not be counted", record.request_id)

    def inflight(self, count: Callable[[], float]) -> None:
        """Tell where the number of calls under way is to be read."""
        self._states.inflight.set_function(count)

    def engines(self, read: Callable[[], Iterable[Reading]]) -> None:
        """Tell where the engines' last readings are to be had."""
        self._engines.read = read

    def pool(
        self,
        name: str,
        *,
        step_seconds: float,
        replicas: Mapping[str, int],
        running: int = 0,
        waiting: int = 0,
        slots: int = 0,
        usd_per_hour: float | None = None,
    ) -> None:
        """Set how a pool is: seconds per verification step at the load now, replicas by state, load, room and price."""
        pool = self._known.pool(name)
        if usd_per_hour is not None:
            self._states.price.labels(pool).set(usd_per_hour)
        self._states.step_seconds.labels(pool).set(step_seconds)
        self._states.running.labels(pool).set(running)
        self._states.waiting.labels(pool).set(waiting)
        self._states.slots.labels(pool).set(slots)
        for state, count in replicas.items():
            self._states.replicas.labels(pool, state).set(count)

    def spent(self, name: str, *, replicas: int, usd_per_hour: float) -> None:
        """Count what a pool's replicas have cost since the last time, whatever their state, at the price of then."""
        pool, now = self._known.pool(name), self._clock()
        seconds = now - self._paid_until.get(pool, now)
        self._paid_until[pool] = now
        self._states.capacity.row(pool).value += self._prices.get(name, 0.0) * replicas * seconds / 3600
        self._prices[name] = usd_per_hour

    def balance(self, model: str, pool: str, *, threshold: float, break_even: float) -> None:
        """Set where a speculative pool and baseline tie now: as a score, and as tokens per step."""
        labels = self._known.model(model), self._known.pool(pool)
        self._states.threshold.labels(*labels).set(threshold)
        self._states.break_even.labels(*labels).set(break_even)

    def curve(self, pool: str, lengths: Sequence[float]) -> None:
        """Set what was learned of a speculative pool: tokens per step by decile of the score."""
        for decile, length in enumerate(lengths):
            self._states.curve.labels(self._known.pool(pool), str(decile)).set(length)

    def guard(self, guard: str, pool: str, state: Literal["active", "clear"]) -> None:
        """Set whether a guard keeps calls from a pool."""
        self._states.guard.labels(guard, self._known.pool(pool)).set(state == "active")

    def scraped(self, pool: str, replica: int, *, age_seconds: float) -> None:
        """Set how old the figures of an engine are; `replica` is its place in the pool."""
        self._states.scrape_age.labels(self._known.pool(pool), str(replica)).set(age_seconds)

    def degraded(self, part: str, trouble: str | None) -> None:
        """Set whether a part of the books fails."""
        self._states.degraded.labels(part).set(trouble is not None)

    def kept(self, count: int) -> None:
        """Count observations of traffic that were written."""
        self._states.kept.row().value += count

    def dropped(self, reason: str, count: int) -> None:
        """Count observations that were not written, or are no longer there: "buffer" or "expired"."""
        self._states.dropped.row(reason).value += count

    def books(self, *, pending: int, journal_bytes: int, last_success: float | None) -> None:
        """Set how far the ledger is from safety; `last_success` is the Unix time at which the Store had everything."""
        self._states.pending.set(pending)
        self._states.journal.set(journal_bytes)
        if last_success is not None:
            self._states.settled_at.set(last_success)

    def limit(self, tenant: str, limit: str, *, used: float, amount: float) -> None:
        """Set how far a tenant's limit is used, called like "tokens_per_minute"; "usd_per_month" is a budget in dollars."""
        who = self._known.tenant(tenant)
        self._states.limit.labels(who, limit).set(used / amount if amount else 1.0)
        unit, _, period = limit.partition("_per_")
        if unit == "usd":
            self._states.budget.labels(who, period).set(amount)
            self._states.budget_spent.labels(who, period).set(used)

    def reloaded(self, config: Config) -> None:
        """Take a configuration that is now in force."""
        self._states.reloads.row("ok").value += 1
        self._apply(config)

    def reload_refused(self) -> None:
        """Count a configuration that changed nothing because it has problems."""
        self._states.reloads.row("refused").value += 1

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type: OpenMetrics, with examples of calls, if `accept` asks for it."""
        modern = "application/openmetrics-text" in accept
        lines = [line for family in self._families.all for line in family.write(openmetrics=modern)]
        if modern:
            # Else prometheus_client writes the colon in vLLM's names as an underscore, in this format only.
            others = openmetrics.generate_latest(self._others, escaping=openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        else:
            others = generate_latest(self._others)
        return "\n".join([*lines, ""]).encode() + others, OPENMETRICS if modern else CONTENT_TYPE_PLAIN_0_0_4

    def _apply(self, config: Config) -> None:
        self._count()  # under the names that they had
        states = self._states
        self._known.reload(config)
        self._calls.reload(config)
        self._engines.also_as_vllm = config.server.engine_metrics
        states.forget()
        self._prices = {pool.name: pool.price_per_hour * config.currency.usd for pool in config.pools}
        for pool in config.pools:
            states.price.labels(pool.name).set(self._prices[pool.name])
            states.capacity.row(pool.name)
            states.pool_info.labels(pool.name, pool.model, pool.kind, pool.revision).set(1)
            for guard in self._guards if pool.speculative else ():
                states.guard.labels(guard, pool.name).set(0)
        states.config.info({"digest": config.digest})


class _Others(Collector):
    """Lets one registry collect what is registered in another."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


def _recent(registry: CollectorRegistry, families: Families, clock: Callable[[], float]) -> None:
    """Register the quantiles of the last minutes, by pool."""
    for name, text, histograms in (
        ("request_duration", "Quantiles of calls' durations", families.duration),
        ("time_to_first_token", "Quantiles of times to first token", families.first_token),
        ("time_per_output_token", "Quantiles of times per output token", families.per_token),
    ):
        Recent(
            registry,
            f"draftlane_{name}_quantile_seconds",
            f"{text} over the last five minutes.",
            histograms,
            label="pool",
            clock=clock,
        )
