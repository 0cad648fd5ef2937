"""What is told at the end of a replay: one JSON object, or a table with a row per pool and per category."""

from __future__ import annotations

from typing import Any

from gateway.measure.load import summary
from gateway.measure.load.replay import Outcome, Plan
from gateway.measure.load.sample import Sample
from gateway.measure.load.survey import Survey


def as_object(outcome: Outcome, survey: Survey, plan: Plan) -> dict[str, Any]:
    """Return all that is known of a replay, as JSON types."""
    samples = outcome.samples
    late = summary.lateness(samples)
    seconds = summary.under_way(samples)
    found = {
        "to": plan.endpoint.url,
        "target": plan.endpoint.name,
        "pace": str(plan.pace),
        "requests": survey.requests,
        "repeats": plan.repeats,
        "bad_lines": [error.line for error in survey.bad],
        "sent": outcome.sent,
        "skipped": outcome.skipped,
        "lost": outcome.lost,
        "stopped": outcome.stopped,
        "seconds": seconds,
        "all": summary.figures(samples, seconds),
        "pools": summary.groups(samples, _pool),
        "categories": summary.groups(samples, _category),
        "errors": summary.errors(samples),
        "lateness": late,
        "sender": {"core_share": outcome.busy, "late_seconds_p99": outcome.late},
        "warnings": warnings(outcome, late),
    }
    return {name: summary.as_json(value) for name, value in found.items()}


def as_text(outcome: Outcome, plan: Plan) -> str:
    """Return a replay's figures for people."""
    samples = outcome.samples
    seconds = summary.under_way(samples)
    whole = summary.figures(samples, seconds)
    kinds = ", ".join(f"{count:,} × {kind}" for kind, count in summary.errors(samples).items())
    failed = f"; {whole.errors:,} failed ({kinds})" if kinds else ""
    head = f"{whole.n:,} calls to {plan.endpoint.name} in {seconds:,.1f} s, {plan.pace}{failed}"
    rows = [("all", whole)]
    rows += [(f"pool {name}", figures) for name, figures in summary.groups(samples, _pool).items()]
    rows += [(f"category {name}", figures) for name, figures in summary.groups(samples, _category).items()]
    return f"{head}\n\n{summary.table(rows)}"


def warnings(outcome: Outcome, late: summary.Lateness | None) -> list[str]:
    """Return what to know before the figures are believed."""
    found = [outcome.warning, late.warning if late else None, *summary.failures(outcome.samples)]
    uncounted = sum(1 for sample in outcome.samples if sample.ok and sample.completion_tokens is None)
    if uncounted:
        found.append(f"{uncounted:,} answers told no usage: they count in no figure of tokens")
    if outcome.missing:
        found.append(
            f"{outcome.missing:,} receipts were not there: their calls' cost is unknown, or from --price-per-hour"
        )
    return [warning for warning in found if warning]


def _pool(sample: Sample) -> str | None:
    return sample.pool


def _category(sample: Sample) -> str:
    return sample.category
