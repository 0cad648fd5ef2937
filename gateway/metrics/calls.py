"""What a finished call counts: `Calls.finished`, a sink.

Rows of money, and of what should stay at 0, exist before their first call: a rate cannot see a series that begins with its
first dollar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from gateway.config import Config
from gateway.metrics.families import Families
from gateway.metrics.known import NONE, OTHER, Known
from gateway.metrics.pairs import Pairs
from gateway.metrics.spread import Spread
from gateway.metrics.tally import Count
from gateway.record import SOURCES, Finished

DECILES: Final = 10
KINDS: Final = ("prompt", "completion")
REFUSED: Final = frozenset({"rejected", "unavailable"})
ZERO_COST: Final = ("no_usage", "no_price", "no_slot_time")
_Row = TypeVar("_Row")
_BASELINE, _SPECULATIVE = "baseline", "speculative"
_CACHED: Final = 20_000  # combinations of labels whose rows are looked up only once


class _By(dict[str, _Row]):
    """Rows by one label more, each looked up in its family only once."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[str], _Row]) -> None:
        self._find = find

    def __missing__(self, label: str) -> _Row:
        row = self[label] = self._find(label)
        return row


class _Served:
    """The rows that a call moves once it has reached a pool."""

    __slots__ = (
        "completion",
        "cost",
        "decision",
        "elsewhere",
        "first_token",
        "per_token",
        "prompt",
        "regret",
        "score",
        "slot_seconds",
        "source",
    )

    def __init__(self, families: Families, who: tuple[str, str, str], reason: str) -> None:
        model, pool, tenant = who
        self.first_token: Spread = families.first_token.row(*who)
        self.per_token: Spread = families.per_token.row(*who)
        self.prompt: Count = families.tokens.row(*who, "prompt")
        self.completion: Count = families.tokens.row(*who, "completion")
        self.slot_seconds: Count = families.slot_seconds.row(*who)
        self.cost: Count = families.cost.row(*who)
        self.regret: Count = families.regret.row(model, pool)
        self.decision: Count = families.decisions.row(model, pool, reason)
        self.score: Spread = families.score.row(model)
        self.elsewhere = _By(lambda policy: families.counterfactual.row(model, tenant, policy))
        self.source = _By(lambda source: families.observations.row(pool, source))


class _Rows:
    """The rows that calls of one kind move, looked up once."""

    __slots__ = ("duration", "model", "overhead", "pool", "requests", "served", "tenant")

    def __init__(self, families: Families, known: Known, record: Finished) -> None:
        self.model, self.pool, self.tenant = who = known.who(record)
        endpoint, outcome, status = known.ending(record)
        self.requests: Count = families.requests.row(endpoint, *who, outcome, status)
        self.duration: Spread = families.duration.row(*who)
        self.overhead = _By(families.overhead.row)
        self.served = None if self.pool == NONE else _Served(families, who, known.reason(record.reason))


