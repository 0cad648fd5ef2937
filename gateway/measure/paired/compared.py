"""From samples to a comparison: figures by level and category, equality of outputs, warnings, the verdict. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.measure.load import summary
from gateway.measure.load.sample import Sample
from gateway.measure.paired import pairs, verdict
from gateway.measure.paired.groups import group
from gateway.measure.paired.result import Comparison, Difference, Ended, Equality, Level

BY_LINE: Final = "each prompt was sent to both pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """By what a comparison is judged.

    Attributes:
        precision: half the width that intervals of ratios should have, as a share; within it of 1, a ratio is no difference.
        seed: of the bootstrap.
        pairing: how halves of pairs were found, "" when there are no pairs.
    """

    precision: float = 0.05
    seed: int = 0
    pairing: str = BY_LINE


def comparison(
    samples: Iterable[Sample],
    names: tuple[str, str],
    terms: Terms,
    ended: Ended,
    *,
    endings: Mapping[int | None, Ended] | None = None,
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Work a comparison out.

    Args:
        samples: of both pools, at any number of levels.
        names: the pool to compare with, and the pool that is compared.
        terms: by what it is judged.
        ended: why measuring ended, and `endings` each level where they ended apart.
        endings: by concurrency.
        settings: what was measured and how; `temperature` says whether outputs should be equal.
        notes: warnings from elsewhere.

    Raises:
        ValueError: there are no samples of these pools.
    """
    told = dict(settings or {})
    found = pairs.runs(samples, names, paired=bool(terms.pairing))
    if not found:
        raise ValueError(f"no samples of {names[0]} or {names[1]}")
    apart = endings or {}
    levels = tuple(_level(run, apart.get(run.concurrency, ended), terms, told.get("temperature")) for run in found)
    return Comparison(
        names=names,
        pairing=terms.pairing,
        precision=terms.precision,
        settings=told,
        levels=levels,
        verdict=verdict.across(levels),
        ended=ended,
        warnings=(*notes, *_warnings(levels, terms), *_failed(found)),
    )


def _warnings(levels: Iterable[Level], terms: Terms) -> Iterator[str]:
    for level in levels:
        yield from verdict.warnings(level, terms.precision)
    if not terms.pairing:
        yield "the calls have no pairs: the pools were measured apart, so drift between the runs is in the ratios"


def _failed(runs: Iterable[pairs.Run]) -> Iterator[str]:
    """Tell which lines failed, and how, on which pool."""
    for run in runs:
        for name, calls in run.failed.items():
            yield from (f"{pairs.label(name, run.concurrency)}: {words}" for words in summary.failures(calls))


def _level(run: pairs.Run, ended: Ended, terms: Terms, temperature: float | None) -> Level:
    names = run.categories
    categories = [
        group(run, name, precision=terms.precision, judged=len(names), seed=terms.seed + place)
        for place, name in enumerate(names, 1)
    ]
    if len(names) == 1 and all(sample.category for calls in run.whole.values() for sample in calls.values()):
        categories = []  # the only category is the whole
    overall = group(run, "", precision=terms.precision, seed=terms.seed)
    reached = {name: pairs.reached(list(run.whole[name].values())) for name in run.names if run.whole[name]}
    return Level(
        concurrency=run.concurrency,
        reached={name: round(level, 3) for name, level in reached.items() if level is not None},
        overall=overall,
        categories=tuple(categories),
        equality=equality(run, temperature) if run.paired else None,
        verdict=verdict.verdict(overall, categories, run.names, terms.precision),
        ended=ended,
    )


def equality(run: pairs.Run, temperature: float | None) -> Equality | None:
    """Compare answers by their digests; None where no digests are known."""
    known = [(base, other) for base, other in run.pairs if base.output_sha256 and other.output_sha256]
    if not known:
        return None
    apart = [base for base, other in known if base.output_sha256 != other.output_sha256]
    first = min(apart, key=lambda sample: (sample.line, sample.repeat), default=None)
    return Equality(
        pairs=len(known),
        equal=len(known) - len(apart),
        temperature=temperature,
        first=None if first is None else Difference(line=first.line, id=first.id),
        repeated={name: again for name in run.names if (again := _again(run.whole[name].values()))[1]},
    )


def _again(samples: Iterable[Sample]) -> tuple[int, int]:
    """Return how many answers equal the first one to the same prompt, and how many were repeated."""
    answers: defaultdict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.output_sha256:
            answers[sample.line, sample.id].append(sample)
    later = [
        (each.output_sha256, min(one, key=lambda sample: sample.repeat).output_sha256)
        for one in answers.values()
        for each in sorted(one, key=lambda sample: sample.repeat)[1:]
    ]
    return sum(here == there for here, there in later), len(later)


def with_difference(found: Comparison, look: Callable[[Difference], Difference]) -> Comparison:
    """Return the comparison with each level's first difference looked at closer."""
    levels = []
    for level in found.levels:
        if level.equality is not None and level.equality.first is not None:
            closer = msgspec.structs.replace(level.equality, first=look(level.equality.first))
            level = msgspec.structs.replace(level, equality=closer)  # noqa: PLW2901 - the level, seen closer
        levels.append(level)
    return msgspec.structs.replace(found, levels=tuple(levels))
