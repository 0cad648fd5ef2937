"""Figures of one group of calls: both pools', their ratios, and what they amount to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from gateway.measure.load.sample import Sample
from gateway.measure.paired import pairs
from gateway.measure.paired.intervals import CONFIDENCE, FEWEST_PROMPTS, Estimate, Floats, Resamples, noise_share
from gateway.measure.paired.result import Finding, Group, Pool, Ratios

_SAME_LENGTH = 0.05  # outputs whose lengths differ by more than this say nothing by their E2E


def group(run: pairs.Run, category: str, *, precision: float, judged: int = 1, seed: int = 0) -> Group:
    """Return the figures of a category, or of all for "".

    Args:
        run: the calls.
        category: its name.
        precision: ratios within 1 ± this are no difference worth having.
        judged: how many categories are judged side by side; the interval that judges is wide enough for all (Bonferroni).
        seed: of the bootstrap.
    """
    first, second = pairs.members(run, category)
    tables = pairs.tables(run, first, second)
    if not first or not second:
        return _empty(run, category, first, second)
    resamples = Resamples(tables, seed=seed)
    ratios = Ratios(
        tpot=resamples.estimate(_over(pairs.DECODE, pairs.DECODED)),
        e2e=resamples.estimate(_over(pairs.E2E, pairs.CALLS)),
        ttft=resamples.estimate(_over(pairs.TTFT, pairs.TTFTS)),
        cost=resamples.estimate(_over(pairs.USD, pairs.PAID)),
        output_tokens_per_second=_throughputs(run, resamples),
    )
    carrier: Literal["tpot", "e2e"] = "e2e" if ratios.tpot is None else "tpot"
    columns = (pairs.E2E, pairs.CALLS) if carrier == "e2e" else (pairs.DECODE, pairs.DECODED)
    interval = resamples.estimate(_over(*columns), 1 - (1 - CONFIDENCE) / judged)
    return Group(
        category=category,
        prompts=resamples.prompts,
        pairs=len(first) if run.paired else 0,
        pools=(_pool(run, 0, category, first, resamples), _pool(run, 1, category, second, resamples)),
        ratios=ratios,
        carrier=carrier,
        judged=interval,
        finding=finding(interval, ratios.e2e if _same_length(resamples.totals) else None, precision),
    )


def finding(interval: Estimate | None, e2e: Estimate | None, precision: float) -> Finding:
    """Judge the ratio that carries the verdict; a proven loss of E2E outweighs it, since callers wait for that."""
    if interval is None or interval.low is None or interval.high is None:
        return "few"
    if interval.low > 1 + precision or (e2e is not None and e2e.low is not None and e2e.low > 1 + precision):
        return "loss"
    if 1 - precision <= interval.low and interval.high <= 1 + precision:
        return "even"
    if interval.high < 1:
        return "gain"
    return "loss" if interval.low > 1 else "unclear"


def more_repeats_help(run: pairs.Run, category: str, kind: Literal["tpot", "e2e"], *, over: float) -> bool:
    """Whether repetitions alone could narrow a ratio's interval by the factor `over`: how far it is above what is wanted."""
    tops, bottoms = _by_prompt(run, category, kind)
    if len(tops) < FEWEST_PROMPTS:
        return False
    share = noise_share(tops, bottoms)
    return share is None or over * (1 - share) ** 0.5 <= 1


def _by_prompt(run: pairs.Run, category: str, kind: Literal["tpot", "e2e"]) -> tuple[list[Floats], list[Floats]]:
    found: dict[pairs.Prompt, tuple[list[float], list[float]]] = {}
    for halves in zip(*pairs.members(run, category), strict=True):
        seconds = [half.e2e_seconds if kind == "e2e" else _decode_seconds(half) for half in halves]
        if all(seconds):
            lists = found.setdefault((halves[0].line, halves[0].id), ([], []))
            lists[0].append(seconds[1])
            lists[1].append(seconds[0])
    return [np.array(top) for top, _ in found.values()], [np.array(low) for _, low in found.values()]