class Calls:
    """Counts finished calls; `reasons` and `policies` are the closed sets of plans and of counterfactuals."""

    __slots__ = ("_families", "_free", "_known", "_pairs", "_policies", "_reasons", "_rows")

    def __init__(self, families: Families, known: Known, *, reasons: Iterable[str], policies: Iterable[str]) -> None:
        self._families = families
        self._known = known
        self._reasons = tuple(reasons)
        self._policies = tuple(policies)
        self._pairs = Pairs()
        self._rows: dict[tuple[object, ...], _Rows] = {}
        self._free: frozenset[str] = frozenset()

    def reload(self, config: Config) -> None:
        """Take the names and prices of a configuration, and begin the rows that must not be missed."""
        self._rows.clear()
        self._free = frozenset(pool.name for pool in config.pools if pool.price_per_hour == 0 and not pool.prices)
        families = self._families
        for pool in config.pools:
            for tenant in self._known.tenants_of(pool.model, config):
                who = (pool.model, pool.name, tenant)
                families.cost.row(*who)
                families.slot_seconds.row(*who)
                for kind in KINDS:
                    families.tokens.row(*who, kind)
                for policy in self._policies:
                    families.counterfactual.row(pool.model, tenant, policy)
            self._begin(pool.model, pool.name)

    def _begin(self, model: str, pool: str) -> None:
        families = self._families
        families.regret.row(model, pool)
        families.exploration.row(pool)
        families.retries.row(pool)
        families.shadow.row(model, pool)
        for kind in ("estimated", "paid"):
            families.shadow_check.row(pool, kind)
        for reason in self._reasons:
            families.decisions.row(model, pool, reason)
        for reason in ZERO_COST:
            families.zero_cost.row(pool, reason)
        for source in (*SOURCES, "biased"):
            families.observations.row(pool, source)

    def finished(self, record: Finished) -> None:
        """Count one finished call; about 5 µs, since every call pays it."""
        families = self._families
        rows = self._rows_of(record)
        rows.requests.value += 1
        rows.duration.add_example(record.duration, record.request_id, record.time)
        for phase, seconds in record.overhead.items():
            rows.overhead[phase].add(seconds)
        served = rows.served
        if served is None:
            if record.outcome in REFUSED:
                families.refusals.row(rows.tenant, self._known.code(record.error)).value += 1
            return
        served.decision.value += 1
        served.prompt.value += record.prompt_tokens
        served.completion.value += record.completion_tokens
        served.slot_seconds.value += record.slot_seconds
        served.cost.value += record.cost_usd
        if record.counterfactual:
            self._elsewhere(record, served)
        if record.ttft is not None:
            served.first_token.add_example(record.ttft, record.request_id, record.time)
            if record.completion_tokens > 1:
                served.per_token.add((record.duration - record.ttft) / (record.completion_tokens - 1))
        if record.score is not None:
            served.score.add(record.score)
        served.source["biased" if record.biased else record.source].value += 1
        self._acceptance(record, rows.pool)
        self._unusual(record, rows)

    def _elsewhere(self, record: Finished, served: _Served) -> None:
        """Count what the call would have cost under other policies, and by how much another pool seems cheaper."""
        elsewhere = record.counterfactual
        for policy, dollars in elsewhere.items():
            served.elsewhere[policy].value += dollars
        other = elsewhere.get(_BASELINE if record.speculative else _SPECULATIVE)
        if other is not None and other < record.cost_usd:
            served.regret.value += record.cost_usd - other

    def _acceptance(self, record: Finished, pool: str) -> None:
        """Count what the call showed of speculation, beside what was predicted."""
        families = self._families
        seen = None if record.biased else record.acceptance
        if not record.speculative:
            # A non-streamed answer's timing is no control: it takes the step time that it would have to confirm.
            if seen is not None and record.source in ("engine", "events"):
                families.control.row(pool).add(seen)
            return
        if record.expected is not None:
            families.acceptance.row(pool, "predicted").add(record.expected)
        if seen is None:
            return
        families.acceptance.row(pool, "observed").add(seen)
        if record.score is not None and record.expected is not None:
            decile = str(min(int(record.score * DECILES), DECILES - 1))
            families.acceptance_by_score.row(pool, decile, "predicted").add(record.expected)
            families.acceptance_by_score.row(pool, decile, "observed").add(seen)

    def _unusual(self, record: Finished, rows: _Rows) -> None:
        """Count what few calls have: exploration, shadow, retries, and answers that were charged nothing."""
        families = self._families
        if record.explored:
            families.exploration.row(rows.pool).value += 1
        if record.queued:
            families.queue.row(rows.pool).add(record.queued)
        if record.attempts > 1:
            families.retries.row(rows.pool).value += record.attempts - 1
        if record.resumed_from:
            families.resumed.row(rows.pool, self._known.pool(record.resumed_from)).value += 1
        if record.copy_of or (record.shadow and record.shadow != record.pool):
            self._shadow(record)
        if record.shadow and not record.copy_of:
            families.shadow.row(rows.model, self._known.pool(record.shadow)).value += 1
        if record.outcome != "ok" or record.endpoint == OTHER:
            return
        if record.usage_source == "none":
            families.zero_cost.row(rows.pool, "no_usage").value += 1
        elif record.cost_usd == 0.0:
            families.zero_cost.row(rows.pool, "no_price" if record.pool in self._free else "no_slot_time").value += 1

    def _shadow(self, record: Finished) -> None:
        pair = self._pairs.meet(record)
        if pair is not None:
            pool = self._known.pool(pair.pool)
            self._families.shadow_check.row(pool, "estimated").value += pair.estimated
            self._families.shadow_check.row(pool, "paid").value += pair.paid

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
