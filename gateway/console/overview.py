"""Everything that the operator's page shows, as one dictionary. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from gateway.config import Config
from gateway.console import lately
from gateway.console.colleagues import Told
from gateway.console.lately import together
from gateway.console.problems import Used, problems
from gateway.ledger.cost import idle
from gateway.ledger.report import Report, figures
from gateway.store import Row, Store, StoreError

DECISIONS: Final = 50  # that the page lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the page looks at: parts of a running gateway."""

    config: Config
    state: Mapping[str, Any]
    store: Store
    own: Told
    others: Sequence[Told]  # what other workers of this gateway tell
    used: Sequence[Used]
    ages: Mapping[str, float]  # of engines' figures, by replica
    workers: int


async def overview(sight: Sight, time: float) -> dict[str, Any]:
    """Return it; `time` is a Unix time. A Store that is away leaves today's money out and says so."""
    today = datetime.fromtimestamp(time, UTC).date()
    day = today.isoformat()
    rows: Sequence[Row] = ()
    trouble = None
    try:
        rows = await sight.store.totals(day, day)
    except StoreError as error:
        trouble = str(error)
    everybody = (sight.own, *sight.others)
    steps = together(*(each.steps for each in everybody))
    now = lately.now(steps, time)
    decisions = sorted((call for each in everybody for call in each.decisions), key=_ended, reverse=True)
    return {
        "time": time,
        "workers": sight.workers,
        "models": [model.name for model in sight.config.models],
        "tenants": [tenant.name for tenant in sight.config.tenants],
        "state": {**sight.state, "pools": [_with_others(pool, sight.others) for pool in sight.state["pools"]]},
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
            "idle_usd_per_hour": _idle(sight.config, now["usd_per_hour"], today),
            "today": None if trouble else _today(rows, day),
        },
        "lately": lately.series(steps, time),
        "decisions": decisions[:DECISIONS],
    }


def _ended(call: Mapping[str, Any]) -> float:
    return float(call["time"]) + float(call["duration"])


def _with_others(pool: Mapping[str, Any], others: Iterable[Told]) -> dict[str, Any]:
    """Return a pool's state with the calls of other workers; what each says of its replicas stays its own."""
    return {**pool, "running": pool["running"] + sum(each.running.get(pool["name"], 0) for each in others)}


def _idle(config: Config, paid_per_hour: float, today: date) -> float:
    """Return the dollars per hour that pools cost and no call pays at the pace of now."""
    whole = sum(config.usd_per_hour(pool, today) * len(pool.replicas) for pool in config.pools)
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
