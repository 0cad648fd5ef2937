"""Measures of a prediction: order, level, calibration, and the decode time that routing by it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BREAK_EVENS = (1.6, 2.0, 2.33, 3.0)  # the lower three are seen on GPUs and Trainium2; the last is a slow step
PRICES = (1.6, 2.33, 3.0)  # R: time of a speculative step over that of a baseline step


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[inverse], np.float64)


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation; None where one side is constant or there are fewer than three."""
    if len(a) < 3:
        return None
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def auc(positive: npt.NDArray[np.bool_], predicted: Floats) -> float | None:
    """The chance that a positive is predicted above a negative; None where there are none of one kind."""
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return None
    return (float(_ranks(predicted)[positive].sum()) - hits * (hits - 1) / 2.0) / (hits * misses)


def r_squared(observed: Floats, predicted: Floats) -> float | None:
    """Explained share of the variance; None where there is no variance."""
    total = float(((observed - observed.mean()) ** 2).sum())
    return 1.0 - float(((observed - predicted) ** 2).sum()) / total if total > 0 else None


def calibration(scores: Floats, quantiles: Floats) -> list[dict[str, float]]:
    """Ten equal groups along the score: mean score, mean observed quantile, their difference, rows."""
    parts = [part for part in np.array_split(np.argsort(scores, kind="stable"), 10) if part.size]
    return [
        {
            "score": float(scores[part].mean()),
            "observed": float(quantiles[part].mean()),
            "error": float(abs(scores[part].mean() - quantiles[part].mean())),
            "rows": float(part.size),
        }
        for part in parts
    ]


def decision(lengths: Floats, predicted: Floats, tokens: Floats, price: float) -> dict[str, float | None]:
    """Decode time relative to always-baseline when requests predicted above `price` speculate, and the part of the gap closed.

    A request on the speculative pool takes price / m of its baseline decode time and weighs by its output tokens. The gap lies
    between the better constant policy and the oracle that knows m.
    """
    total = float(tokens.sum())
    speculative = tokens * price / lengths
    always = float(speculative.sum()) / total
    oracle = float(np.minimum(tokens, speculative).sum()) / total
    policy = float(np.where(predicted > price, speculative, tokens).sum()) / total
    best = min(1.0, always)
    closed = (best - policy) / (best - oracle) if best - oracle > 1e-12 else None
    return {"policy": policy, "baseline": 1.0, "speculative": always, "oracle": oracle, "gap_closed": closed}


def judge(lengths: Floats, predicted: Floats, tokens: Floats) -> dict[str, Any]:
    """All measures of predicted acceptance lengths against measured ones; both in tokens per step."""
    logs, guesses = np.log(lengths), np.log(predicted)
    return {
        "rows": len(lengths),
        "spearman": spearman(logs, guesses),
        "r_squared": r_squared(logs, guesses),
        "bias": float((guesses - logs).mean()),
        "auc": {f"{bound:g}": auc(lengths > bound, guesses) for bound in BREAK_EVENS},
        "decision": {f"{price:g}": decision(lengths, predicted, tokens, price) for price in PRICES},
    }


def by_source(sources: Sequence[str], lengths: Floats, predicted: Floats, tokens: Floats) -> dict[str, dict[str, Any]]:
    """The same for every source alone, and its mean length, measured and predicted."""
    names = np.asarray(sources)
    found = {}
    for name in sorted(set(sources)):
        rows = np.flatnonzero(names == name)
        found[str(name)] = judge(lengths[rows], predicted[rows], tokens[rows]) | {
            "mean_measured": float(lengths[rows].mean()),
            "mean_predicted": float(predicted[rows].mean()),
        }
    return found
