"""Fits weights to measured requests: ranking first, level second, spread and calibration from what was left out.

The ranking is a kernel ridge on cues, words and likeness. Sources are weighted by one over the root of their size, and the
level of each source and target is a random effect that is left behind: what a writer's habits add is not the prompt's doing.
A second ridge on the residuals, without random effects, puts back what of the level the prompt does tell. An acceptance length
is a mean over the steps of one answer, so that of a short answer is known less well and counts less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from classifier.features import BUCKETS
from classifier.weights import CLIP, FINE, STEPS, Weights

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How strongly each part is believed; chosen on sources left out."""

    prototypes: int = 2000
    width: float = 1.5
    cues: float = 0.3  # share of the linear part against likeness
    words: float = 0.5  # share of the words
    ridge: float = 0.3
    doubt: float = 30.0  # steps of an answer whose measured length is half chance; shorter ones count less
    level: float = 0.03  # variance of the random effect of a source and target
    local: float = 0.6  # how much of the level is put back
    seed_share: float = 0.5  # weight of the project's own measured requests


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured requests with their labels: cues (n, c), words per row, targets (n, 3), and who and where each comes from."""

    cues: Floats
    words: Sequence[Indices]
    targets: Floats
    sources: npt.NDArray[np.str_]
    writers: npt.NDArray[np.str_]  # source and target
    prompts: npt.NDArray[np.str_]  # rows of the same prompt never part in cross-validation
    own: npt.NDArray[np.bool_]  # of the project's own seed

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: Indices) -> Sample:
        """The sample reduced to `rows`."""
        words = [self.words[i] for i in rows]
        return Sample(
            self.cues[rows],
            words,
            self.targets[rows],
            self.sources[rows],
            self.writers[rows],
            self.prompts[rows],
            self.own[rows],
        )


def balance(sources: npt.NDArray[np.str_], power: float = 0.5) -> Floats:
    """Weights that give a source of n rows the total n ** (1 - power); mean one."""
    sizes = Counter(sources.tolist())
    weights = np.array([sizes[s] ** -power for s in sources.tolist()])
    balanced: Floats = weights / weights.mean()
    return balanced


@dataclass(frozen=True, slots=True)
class _Design:
    """Features of n requests, the dense apart from the sparse."""

    dense: Floats
    words: sparse.csr_matrix

    def gram(self) -> Floats:
        """Likeness of every request to every other: (n, n)."""
        return np.asarray(self.dense @ self.dense.T + (self.words @ self.words.T).toarray())

    def carry(self, dual: Floats) -> Floats:
        """Weights of requests as weights of features."""
        return np.vstack((self.dense.T @ dual, self.words.T @ dual))


@dataclass(frozen=True, slots=True)
class _Basis:
    """What is learned of requests without their labels, and what turns requests into rows of features."""

    centre: Floats
    scale: Floats
    rarity: Floats
    prototypes: Floats
    root: Floats  # Cholesky factor of the prototypes' likeness to each other
    settings: Settings

    @classmethod
    def of(cls, sample: Sample, settings: Settings, seed: int) -> _Basis:
        """Means, deviations, rarities and prototypes of a sample."""
        weights = balance(sample.sources)
        centre = np.average(sample.cues, axis=0, weights=weights)
        deviation = np.sqrt(np.average((sample.cues - centre) ** 2, axis=0, weights=weights))
        scale = np.where(deviation > 1e-3, 1.0 / np.maximum(deviation, 0.02), 0.0)
        z = np.clip((sample.cues - centre) * scale, -CLIP, CLIP)
        count = min(settings.prototypes, len(sample))
        chance = balance(sample.sources, 0.25)
        chosen = np.random.default_rng(seed).choice(len(sample), count, replace=False, p=chance / chance.sum())
        prototypes = np.round(z[np.sort(chosen)] * STEPS) / STEPS
        near = _likeness(prototypes, prototypes, settings.width, scale) + 1e-6 * np.eye(count)
        return cls(
            centre, scale, _rarity(sample.words), prototypes, np.asarray(np.linalg.cholesky(near), np.float64), settings
        )

    def design(self, sample: Sample) -> _Design:
        """Rows of features: cues and whitened likenesses, and words, each scaled by its share."""
        z = np.clip((sample.cues - self.centre) * self.scale, -CLIP, CLIP)
        near = _likeness(np.rint(z * FINE) / FINE, self.prototypes, self.settings.width, self.scale)
        white = solve_triangular(self.root, near.T, lower=True).T
        alive = _alive(self.scale)
        words = _bags(sample.words, self.rarity)
        dense = np.hstack((z * np.sqrt(self.settings.cues / alive), white))
        return _Design(dense, words * np.sqrt(self.settings.words))

    def weights(self, bias: Floats, beta: Floats) -> dict[str, Floats]:
        """Coefficients of the design as the parts of `Weights`."""
        c, p = self.centre.size, len(self.prototypes)
        alive = _alive(self.scale)
        return {
            "centre": self.centre,
            "scale": self.scale,
            "rarity": self.rarity,
            "prototypes": self.prototypes,
            "width": np.array([self.settings.width]),
            "bias": bias,
            "cues": beta[:c] * np.sqrt(self.settings.cues / alive),
            "likeness": solve_triangular(self.root, beta[c : c + p], lower=True, trans="T"),
            "words": beta[c + p :] * np.sqrt(self.settings.words),
        }


def _alive(scale: Floats) -> int:
    """How many cues ever varied, at least one."""
    return int(np.count_nonzero(scale)) or 1


def _likeness(a: Floats, b: Floats, width: float, scale: Floats) -> Floats:
    apart = (a * a).sum(axis=1)[:, None] - 2.0 * a @ b.T + (b * b).sum(axis=1)
    near: Floats = np.exp(np.maximum(apart, 0.0) * (-width / _alive(scale)))
    return near


def _rarity(words: Sequence[Indices]) -> Floats:
    """Inverse document frequency of each bucket; 0 for what occurs in one request only, which tells nothing of others."""
    seen = np.bincount(np.concatenate([*words, np.zeros(0, np.intp)]), minlength=2 * BUCKETS)
    return np.where(seen >= 2, 1.0 + np.log((1.0 + len(words)) / (1.0 + seen)), 0.0)


def _bags(words: Sequence[Indices], rarity: Floats) -> sparse.csr_matrix:
    """Rows of rarities of the words present, each of length one."""
    ends = np.cumsum([0, *(len(row) for row in words)])
    columns = np.concatenate([*words, np.zeros(0, np.intp)])
    bags = sparse.csr_matrix((rarity[columns], columns, ends), shape=(len(words), rarity.size))
    length = np.sqrt(np.asarray(bags.multiply(bags).sum(axis=1)).ravel())
    return sparse.diags(1.0 / np.where(length > 0, length, 1.0)) @ bags


def _coefficients(sample: Sample, design: _Design, settings: Settings) -> tuple[Floats, Floats]:
    """Bias (3) and coefficients (d, 3): lengths are trusted by the steps they were measured in, output in full."""
    gram = design.gram()
    steps = np.exp(sample.targets[:, 2] - sample.targets[:, 0])
    trust = 1.0 / (1.0 + settings.doubt / steps)
    lengths, length_duals = _duals(sample, gram, sample.targets[:, :2], trust, settings)
    output, output_duals = _duals(sample, gram, sample.targets[:, 2:], np.ones_like(steps), settings)
    return np.concatenate((lengths, output)), design.carry(np.hstack((length_duals, output_duals)))


def _duals(sample: Sample, gram: Floats, targets: Floats, trust: Floats, settings: Settings) -> tuple[Floats, Floats]:
    """Bias (h) and weights of requests (n, h): ranking with the levels of writers left behind, then the level put back."""
    seed = np.where(sample.own, settings.seed_share, 1.0)
    weights = balance(sample.sources) * seed * trust
    bias = np.average(targets, axis=0, weights=weights)
    same = sample.writers[:, None] == sample.writers[None]
    alone = gram + np.diag(settings.ridge / weights) + settings.level * same
    dual: Floats = cho_solve(cho_factor(alone, overwrite_a=True), targets - bias)
    if settings.local > 0.0:
        # Here large sources count nearly in full: it is their traffic whose level is to be met.
        local = balance(sample.sources, 0.25) * np.where(sample.own, min(0.1, settings.seed_share), 1.0) * trust
        rest = targets - bias - gram @ dual
        dual = dual + settings.local * cho_solve(
            cho_factor(gram + np.diag(settings.ridge / local), overwrite_a=True), rest
        )
    return bias, dual


def fit(sample: Sample, settings: Settings, *, seed: int) -> Weights:
    """Weights for a sample, uncalibrated: the score is a placeholder and the spread one constant.

    Deterministic in `seed`, and on one thread, so that sums add up in one order.
    """
    with threadpool_limits(limits=1):
        basis = _Basis.of(sample, settings, seed)
        parts = basis.weights(*_coefficients(sample, basis.design(sample), settings))
    plain = {
        "noise": np.zeros(sample.cues.shape[1] + 2),
        "knots": np.array([[0.0, 0.0], [2.08, 1.0]]),
        "curve": np.ones(10),
    }
    return Weights(**{name: rounded(part) for name, part in (parts | plain).items()})


def rounded(part: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    """Single precision, six significant digits, and nothing a billion times smaller than the largest number.

    What is left does not depend on the order in which a BLAS adds.
    """
    part = np.where(np.abs(part) < 1e-9 * np.max(np.abs(part), initial=0.0), 0.0, part)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.where(part == 0.0, 0.0, 5 - np.floor(np.log10(np.abs(part))))
    step = 10.0 ** np.clip(digits, -30, 30)
    return (np.round(part * step) / step).astype(np.float32)
