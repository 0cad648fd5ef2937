"""Intervals by a bootstrap over prompts. Pure: the seed is an argument.

What is estimated is always a ratio of sums over calls (seconds per token, dollars per token, one pool's seconds to the
other's), so a resample of prompts is a vector of weights, and all estimates of a group come from one product of matrices.
Whole prompts are drawn, with all their repetitions and both pools' halves: repetitions of a prompt are no new prompts, and
what makes a prompt slow on one pool often does so on the other.

An interval is exp(log θ ± t·se·√(n/(n − 1))), se being the spread of log θ over the resamples and t Student's quantile for
n − 1 degrees of freedom: percentiles of the resamples alone are too narrow for few prompts (Hesterberg 2015, "What Teachers
Should Know About the Bootstrap", section 5.3), and the tails that many categories ask for need no more resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CONFIDENCE: Final = 0.95
FEWEST_PROMPTS: Final = 5  # below, a spread between prompts is a guess
DRAWS: Final = 2000
_CELLS: Final = 4_000_000  # weights held at a time: 32 MB


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure, the ends of its interval where prompts were enough for one, and percentiles over calls where it has some."""

    value: float
    low: float | None = None
    high: float | None = None
    p50: float | None = None
    p95: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval as a share of the figure."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / (2 * self.value)


class Resamples:
    """Sums over the calls of a group, and the same sums in each of many resamples of its prompts.

    Args:
        tables: of shape (prompts, columns), one row per prompt, summed over its repetitions. Tables that are given apart are
            drawn apart: two for runs that have no pairs, one where each row holds both halves of a pair.
        seed: of the draws; the same seed gives the same intervals.
        draws: how many resamples.
    """

    def __init__(self, tables: Sequence[Floats], *, seed: int, draws: int = DRAWS) -> None:
        chance = np.random.default_rng(seed)
        self.prompts = min(len(table) for table in tables)
        self.totals: Floats = np.concatenate([table.sum(axis=0) for table in tables])
        self.draws: Floats = (
            np.concatenate([_resampled(table, chance, draws) for table in tables], axis=1)
            if self.prompts >= FEWEST_PROMPTS
            else np.empty((0, len(self.totals)))
        )

    def estimate(self, figure: Callable[[Floats], Floats], confidence: float = CONFIDENCE) -> Estimate | None:
        """Return a positive figure with its interval; None where the calls do not tell it.

        `figure` maps sums of shape (…, columns) to shape (…).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(figure(self.totals))
            logs = np.log(figure(self.draws))
        if not (np.isfinite(value) and value > 0):
            return None
        logs = logs[np.isfinite(logs)]
        if self.prompts < FEWEST_PROMPTS or len(logs) < 0.9 * len(self.draws):
            return Estimate(value)
        spread = float(np.std(logs)) * (self.prompts / (self.prompts - 1)) ** 0.5
        reach = student(confidence, self.prompts - 1) * spread
        return Estimate(value, value * float(np.exp(-reach)), value * float(np.exp(reach)))


def student(confidence: float, freedom: int) -> float:
    """Return Student's two-sided quantile, by the expansion about the normal one (Abramowitz and Stegun 26.7.5).

    Within 0.3 % from four degrees of freedom on at 95 %.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((term / float(freedom) ** power for power, term in enumerate(terms, 1)), 0.0)


def noise_share(tops: Sequence[Floats], bottoms: Sequence[Floats]) -> float | None:
    """Return which share of a ratio's variance is noise that more repetitions would average out.

    Each array holds the repetitions of one prompt; the ratio is that of all tops to all bottoms. None where no prompt was
    repeated. The rest of the variance lies between prompts, and only more prompts reduce it.
    """
    bottom = sum(float(each.sum()) for each in bottoms)
    if len(tops) < FEWEST_PROMPTS or not bottom or not any(len(each) > 1 for each in tops):
        return None
    ratio = sum(float(each.sum()) for each in tops) / bottom
    residuals = [top - ratio * low for top, low in zip(tops, bottoms, strict=True)]
    whole = float(np.var([float(each.sum()) for each in residuals], ddof=1)) * len(residuals)
    repeated = [each for each in residuals if len(each) > 1]
    within = sum(len(each) * float(np.var(each, ddof=1)) for each in repeated) * len(residuals) / len(repeated)
    return min(1.0, within / whole) if whole > 0 else 1.0


def _resampled(table: Floats, chance: np.random.Generator, draws: int) -> Floats:
    prompts = len(table)
    share = np.full(prompts, 1 / prompts)
    step = max(1, _CELLS // prompts)
    parts = [chance.multinomial(prompts, share, size=min(step, draws - done)) @ table for done in range(0, draws, step)]
    return np.concatenate(parts)
