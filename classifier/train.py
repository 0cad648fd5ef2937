"""Trains an artefact from measured requests, the same bytes for the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from classifier.calibrate import calibrated, folds, left_out, ranks
from classifier.dataset import Row, digest, sample_of
from classifier.judge import calibration, judge
from classifier.model import Floats, Sample, Settings, fit
from classifier.weights import Weights

LARGEST = 8000  # rows fitted at once; memory and time grow with the square and the cube
DRAFTER = {
    "kind": "draft_model",
    "draft": "SmolLM2-135M-Instruct",
    "window": 7,
    "ngram": "prompt lookup, 4 down to 2 tokens",
}
SEED = 20240229  # any number; written into the artefact


def train(rows: Sequence[Row], *, settings: Settings | None = None, seed: int = SEED) -> tuple[Weights, dict[str, Any]]:
    """Weights and their description."""
    settings = settings or Settings()
    sample = thinned(sample_of(rows), seed)
    predicted = left_out(sample, settings, folds(sample, 5, seed=seed), seed=seed)
    weights = calibrated(fit(sample, settings, seed=seed), sample, predicted)
    about = {
        "drafter": DRAFTER,
        "seed": seed,
        "data": {
            "rows": int((~sample.own).sum()),
            "own_rows": int(sample.own.sum()),
            "sources": dict(sorted(Counter(row.source for row in rows if not row.own).items())),
            "sha256": digest(rows),
        },
        "settings": {name: getattr(settings, name) for name in settings.__slots__},
        "metrics": {"cross_validated_by_prompt": metrics(weights, sample, predicted)},
    }
    return weights, about


def thinned(sample: Sample, seed: int) -> Sample:
    """At most LARGEST rows, drawn evenly over sources; the project's own rows stay."""
    if len(sample) <= LARGEST:
        return sample
    others = np.flatnonzero(~sample.own)
    room = max(1, LARGEST - int(sample.own.sum()))
    sizes = Counter(sample.sources[others].tolist())
    chance = np.array([1.0 / np.sqrt(sizes[s]) for s in sample.sources[others].tolist()])
    chosen = np.random.default_rng(seed).choice(others, room, replace=False, p=chance / chance.sum())
    return sample.take(np.sort(np.concatenate((chosen, np.flatnonzero(sample.own)))))


def metrics(weights: Weights, sample: Sample, predicted: Floats) -> dict[str, Any]:
    """What the predictions left out are worth, rounded: this stands in the artefact."""
    rows = np.flatnonzero(np.isfinite(predicted[:, 0]))
    logs, tokens = sample.targets[rows, 0], np.exp(sample.targets[rows, 2])
    found = judge(np.exp(logs), np.exp(predicted[rows, 0]), tokens)
    scores = np.interp(predicted[rows, 0], weights.knots[:, 0], weights.knots[:, 1])
    found["calibration_error"] = max(part["error"] for part in calibration(scores, ranks(logs, logs)))
    rounded: dict[str, Any] = _round(found)
    return rounded


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
