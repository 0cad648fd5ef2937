"""Where figures go: every finished call once, and the state of pools, models and guards as last set.

All label values come from `known`, the closed sets. No other module of the gateway names a label.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from prometheus_client import GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from gateway.config import Config
from gateway.metrics.families import Families, States
from gateway.metrics.known import NONE, Known
from gateway.metrics.tally import Count, Spread
from gateway.record import Finished

DECILES: Final = 10
RELOADS: Final = ("ok", "refused")
_CACHED: Final = 20_000  # combinations of labels whose rows are looked up only once


class _Served:
    """The rows that a call moves once it has reached a pool."""

    __slots__ = ("completion", "cost", "decision", "first_token", "per_token", "prompt", "score", "slot_seconds")

    def __init__(self, families: Families, who: tuple[str, str, str], reason: str) -> None:
        model, pool, _ = who
        self.first_token: Spread = families.first_token.row(*who)
        self.per_token: Spread = families.per_token.row(*who)
        self.prompt: Count = families.tokens.row(*who, "prompt")
        self.completion: Count = families.tokens.row(*who, "completion")
        self.slot_seconds: Count = families.slot_seconds.row(*who)
        self.cost: Count = families.cost.row(*who)
        self.decision: Count = families.decisions.row(model, pool, reason)
        self.score: Spread = families.score.row(model)


class _Rows:
    """The rows that calls of one kind move, looked up once."""

    __slots__ = ("duration", "model", "pool", "requests", "served", "tenant")

    def __init__(self, families: Families, known: Known, record: Finished) -> None:
        self.model, self.pool, self.tenant = who = known.who(record)
        endpoint, outcome, status = known.ending(record)
        self.requests: Count = families.requests.row(endpoint, *who, outcome, status)
        self.duration: Spread = families.duration.row(*who)
        self.served = None if self.pool == NONE else _Served(families, who, known.reason(record.reason))


class Metrics:
    """All metrics of one process; `reasons` is the closed set of a plan's reasons."""

    def __init__(self, registry: CollectorRegistry, config: Config, *, reasons: Iterable[str] = ()) -> None:
        self._registry = registry
        self._families = Families(registry)
        self._states = States(registry)
        self._known = Known(reasons)
        self._rows: dict[tuple[object, ...], _Rows] = {}
        self._free: frozenset[str] = frozenset()
        self.inflight = self._states.inflight  # .inc() and .dec() by whoever holds the call
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._states.build.info({"version": _version(), "python": platform.python_version()})
        for result in RELOADS:
            self._states.reloads.row(result)
        self._apply(config)

    def finished(self, record: Finished) -> None:
        """Count one finished call; about 5 µs, since every call pays it."""
        families = self._families
        rows = self._rows_of(record)
        rows.requests.value += 1
        rows.duration.add_example(record.duration, record.request_id, record.time)
        for phase, seconds in record.overhead.items():
            families.overhead.row(phase).add(seconds)
        served = rows.served
        if served is None:
            return
        served.decision.value += 1
        served.prompt.value += record.prompt_tokens
        served.completion.value += record.completion_tokens
        served.slot_seconds.value += record.slot_seconds
        served.cost.value += record.cost_usd
        for policy, dollars in record.counterfactual.items():
            families.counterfactual.row(rows.model, rows.tenant, policy).value += dollars
        if record.ttft is not None:
            served.first_token.add_example(record.ttft, record.request_id, record.time)
            if record.completion_tokens > 1:
                served.per_token.add((record.duration - record.ttft) / (record.completion_tokens - 1))
        if record.score is not None:
            served.score.add(record.score)
        self._acceptance(record, rows.pool)
        self._unusual(record, rows)

    def _acceptance(self, record: Finished, pool: str) -> None:
        """Count what the call showed of speculation, beside what was predicted."""
        families = self._families
        families.observations.row(pool, "biased" if record.biased else record.source).value += 1
        if not record.speculative:
            return
        if record.expected is not None:
            families.acceptance.row(pool, "predicted").add(record.expected)
        if record.acceptance is None or record.biased:
            return
        families.acceptance.row(pool, "observed").add(record.acceptance)
        if record.score is not None and record.expected is not None:
            decile = str(min(int(record.score * DECILES), DECILES - 1))
            families.acceptance_by_score.row(pool, decile, "predicted").add(record.expected)
            families.acceptance_by_score.row(pool, decile, "observed").add(record.acceptance)

    def _unusual(self, record: Finished, rows: _Rows) -> None:
        """Count what few calls have: exploration, shadow, retries, and answers that were charged nothing."""
        families = self._families
        if record.explored:
            families.exploration.row(rows.pool).value += 1
        if record.shadow:
            families.shadow.row(rows.model, self._known.pool(record.shadow)).value += 1
        if record.attempts > 1:
            families.retries.row(rows.pool).value += record.attempts - 1
        if record.outcome != "ok" or record.endpoint == "other":
            return
        if record.usage_source == "none":
            families.zero_cost.row(rows.pool, "no_usage").value += 1
        elif record.cost_usd == 0.0:
            families.zero_cost.row(rows.pool, "no_price" if record.pool in self._free else "no_slot_time").value += 1

    def _rows_of(self, record: Finished) -> _Rows:
        key = (
            record.endpoint,
            record.tenant,
            record.model,
            record.pool,
            record.outcome,
            record.status,
            record.reason,
        )
        rows = self._rows.get(key)
        if rows is None:
            if len(self._rows) >= _CACHED:
                self._rows.clear()
            rows = self._rows[key] = _Rows(self._families, self._known, record)
        return rows

    def pool(self, name: str, *, step_seconds: float, replicas: Mapping[str, int]) -> None:
        """Set how a pool is: seconds per verification step at the load now, and its replicas by state."""
        pool = self._known.pool(name)
        self._states.step_seconds.labels(pool).set(step_seconds)
        for state, count in replicas.items():
            self._states.replicas.labels(pool, state).set(count)

    def balance(self, model: str, *, threshold: float, break_even: float) -> None:
        """Set where speculation and baseline tie now: as a score, and as tokens per step."""
        label = self._known.model(model)
        self._states.threshold.labels(label).set(threshold)
        self._states.break_even.labels(label).set(break_even)

    def guard(self, guard: str, pool: str, state: Literal["active", "clear"]) -> None:
        """Set whether a guard keeps calls from a pool."""
        self._states.guard.labels(guard, self._known.pool(pool)).set(state == "active")

    def scraped(self, pool: str, replica: int, *, age_seconds: float) -> None:
        """Set how old the figures of an engine are; `replica` is its place in the pool."""
        self._states.scrape_age.labels(self._known.pool(pool), str(replica)).set(age_seconds)

    def reloaded(self, config: Config) -> None:
        """Take a configuration that is now in force."""
        self._states.reloads.row("ok").value += 1
        self._apply(config)

    def reload_refused(self) -> None:
        """Count a configuration that changed nothing because it has problems."""
        self._states.reloads.row("refused").value += 1

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type: OpenMetrics, with examples of calls, if `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _apply(self, config: Config) -> None:
        self._known.reload(config)
        self._rows.clear()
        self._free = frozenset(pool.name for pool in config.pools if pool.price_per_hour == 0)
        for gauge in (self._states.price, self._states.step_seconds, self._states.replicas, self._states.scrape_age):
            gauge.clear()
        for pool in config.pools:
            self._states.price.labels(pool.name).set(pool.price_per_hour)
        self._states.config.info({"digest": config.digest})


def _version() -> str:
    """The installed distribution's version; a bare source tree has none."""
    try:
        return version("draftlane")
    except PackageNotFoundError:
        return "source"
