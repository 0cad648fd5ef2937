"""What samples amount to: seconds per token, steps and ratios with intervals, by family. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from gateway.measure.load.sample import Sample
from gateway.measure.paired.intervals import Estimate, Floats, Resamples

SEED: Final = 7
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Pool:
    """What one pool showed on a group of calls; milliseconds, and tokens per step."""

    calls: int
    ttft_ms: float
    tpot_ms: float
    step_ms: float
    acceptance: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A group of prompts on two pools: each one's figures, and the second's TTFT, decode time and E2E over the first's."""

    first: Pool
    second: Pool
    ttft: Estimate | None
    tpot: Estimate | None
    e2e: Estimate | None
    equal: float  # share of answers that are the same, to the last character


def pool(samples: Sequence[Sample]) -> Pool:
    """Return a pool's figures: times weighted by tokens, as a fleet would feel them."""
    seconds, tokens, steps = _sums(samples)
    return Pool(
        calls=len(samples),
        ttft_ms=1000 * median(one.ttft_seconds or 0.0 for one in samples),
        tpot_ms=1000 * seconds / max(tokens, 1.0),
        step_ms=1000 * seconds / max(steps, 1.0),
        acceptance=(tokens + len(samples)) / max(steps + len(samples), 1.0),
    )


def pair(first: Sequence[Sample], second: Sequence[Sample]) -> Pair:
    """Compare two pools on the same prompts, by a bootstrap over prompts."""
    rows = _rows(first, second)
    resamples = Resamples([rows], seed=SEED)
    return Pair(
        pool(first),
        pool(second),
        resamples.estimate(lambda sums: sums[..., 7] / sums[..., 3]),
        resamples.estimate(lambda sums: (sums[..., 4] / sums[..., 5]) / (sums[..., 0] / sums[..., 1])),
        resamples.estimate(lambda sums: sums[..., 6] / sums[..., 2]),
        _equal(first, second),
    )


def ratio(first: Sequence[Sample], second: Sequence[Sample]) -> Estimate | None:
    """Return the second's decode time per token over the first's, with its interval."""
    return pair(first, second).tpot


def by_family(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return whole answers of more than one token by family, with all of them under ALL."""
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.ok and sample.tpot_seconds is not None:
            found[sample.category].append(sample)
            found[ALL].append(sample)
    return dict(found)


def quickest(samples: Iterable[Sample]) -> list[Sample]:
    """Return of every prompt's repetitions the one that took least: what else a machine does only ever slows a call.

    For answers at temperature 0, of which all repetitions are the same work.
    """
    found: dict[tuple[str, int], Sample] = {}
    for one in samples:
        if one.ok and (
            (one.target, one.line) not in found or one.e2e_seconds < found[one.target, one.line].e2e_seconds
        ):
            found[one.target, one.line] = one
    return list(found.values())


def by_group(samples: Iterable[Sample], kinds: Mapping[str, str]) -> dict[str, list[Sample]]:
    """Return the same by family, then by the kind of family that `kinds` names, all together last."""
    families = by_family(samples)
    every = families.pop(ALL, [])
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for name, group in families.items():
        found[kinds[name]] += group
    return {**families, **found, **({ALL: every} if every else {})}


def shown(estimate: Estimate | None) -> str:
    """Return a ratio with its interval, for a table."""
    if estimate is None:
        return "—"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f}–{estimate.high:.2f})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown, columns aligned."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    first, *rest = ("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)
    return "\n".join((first, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rest))


def plain(samples: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """Return pools' figures by name, for a results file."""
    return {name: {key: round(getattr(found, key), 3) for key in Pool.__slots__} for name, found in _pools(samples)}


def _pools(samples: Mapping[str, Sequence[Sample]]) -> list[tuple[str, Pool]]:
    return [(name, pool(group)) for name, group in samples.items() if group]


def _sums(samples: Iterable[Sample]) -> tuple[float, float, float]:
    """Return decode seconds, tokens and steps after each answer's first token."""
    seconds = tokens = steps = 0.0
    for one in samples:
        count = float(one.completion_tokens or 0)
        seconds += one.e2e_seconds - (one.ttft_seconds or 0.0)
        tokens += count - 1.0
        steps += count / (one.acceptance_length or 1.0) - 1.0
    return seconds, tokens, steps


def _rows(first: Sequence[Sample], second: Sequence[Sample]) -> Floats:
    """Return one row per prompt that both answered: decode seconds, tokens, E2E and TTFT seconds of either."""
    sides: tuple[defaultdict[int, list[Sample]], defaultdict[int, list[Sample]]] = defaultdict(list), defaultdict(list)
    for side, samples in zip(sides, (first, second), strict=True):
        for sample in samples:
            side[sample.line].append(sample)
    rows = []
    for line in sorted(sides[0].keys() & sides[1].keys()):
        row: list[float] = []
        for side in sides:
            seconds, tokens, _ = _sums(side[line])
            row += [seconds, tokens, sum(one.e2e_seconds for one in side[line]) / len(side[line])]
            row.append(sum(one.ttft_seconds or 0.0 for one in side[line]) / len(side[line]))
        rows.append(row)
    return np.array(rows).reshape(-1, 8)


def _equal(first: Sequence[Sample], second: Sequence[Sample]) -> float:
    answers = {sample.line: sample.output_sha256 for sample in first}
    known = [sample.output_sha256 == answers[sample.line] for sample in second if sample.line in answers]
    return sum(known) / max(1, len(known))
