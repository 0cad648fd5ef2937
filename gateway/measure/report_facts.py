"""What a report tells, worked out from the ledger's rows and the configured prices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from gateway.config import Config, PoolConfig
from gateway.ledger.cost import idle
from gateway.ledger.report import Report, figures
from gateway.record import OUTCOMES
from gateway.store import Row

Amounts = Mapping[str, float | None]
LABELS: Final = ("tenant", "model", "pool")
# Outcomes that are the client's own doing, or none at all.
_CLIENTS: Final = frozenset({"ok", "rejected", "client_gone", "client_stalled", "engine_error"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What all calls cost, or would have cost, under one policy, in US dollars, with the ends of an 80 % band."""

    name: str
    usd: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A span of days: `days` has every day of it, `spent` and `calls` its dollars and calls by pool for each of them.

    `capacity_usd` is what the pools cost over the span, up to now, at the prices and replicas of the configuration.
    """

    first: date
    last: date
    days: tuple[date, ...]
    total: Amounts
    speculative: frozenset[str]  # the pools that speculate
    spent: Mapping[str, Sequence[float]]
    calls: Mapping[str, Sequence[float]]
    baseline: Sequence[float]  # dollars per day, had all calls gone to baseline
    by: Mapping[str, Sequence[tuple[str, Amounts]]]  # label → name and amounts
    policies: tuple[Policy, ...]
    outcomes: tuple[tuple[str, float], ...]  # what happened, where it did, most frequent first
    failed: float  # calls that failed through no fault of the client
    capacity_usd: float
    idle_usd: float

    @property
    def saved(self) -> float:
        """What routing saved against sending all calls to baseline, in US dollars; negative when it cost more."""
        return self.policies[1].usd - self.policies[0].usd


def facts(rows: Iterable[Row], config: Config, *, first: date, last: date, now: datetime) -> Facts:
    """Work a report out; `now` bounds what the pools can have cost so far."""
    kept = tuple(rows)
    span = tuple(first + timedelta(days=n) for n in range((last - first).days + 1))
    whole = _report(kept, first, last, ())
    total = figures(whole.total.measures)
    outcomes = {name: whole.total.measures.get(f"outcome_{name}", 0.0) for name in OUTCOMES}
    capacity = _capacity(config, span, now)
    cost = total["cost_usd"] or 0.0
    return Facts(
        first=first,
        last=last,
        days=span,
        total=total,
        speculative=frozenset(pool.name for pool in config.pools if pool.speculative),
        spent=_daily(kept, span, "cost_usd"),
        calls=_daily(kept, span, "calls"),
        baseline=_sums(kept, span, "counterfactual_baseline_usd"),
        by={
            label: tuple(
                (getattr(row, label), figures(row.measures)) for row in _report(kept, first, last, (label,)).rows
            )
            for label in LABELS
        },
        policies=_policies(total),
        outcomes=tuple(sorted(((name, n) for name, n in outcomes.items() if n), key=lambda each: -each[1])),
        failed=sum(n for name, n in outcomes.items() if name not in _CLIENTS),
        capacity_usd=capacity,
        idle_usd=idle(capacity, 1, 3600, cost),
    )


def _report(rows: Sequence[Row], first: date, last: date, by: tuple[str, ...]) -> Report:
    return Report.of(rows, first=first.isoformat(), last=last.isoformat(), by=by)


def _daily(rows: Sequence[Row], span: Sequence[date], measure: str) -> dict[str, list[float]]:
    pools = sorted({row.pool for row in rows if row.pool})
    return {pool: _sums([row for row in rows if row.pool == pool], span, measure) for pool in pools}


def _sums(rows: Iterable[Row], span: Sequence[date], measure: str) -> list[float]:
    sums = dict.fromkeys((day.isoformat() for day in span), 0.0)
    for row in rows:
        if row.day in sums:
            sums[row.day] += row.measures.get(measure, 0.0)
    return list(sums.values())


def _policies(total: Amounts) -> tuple[Policy, ...]:
    def usd(name: str) -> float:
        return total.get(name) or 0.0

    cost = usd("cost_usd")
    found = [Policy("As routed", cost, cost, cost)]
    for policy, name in (("baseline", "All baseline"), ("speculative", "All speculative")):
        around = (usd(f"counterfactual_{policy}{end}_usd") for end in ("", "_low", "_high"))
        found.append(Policy(name, *around))
    fixed = usd("counterfactual_threshold_usd")
    return (*found, Policy("Fixed threshold", fixed, fixed, fixed))


def _capacity(config: Config, span: Iterable[date], now: datetime) -> float:
    """Return what the pools cost over these days, UTC, up to now, at each day's prices."""
    whole = 0.0
    for day in span:
        elapsed = (now - datetime(day.year, day.month, day.day, tzinfo=UTC)) / timedelta(hours=1)
        hours = min(24.0, max(0.0, elapsed))
        whole += hours * sum(config.usd_per_hour(pool, day) * _replicas(pool) for pool in config.pools)
    return whole


def _replicas(pool: PoolConfig) -> int:
    return pool.embedded.replicas if pool.embedded is not None else len(pool.replicas)
