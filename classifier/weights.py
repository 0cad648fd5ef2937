"""The numbers that a scorer applies to a request, and how it applies them: pure numpy, no training.

A prediction is a sum of four parts per head: a bias, the standardised cues, the hashed words (inverse document frequency,
length one) and the likeness to a few hundred prototypes in the space of cues. The heads are the logarithms of acceptance
length with a draft model, of acceptance length with prompt lookup, and of completion tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from classifier.features import Measured

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]
HEADS = ("log_acceptance_length", "log_ngram_acceptance_length", "log_output_tokens")
CLIP = 3.0  # standard deviations; a cue far outside of what was seen says no more than that
# Steps, in a standard deviation, of the grids on which prototypes lie and requests are put to be compared with them: a byte
# holds each cue of a prototype and sixteen bits one of a request, so that compiled products are exact and cheap.
STEPS, FINE = 32, 512
CEILING = math.log(8.0)  # window 7 yields at most eight tokens a step


@dataclass(frozen=True, slots=True)
class Prediction:
    """Log acceptance length (draft model, n-gram), log completion tokens, and the spread of the first."""

    log_length: float
    log_ngram: float
    log_output: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Everything learned, as arrays: c cues, w word buckets, p prototypes, three heads."""

    centre: Array  # (c)
    scale: Array  # (c) one over the standard deviation; 0 where a cue never varied
    rarity: Array  # (w) inverse document frequency
    prototypes: Array  # (p, c) standardised cues
    width: Array  # (1) likeness = exp(-width * mean squared distance)
    bias: Array  # (3)
    cues: Array  # (c, 3)
    words: Array  # (w, 3)
    likeness: Array  # (p, 3)
    noise: Array  # (c + 2) log spread: constant, slope in the predicted log length, cues
    knots: Array  # (k, 2) predicted log length, score
    curve: Array  # (10) mean acceptance length at score .05, .15 … .95
    _lengths: Array = field(init=False, repr=False)  # squared lengths of the prototypes, which every request needs
    decay: float = field(init=False, repr=False)  # of likeness with the squared distance

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lengths", (self.prototypes * self.prototypes).sum(axis=1))
        object.__setattr__(self, "decay", -float(self.width[0]) / (int(np.count_nonzero(self.scale)) or 1))

    def standardise(self, cues: Floats) -> Array:
        """Cues in standard deviations from their means, clipped, as precise as the weights; (c) or (n, c)."""
        z: Array = (cues.astype(self.centre.dtype) - self.centre) * self.scale
        return np.minimum(np.maximum(z, -CLIP, out=z), CLIP, out=z)

    def liken(self, z: Array) -> Array:
        """Likeness in (0, 1] of standardised cues to each prototype."""
        z = np.rint(z * np.float32(FINE)) / np.float32(FINE)
        apart = self._lengths - 2.0 * (self.prototypes @ z) + z @ z
        likeness: Array = np.exp(apart * self.decay)
        return likeness

    def parts(self, measured: Measured) -> tuple[Array, Array, float, Array]:
        """Standardised cues, rarities of the words present, one over their length, and likenesses."""
        z = self.standardise(measured.cues)
        rarity = self.rarity[measured.words]
        return z, rarity, 1.0 / math.sqrt(float(rarity @ rarity) or 1.0), self.liken(z)

    def predict(self, measured: Measured) -> Prediction:
        """Apply everything to one request."""
        z, rarity, norm, likeness = self.parts(measured)
        heads = self.bias + z @ self.cues + norm * (rarity @ self.words[measured.words]) + likeness @ self.likeness
        length, ngram, output = heads.tolist()
        length = min(CEILING, max(0.0, length))
        noise = self.noise[0] + self.noise[1] * length + z @ self.noise[2:]
        spread = math.exp(min(0.0, max(-3.5, float(noise))))
        return Prediction(length, min(CEILING, max(0.0, ngram)), min(12.0, max(0.0, output)), spread)

    def score(self, log_length: float) -> float:
        """The calibrated quantile in the reference distribution of a predicted log length."""
        return float(np.interp(log_length, self.knots[:, 0], self.knots[:, 1]))


ARRAYS = tuple(part.name for part in fields(Weights) if part.init)
# What the compiled arithmetic is given, in this order.
KERNEL_ARRAYS = ("centre", "scale", "rarity", "prototypes", "bias", "cues", "words", "likeness", "noise", "knots")
