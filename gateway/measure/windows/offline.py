"""A sweep without engines: what each smaller window would have done on recorded acceptance, at the step times that it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import linear_regression
from typing import Any, Final

import msgspec
import numpy as np

from gateway.measure.windows.candidate import NOTHING, Candidate
from gateway.measure.windows.curve import UNNAMED, Load, Measured, curve
from gateway.measure.windows.records import Record
from gateway.measure.windows.result import ALL, Row, StepModel, Sweep
from gateway.measure.windows.truncation import Truncated, last_match

# The study of Qwen3-32B with a 1.7B draft on Trainium2: 45 ms a step without, 105 ms with a window of 7.
STUDY: Final = StepModel(base_seconds=0.045, per_token_seconds=0.060 / 7, source="the study on Trainium2")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How records are judged.

    Attributes:
        steps: step time by window.
        baseline_step_seconds: of an engine without speculation; None leaves it out.
        tpot_seconds: what an answer may take per token to count, None for any.
        uses_all: whether a window of k can accept k tokens; with NxD Inference it can accept k − 1.
    """

    steps: StepModel
    baseline_step_seconds: float | None
    tpot_seconds: float | None = None
    uses_all: bool = True
    seed: int = 0


def sweep(records: Sequence[Record], chosen: Sequence[int] | None, terms: Terms, settings: dict[str, Any]) -> Sweep:
    """Judge every window up to the recorded one, or those that are chosen."""
    lost = 0 if terms.uses_all else 1
    largest = min(record.window for record in records) if chosen is None else max(chosen)
    windows = tuple(range(1 + lost, largest + 1)) if chosen is None else tuple(one for one in chosen if one > lost)
    kept = [record for record in records if record.window >= largest and record.accepted]
    candidates = [*(Candidate(window) for window in windows)]
    if terms.baseline_step_seconds is not None:
        candidates.append(NOTHING)
    ready = _truncated(kept, lost, terms.seed)
    measured = [
        _measured(record, truncated, one, terms, lost)
        for record, truncated in zip(kept, ready, strict=True)
        for one in candidates
    ]
    found = curve(measured, candidates, Load(at_once=1), seed=terms.seed)
    return Sweep(
        settings={"mode": "offline", **settings, "records": len(kept), "step_source": terms.steps.source},
        load="one answer at a time, by recorded acceptance",
        windows=tuple(_bounded(row, kept, ready, lost) for row in found.rows),
        best=dict(found.best),
        step_model={"": terms.steps},
        warnings=(*_warnings(records, kept, largest, terms), *found.warnings),
    )


def _truncated(records: Sequence[Record], lost: int, seed: int) -> list[Truncated]:
    """Make records ready, each category with its own probability of a token that the record does not show."""
    match = {}
    for category in {record.category for record in records}:
        match[category] = last_match(
            [(record.accepted, record.window - lost) for record in records if record.category == category]
        )
    chance = np.random.default_rng(seed)
    return [Truncated(record.accepted, record.window - lost, match[record.category], chance) for record in records]


def _measured(record: Record, truncated: Truncated, one: Candidate, terms: Terms, lost: int) -> Measured:
    """Return what an answer would have been with a window."""
    tokens = float(truncated.tokens)
    if one == NOTHING:
        steps, step = tokens, terms.baseline_step_seconds or 0.0
    else:
        steps, step = float(truncated.steps(one.window - lost)), terms.steps.seconds(one.window)
    seconds = steps * step
    return Measured(
        candidate=one,
        prompt=record.line,
        category=record.category,
        tokens=tokens,
        met=terms.tpot_seconds is None or seconds / tokens <= terms.tpot_seconds,
        seconds=seconds,
        decode_seconds=seconds,
        decode_tokens=tokens,
        steps=steps,
    )


def _bounded(row: Row, records: Sequence[Record], ready: Sequence[Truncated], lost: int) -> Row:
    """Add the fewest and the most steps that the records allow."""
    if not row.window:
        return row
    own = [
        truncated.bounds(row.window - lost)
        for record, truncated in zip(records, ready, strict=True)
        if row.category in (ALL, record.category or UNNAMED)
    ]
    return msgspec.structs.replace(row, steps_range=(sum(low for low, _ in own), sum(high for _, high in own)))


def _warnings(records: Sequence[Record], kept: Sequence[Record], largest: int, terms: Terms) -> Iterable[str]:
    short = sum(record.window < largest for record in records)
    if short:
        yield f"{short} of {len(records)} records have a window below {largest} and cannot tell of it; they are left out"
    if empty := sum(not record.accepted for record in records):
        yield f"{empty} records have no step and are left out"
    if drawn := sum(not record.ordered for record in kept):
        yield f"{drawn} records are histograms: the order of their steps was drawn"
    if terms.steps.source == STUDY.source:
        yield "step times are the study's on Trainium2; give your own with --step-base-ms, --step-per-token-ms or --steps-from"


def measured_steps(records: Iterable[Record], baseline_step_seconds: float | None) -> StepModel | None:
    """Fit step times that came with the records; one window's will do where the baseline's is known as well."""
    points = [(record.window, record.step_seconds) for record in records if record.step_seconds is not None]
    windows = {window for window, _ in points}
    if len(windows) == 1 and baseline_step_seconds is not None:
        points.append((0, baseline_step_seconds))
    elif len(windows) < 2:
        return None
    line = linear_regression([window for window, _ in points], [seconds for _, seconds in points])
    return StepModel(base_seconds=line.intercept, per_token_seconds=line.slope, source="measured with the records")
