"""Everything that the operator's page shows, as one dictionary. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.config import Config
from gateway.console.lately import Lately
from gateway.console.problems import Used, problems
from gateway.ledger.cost import idle
from gateway.ledger.report import Report, figures
from gateway.record import Finished
from gateway.store import Row, Store, StoreError

_TOLD: Final = (
    "request_id time tenant model endpoint stream status outcome error pool replica reason detail score threshold break_even"
    " expected acceptance explored prompt_tokens completion_tokens ttft duration cost_usd copy_of"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the page looks at: parts of a running gateway."""

    config: Config
    state: Mapping[str, Any]
    store: Store
    lately: Lately
    calls: Sequence[Finished]  # the last ones, newest first
    used: Sequence[Used]
    ages: Mapping[str, float]  # of engines' figures, by replica
    workers: int


async def overview(sight: Sight, time: float) -> dict[str, Any]:
    """Return it; `time` is a Unix time. A Store that is away leaves today's money out and says so."""
    day = datetime.fromtimestamp(time, UTC).date().isoformat()
    rows: Sequence[Row] = ()
    trouble = None
    try:
        rows = await sight.store.totals(day, day)
    except StoreError as error:
        trouble = str(error)
    now = sight.lately.now(time)
    return {
        "time": time,
        "workers": sight.workers,
        "models": [model.name for model in sight.config.models],
        "tenants": [tenant.name for tenant in sight.config.tenants],
        "state": dict(sight.state),
        "problems": problems(
            sight.state,
            now=now,
            used=sight.used,
            ages=sight.ages,
            warnings=sight.config.warnings,
            trouble=trouble,
        ),
        "money": {
            "now": now,
            "idle_usd_per_hour": _idle(sight.config, now["usd_per_hour"]),
            "today": None if trouble else _today(rows, day),
        },
        "lately": sight.lately.series(time),
        "decisions": [{name: getattr(call, name) for name in _TOLD} for call in sight.calls],
    }


def _idle(config: Config, paid_per_hour: float) -> float:
    """Return the dollars per hour that pools cost and no call pays at the pace of now."""
    whole = sum(pool.price_per_hour * len(pool.replicas) for pool in config.pools)
    return idle(whole, 1, 3600, paid_per_hour)


def _today(rows: Iterable[Row], day: str) -> dict[str, Any]:
    kept = tuple(rows)
    return {
        "day": day,
        **_amounts(Report.of(kept, first=day, last=day, by=()).total),
        **{
            f"by_{label}": [
                {"name": getattr(row, label), **_amounts(row)}
                for row in Report.of(kept, first=day, last=day, by=(label,)).rows
            ]
            for label in ("tenant", "model", "pool")
        },
    }


def _amounts(row: Row) -> dict[str, float | None]:
    told = figures(row.measures)
    return {
        "calls": told["calls"],
        "tokens": told["completion_tokens"],
        "cost_usd": told["cost_usd"],
        "usd_per_million": told["usd_per_million_output_tokens"],
        "baseline_usd": told["counterfactual_baseline_usd"],
        "speculative_usd": told["counterfactual_speculative_usd"],
        "saved_usd": told["saved_against_baseline_usd"],
    }
