"""Spread, score and curve, learned from predictions for requests that the weights did not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import Ridge

from classifier.model import Floats, Indices, Sample, Settings, balance, fit, rounded
from classifier.weights import CEILING, Weights

Names = npt.NDArray[np.str_]
GROUPS = 24  # of equal size, along the prediction; enough to bend, too few to follow noise
_LOG_OF_HALF_NORMAL = -0.635  # E log|x| of a standard normal x
_TILT = 1e-4  # keeps the score strictly increasing where the reference data are flat


def folds(sample: Sample, count: int, *, seed: int) -> list[Indices]:
    """Rows to leave out, `count` times, prompts kept whole; the project's own rows are never left out."""
    return dealt(sample.prompts, ~sample.own, count, seed=seed)


def dealt(names: Names, among: npt.NDArray[np.bool_], count: int, *, seed: int) -> list[Indices]:
    """The rows `among` all in `count` parts, those of one name together."""
    known = np.unique(names[among])
    part = dict(zip(known.tolist(), np.random.default_rng(seed).permutation(len(known)) % count, strict=True))
    of = np.array([part[name] if one else -1 for name, one in zip(names.tolist(), among.tolist(), strict=True)])
    return [np.flatnonzero(of == k) for k in range(count)]


def left_out(
    sample: Sample, settings: Settings, parts: list[Indices], *, seed: int, taught: Indices | None = None
) -> Floats:
    """Predictions (n, 3) for each part by weights fitted on the rest, or on `taught` of it; nan where a row is in no part."""
    found = np.full((len(sample), 3), np.nan)
    taught = np.arange(len(sample)) if taught is None else taught
    for part in parts:
        if not part.size:
            continue
        rest = np.setdiff1d(taught, part)
        found[part] = apply(fit(sample.take(rest), settings, seed=seed), sample.take(part))
    return found


def apply(weights: Weights, sample: Sample) -> Floats:
    """Heads (n, 3) for a sample, within the bounds that serving keeps."""
    z = weights.standardise(sample.cues)
    heads = np.tile(weights.bias.astype(np.float64), (len(sample), 1)) + z @ weights.cues
    for row, words in enumerate(sample.words):
        rarity = weights.rarity[words]
        norm = 1.0 / np.sqrt(float(rarity @ rarity) or 1.0)
        heads[row] += norm * (rarity @ weights.words[words]) + weights.liken(z[row]) @ weights.likeness
    return np.clip(heads, 0.0, [CEILING, CEILING, 12.0])


def ranks(values: Floats, reference: Floats) -> Floats:
    """Mid-quantiles of `values` in the distribution of `reference`."""
    ordered = np.sort(reference)
    low, high = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return (low + high) / (2.0 * len(ordered))


def _grouped(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Means of x and y in groups along x, y made monotone."""
    order = np.argsort(x, kind="stable")
    parts = [part for part in np.array_split(order, min(GROUPS, max(2, len(x) // 8))) if part.size]
    middle = np.array([x[part].mean() for part in parts])
    model = IsotonicRegression().fit(middle, [y[part].mean() for part in parts], [part.size for part in parts])
    return middle, np.asarray(model.predict(middle), np.float64)


def knots(predicted: Floats, observed: Floats) -> Floats:
    """The map from predicted log length to expected quantile of the observed one: (k, 2), increasing."""
    middle, level = _grouped(predicted, ranks(observed, observed))
    low, high = level[0] * 0.5, (1.0 + level[-1]) / 2.0
    x = np.concatenate(([0.0], middle, [max(CEILING, middle[-1])]))
    y = np.concatenate(([low], level, [high])) + _TILT * np.arange(len(x))
    x, keep = np.unique(x, return_index=True)
    return np.column_stack((x, np.clip(y[keep], 0.0, 1.0)))


def curve(scores: Floats, lengths: Floats) -> Floats:
    """Mean acceptance length at the scores .05, .15 … .95, increasing, between 1 and 8."""
    middle, level = _grouped(scores, lengths)
    ends = (np.concatenate(([0.0], middle, [1.0])), np.concatenate(([1.0], level, [max(8.0, level[-1])])))
    return np.clip(np.interp(np.arange(10) / 10 + 0.05, *ends), 1.0, 8.0)


def spread(z: npt.NDArray[np.float32], predicted: Floats, residuals: Floats, weights: Floats) -> Floats:
    """Coefficients of the log spread: constant, slope in the prediction, cues; scaled so that squared ratios average 1."""
    target = np.log(np.abs(residuals) + 0.01) - _LOG_OF_HALF_NORMAL
    rows = np.column_stack((predicted * 5.0, z))  # the prediction is shrunk less than a cue
    model = Ridge(alpha=1000.0).fit(rows, target, sample_weight=weights)
    logs = model.predict(rows)
    mend = 0.5 * np.log(np.average((residuals / np.exp(logs)) ** 2, weights=weights))
    return np.concatenate(([model.intercept_ + mend, model.coef_[0] * 5.0], model.coef_[1:]))


def calibrated(weights: Weights, sample: Sample, predicted: Floats) -> Weights:
    """The weights with score, curve and spread from predictions that were left out; rows with nan are not used."""
    rows = np.flatnonzero(np.isfinite(predicted[:, 0]))
    length, observed = predicted[rows, 0], sample.targets[rows, 0]
    noise = spread(weights.standardise(sample.cues[rows]), length, observed - length, balance(sample.sources[rows]))
    bends = rounded(knots(length, observed))
    found = replace(weights, noise=rounded(noise), knots=bends)
    scores = np.interp(length, bends[:, 0], bends[:, 1])
    return replace(found, curve=rounded(curve(scores, np.exp(observed))))
