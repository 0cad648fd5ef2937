"""Samples put side by side: levels of concurrency, prompts, pairs, and the sums that figures are ratios of. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gateway.measure.load.sample import Sample
from gateway.measure.paired.intervals import Floats

Prompt = tuple[int, str]  # line and id
# The columns of a prompt's sums, over its calls on one pool.
CALLS, TTFT, TTFTS, DECODE, DECODED, E2E, TOKENS, USD, PAID, STEPS, STEPPED = range(11)
COLUMNS: Final = 11


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of both pools at one concurrency, `whole` answers by pool, prompt and repetition."""

    names: tuple[str, str]
    concurrency: int | None
    whole: Mapping[str, Mapping[tuple[Prompt, int], Sample]]
    failed: Mapping[str, Sequence[Sample]]
    paired: bool = True
    pairs: Sequence[tuple[Sample, Sample]] = field(default=())

    @property
    def categories(self) -> list[str]:
        """The categories' names, sorted; calls without one count for the whole alone."""
        return sorted({sample.category for calls in self.whole.values() for sample in calls.values()} - {""})


def label(name: str, concurrency: int | None) -> str:
    """Return the target of samples of a pool at a concurrency."""
    return name if concurrency is None else f"{name}@{concurrency}"


def level_of(target: str) -> tuple[str, int | None]:
    """Return pool and concurrency of a target."""
    name, mark, number = target.rpartition("@")
    return (name, int(number)) if mark and number.isdecimal() else (target, None)


def runs(samples: Iterable[Sample], names: tuple[str, str], *, paired: bool = True) -> list[Run]:
    """Sort samples by level; those of other pools are left out."""
    found: defaultdict[int | None, list[tuple[str, Sample]]] = defaultdict(list)
    for sample in samples:
        name, concurrency = level_of(sample.target)
        if name in names:
            found[concurrency].append((name, sample))
    return [
        _run(calls, names, level, paired=paired)
        for level, calls in sorted(found.items(), key=lambda each: each[0] or 0)
    ]


def _run(calls: Sequence[tuple[str, Sample]], names: tuple[str, str], concurrency: int | None, *, paired: bool) -> Run:
    whole: dict[str, dict[tuple[Prompt, int], Sample]] = {name: {} for name in names}
    failed: dict[str, list[Sample]] = {name: [] for name in names}
    for name, sample in calls:
        if sample.ok and sample.completion_tokens != 0:
            whole[name][(sample.line, sample.id), sample.repeat] = sample
        else:
            failed[name].append(sample)
    first, second = (whole[name] for name in names)
    pairs = [(first[key], second[key]) for key in sorted(first.keys() & second.keys())] if paired else ()
    return Run(names, concurrency, whole, failed, paired, tuple(pairs))


def members(run: Run, category: str) -> tuple[list[Sample], list[Sample]]:
    """Return the calls of a category, or all for "": halves of pairs in the same order, or each pool's own."""
    if run.paired:
        kept = [pair for pair in run.pairs if category in ("", pair[0].category)]
        return [pair[0] for pair in kept], [pair[1] for pair in kept]
    first, second = (
        [sample for sample in run.whole[name].values() if category in ("", sample.category)] for name in run.names
    )
    return first, second


def tables(run: Run, first: Sequence[Sample], second: Sequence[Sample]) -> list[Floats]:
    """Return sums by prompt: one table with both pools' columns side by side for pairs, else one for each pool."""
    sums = [_sums(first), _sums(second)]
    if not run.paired:
        return [np.array(list(each.values()), dtype=np.float64).reshape(-1, COLUMNS) for each in sums]
    rows = [[*sums[0][prompt], *sums[1][prompt]] for prompt in sums[0]]
    return [np.array(rows, dtype=np.float64).reshape(-1, 2 * COLUMNS)]


def _sums(samples: Iterable[Sample]) -> dict[Prompt, list[float]]:
    found: dict[Prompt, list[float]] = {}
    for sample in samples:
        row = found.setdefault((sample.line, sample.id), [0.0] * COLUMNS)
        for column, value in enumerate(_row(sample)):
            row[column] += value
    return found


def _row(sample: Sample) -> tuple[float, ...]:
    tokens = sample.completion_tokens or 0
    tpot, ttft, length = sample.tpot_seconds, sample.ttft_seconds, sample.acceptance_length
    return (
        1.0,
        ttft or 0.0,
        float(ttft is not None),
        0.0 if tpot is None else tpot * (tokens - 1),
        0.0 if tpot is None else tokens - 1.0,
        sample.e2e_seconds,
        float(tokens),
        sample.cost_usd or 0.0,
        0.0 if sample.cost_usd is None else float(tokens),
        tokens / length if length else 0.0,
        float(tokens) if length else 0.0,
    )


def busy_seconds(samples: Iterable[Sample]) -> float:
    """Return how long at least one of the calls was under way."""
    total, until = 0.0, 0.0
    for start, end in sorted((sample.started, sample.started + sample.e2e_seconds) for sample in samples):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def reached(samples: Sequence[Sample]) -> float | None:
    """Return how many calls were under way on average while any was; None where calls do not tell when they began."""
    if not all(sample.started for sample in samples):
        return None
    seconds = busy_seconds(samples)
    return sum(sample.e2e_seconds for sample in samples) / seconds if seconds else None