def _decode_seconds(sample: Sample) -> float:
    return (sample.tpot_seconds or 0.0) * ((sample.completion_tokens or 1) - 1)


def _pool(run: pairs.Run, half: int, category: str, calls: Sequence[Sample], resamples: Resamples) -> Pool:
    name = run.names[half]
    one = partial(_mean, half=half)
    return Pool(
        name=name,
        calls=len(calls),
        failed=sum(category in ("", sample.category) for sample in run.failed[name]),
        completion_tokens=sum(sample.completion_tokens or 0 for sample in calls),
        ttft_seconds=_with(resamples.estimate(one(pairs.TTFT, pairs.TTFTS)), (sample.ttft_seconds for sample in calls)),
        tpot_seconds=_with(
            resamples.estimate(one(pairs.DECODE, pairs.DECODED)), (sample.tpot_seconds for sample in calls)
        ),
        e2e_seconds=_with(resamples.estimate(one(pairs.E2E, pairs.CALLS)), (sample.e2e_seconds for sample in calls)),
        output_tokens_per_second=_throughput(run, half, resamples),
        acceptance_length=resamples.estimate(one(pairs.STEPPED, pairs.STEPS)),
        usd_per_million_output_tokens=_scaled(resamples.estimate(one(pairs.USD, pairs.PAID)), 1e6),
    )


def _throughput(run: pairs.Run, half: int, resamples: Resamples) -> Estimate | None:
    """Return tokens per second of the pool: of one call, times the calls under way at once (Little's law)."""
    level = _level(run, half)
    return None if level is None else _scaled(resamples.estimate(_mean(pairs.TOKENS, pairs.E2E, half=half)), level)


def _throughputs(run: pairs.Run, resamples: Resamples) -> Estimate | None:
    first, second = (_level(run, half) for half in (0, 1))
    if first is None or second is None:
        return None
    return _scaled(resamples.estimate(_over(pairs.TOKENS, pairs.E2E)), second / first)


def _level(run: pairs.Run, half: int) -> float | None:
    calls = list(run.whole[run.names[half]].values())
    return pairs.reached(calls) if calls else None


def _mean(top: int, bottom: int, *, half: int) -> Callable[[Floats], Floats]:
    at = half * pairs.COLUMNS
    return lambda sums: sums[..., at + top] / sums[..., at + bottom]


def _over(top: int, bottom: int) -> Callable[[Floats], Floats]:
    first, second = _mean(top, bottom, half=0), _mean(top, bottom, half=1)
    return lambda sums: second(sums) / first(sums)


def _scaled(found: Estimate | None, by: float) -> Estimate | None:
    if found is None:
        return None
    ends = (None if end is None else end * by for end in (found.low, found.high))
    return Estimate(found.value * by, *ends)


def _with(found: Estimate | None, values: Iterable[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    if found is None or not known:
        return found
    p50, p95 = (float(value) for value in np.percentile(known, (50, 95)))
    return msgspec.structs.replace(found, p50=p50, p95=p95)


def _same_length(totals: Floats) -> bool:
    first = totals[pairs.TOKENS] / totals[pairs.CALLS]
    second = totals[pairs.COLUMNS + pairs.TOKENS] / totals[pairs.COLUMNS + pairs.CALLS]
    return bool(first) and abs(second / first - 1) <= _SAME_LENGTH


def _empty(run: pairs.Run, category: str, first: Sequence[Sample], second: Sequence[Sample]) -> Group:
    pools = [
        Pool(
            name=name,
            calls=len(calls),
            failed=sum(category in ("", sample.category) for sample in run.failed[name]),
            completion_tokens=sum(sample.completion_tokens or 0 for sample in calls),
        )
        for name, calls in zip(run.names, (first, second), strict=True)
    ]
    return Group(
        category=category,
        prompts=0,
        pairs=0,
        pools=(pools[0], pools[1]),
        ratios=Ratios(),
        carrier="tpot",
        judged=None,
        finding="few",
    )
