"""What a run's samples come to: figures overall, per pool and per category, as JSON and as a table. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from gateway.measure.load.sample import Sample, weighted_acceptance

_QUANTILES: Final = (0.5, 0.95)
_SLIP: Final = 0.05  # of the median E2E, by which calls may be late at p95 without a word
_LEAST_SLIP: Final = 0.01  # seconds; less is what a loop is late by anyway
_NAMED: Final = 5  # lines that are named for each kind of error


class Spread(msgspec.Struct, frozen=True):
    """Median and 95th percentile, in seconds."""

    p50: float
    p95: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What some samples come to; None where nothing tells.

    Attributes:
        n: calls, failed ones included.
        errors: calls without a whole answer; all other figures are of whole answers.
        tokens_per_second: output tokens per second in which any call of the run was under way.
        acceptance_length: tokens per verification step, all steps alike.
        usd_per_million_output_tokens: the cost of all calls, failed ones included, per output token.
    """

    n: int
    errors: int
    ttft_seconds: Spread | None
    tpot_seconds: Spread | None
    e2e_seconds: Spread | None
    output_tokens: int
    tokens_per_second: float | None
    acceptance_length: float | None
    cost_usd: float | None
    usd_per_million_output_tokens: float | None


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """How far an open loop fell behind its times, and what answers took when counted from them."""

    late_seconds: Spread
    latest_seconds: float
    ttft_from_schedule_seconds: Spread | None
    e2e_from_schedule_seconds: Spread | None

    @property
    def warning(self) -> str | None:
        """What to know of it, if calls were late enough to matter."""
        slip, whole = self.late_seconds.p95, self.e2e_from_schedule_seconds
        if slip < max(_LEAST_SLIP, _SLIP * whole.p50 if whole else 0.0):
            return None
        counted = (
            f": counted from their times, E2E is {whole.p50:.2f} s at p50 and {whole.p95:.2f} s at p95" if whole else ""
        )
        return (
            f"calls were sent late, by {slip:.2f} s at p95 and {self.latest_seconds:.2f} s at most{counted}. "
            "Figures that count from sending look too good; lower the rate, or allow more calls under way with --at-once"
        )


def figures(samples: Sequence[Sample], seconds: float) -> Figures:
    """Return what samples come to; `seconds` is how long the run had calls under way."""
    whole = [sample for sample in samples if sample.ok]
    tokens = sum(sample.completion_tokens or 0 for sample in whole)
    costs = [sample.cost_usd for sample in samples if sample.cost_usd is not None]
    cost = sum(costs) if costs else None
    return Figures(
        n=len(samples),
        errors=len(samples) - len(whole),
        ttft_seconds=spread(sample.ttft_seconds for sample in whole),
        tpot_seconds=spread(sample.tpot_seconds for sample in whole),
        e2e_seconds=spread(sample.e2e_seconds for sample in whole),
        output_tokens=tokens,
        tokens_per_second=tokens / seconds if tokens and seconds else None,
        acceptance_length=weighted_acceptance(whole),
        cost_usd=cost,
        usd_per_million_output_tokens=None if cost is None or not tokens else 1e6 * cost / tokens,
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return median and 95th percentile of the values that are there."""
    found = [value for value in values if value is not None]
    return Spread(*(float(value) for value in np.quantile(found, _QUANTILES))) if found else None


def lateness(samples: Iterable[Sample]) -> Lateness | None:
    """Return how late the calls were; None where calls had no times."""
    timed = [(sample, sample.late_seconds) for sample in samples if sample.late_seconds is not None]
    slips = spread(late for _, late in timed)
    if slips is None:
        return None
    whole = [(sample, late) for sample, late in timed if sample.ok]
    return Lateness(
        late_seconds=slips,
        latest_seconds=max(late for _, late in timed),
        ttft_from_schedule_seconds=spread(
            None if sample.ttft_seconds is None else sample.ttft_seconds + late for sample, late in whole
        ),
        e2e_from_schedule_seconds=spread(sample.e2e_seconds + late for sample, late in whole),
    )


def under_way(samples: Iterable[Sample]) -> float:
    """Return the seconds in which at least one call was under way; pauses between runs do not count."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((sample.started, sample.started + sample.e2e_seconds) for sample in samples):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def groups(samples: Sequence[Sample], name: Callable[[Sample], str | None]) -> dict[str, Figures]:
    """Return the figures of each group that is named, over the seconds of all."""
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if key := name(sample):
            found[key].append(sample)
    seconds = under_way(samples)
    return {key: figures(found[key], seconds) for key in sorted(found)}


def errors(samples: Iterable[Sample]) -> dict[str, int]:
    """Return how often each kind of error came, the most frequent first; HTTP errors by status."""
    return dict(Counter(_kind(sample) for sample in samples if not sample.ok).most_common())


def failures(samples: Iterable[Sample]) -> list[str]:
    """Return each kind of error with the lines that met it and the words of the first, the most frequent kind first."""
    failed = sorted((sample for sample in samples if not sample.ok), key=lambda sample: (sample.line, sample.repeat))
    return [_met([sample for sample in failed if _kind(sample) == kind]) for kind in errors(failed)]


def _kind(sample: Sample) -> str:
    return (sample.error or "").split(":", maxsplit=1)[0]


def _met(failed: Sequence[Sample]) -> str:
    places = list(dict.fromkeys(_place(sample) for sample in failed))
    more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
    first = "the first: " if len(places) > 1 else ""
    return f"{', '.join(places[:_NAMED])}{more} failed, {first}{(failed[0].error or '').removesuffix('.')}"


def _place(sample: Sample) -> str:
    """Return where a call stands in its file: its line, and its name where that says more."""
    if not sample.line:
        return sample.id
    return f"line {sample.line}" + (f" ({sample.id})" if sample.id != f"line-{sample.line}" else "")


_COLUMNS: Final[tuple[tuple[str, Callable[[Figures], float | None], str], ...]] = (
    ("n", lambda one: one.n, ",d"),
    ("errors", lambda one: one.errors, ",d"),
    ("TTFT p50 ms", lambda one: _times(one.ttft_seconds, "p50", 1000), ",.0f"),
    ("p95", lambda one: _times(one.ttft_seconds, "p95", 1000), ",.0f"),
    ("TPOT p50 ms", lambda one: _times(one.tpot_seconds, "p50", 1000), ",.1f"),
    ("p95", lambda one: _times(one.tpot_seconds, "p95", 1000), ",.1f"),
    ("E2E p50 s", lambda one: _times(one.e2e_seconds, "p50"), ",.2f"),
    ("p95", lambda one: _times(one.e2e_seconds, "p95"), ",.2f"),
    ("tokens/s", lambda one: one.tokens_per_second, ",.1f"),
    ("tokens/step", lambda one: one.acceptance_length, ".2f"),
    ("$/1M out", lambda one: one.usd_per_million_output_tokens, ",.3f"),
)


def table(rows: Sequence[tuple[str, Figures]]) -> str:
    """Return named figures as lines of aligned columns; a dash is a figure that nothing tells."""
    cells = [["", *(title for title, _, _ in _COLUMNS)]]
    cells += [[name, *(_cell(read(figures), form) for _, read, form in _COLUMNS)] for name, figures in rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return "\n".join(_row(row, widths) for row in cells)


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = row
    numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *numbers]).rstrip()


def _times(spread: Spread | None, which: str, unit: float = 1) -> float | None:
    return None if spread is None else unit * float(getattr(spread, which))


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def as_json(value: Any) -> Any:
    """Return figures as JSON types."""
    return msgspec.to_builtins(value)
