"""Scores requests, compiled or with numpy alone; the only module of this package that a gateway imports.

Owns serving. Refuses to raise: whatever `View.of` made of a request gets a score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from classifier.artifact import ArtefactError, digest_of, load
from classifier.features import NAMES, Measured, buckets_of, measure
from classifier.kernel import Kernel
from classifier.view import View
from classifier.weights import Weights

__all__ = ["ArtefactError", "Contribution", "Score", "Scorer", "View"]

_LONGEST = 160_000.0  # tokens; e to the twelfth, where predictions of length end


class Score(msgspec.Struct, frozen=True):
    """What a request promises: `value` is a calibrated quantile in [0, 1] of the reference distribution.

    Of requests scored v, the measured acceptance length lies on average at the quantile v of the reference data. Acceptance
    lengths are tokens per verification step at window 7, at least 1; `spread` is the standard deviation of the log
    acceptance length; `output_tokens` is the expected number of completion tokens.
    """

    value: float
    acceptance_length: float
    spread: float
    ngram_acceptance_length: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Contribution:
    """One feature of a request, its value, and by how much it moved the log acceptance length."""

    name: str
    value: float
    effect: float


class Scorer:
    """An immutable model loaded from an artefact."""

    __slots__ = ("_kernel", "_weights", "about", "prior_curve", "version")

    def __init__(self, weights: Weights, about: dict[str, Any], version: str, *, compiled: bool = True) -> None:
        self._weights = weights
        self._kernel = Kernel.of(weights) if compiled else None
        self.about = about
        self.version = version
        self.prior_curve: tuple[float, ...] = tuple(weights.curve.tolist())

    def __repr__(self) -> str:
        return f"<Scorer {self.version} {self.prior_curve[0]:.1f}…{self.prior_curve[-1]:.1f}>"

    @classmethod
    def load(cls, path: Path | None = None) -> Scorer:
        """Read an artefact (None: the shipped one); raises ArtefactError saying what to do."""
        return cls(*load(path))

    def score(self, view: View) -> Score:
        """Predict; never raises."""
        if self._kernel is None:
            return self.score_measured(measure(view), view.max_tokens)
        length, ngram, output, spread, value = self._kernel.heads(view)
        return _told(length, ngram, output, spread, value, view.max_tokens)

    def score_measured(self, measured: Measured, max_tokens: float | None = None) -> Score:
        """Predict from features that were computed before."""
        found = self._weights.predict(measured)
        value = self._weights.score(found.log_length)
        return _told(found.log_length, found.log_ngram, found.log_output, found.spread, value, max_tokens)

    def features(self, view: View) -> dict[str, Any]:
        """The features of a request without its text, as own-traffic training accepts them."""
        measured = measure(view)
        cues = [round(value, 5) for value in measured.cues.tolist()]
        return {"digest": digest_of(), "cues": cues, "words": measured.words.tolist()}

    def explain(self, view: View, top: int = 8) -> list[Contribution]:
        """The features that moved this prediction most, by absolute effect on the log acceptance length.

        Effects are against the mean request of the reference data. "prototypes" is all that likeness to known requests adds
        beyond what an average request gets; it has no finer parts.
        """
        weights, measured = self._weights, measure(view)
        z, rarity, norm, likeness = weights.parts(measured)
        mean = weights.liken(np.zeros_like(z))
        effects = z * weights.cues[:, 0]
        found = [
            Contribution(name, value, effect)
            for name, value, effect in zip(NAMES, measured.cues.tolist(), effects.tolist(), strict=True)
        ]
        gain = norm * rarity * weights.words[measured.words, 0]
        words = _spelling(view.user)
        for bucket, effect in zip(measured.words.tolist(), gain.tolist(), strict=True):
            found.append(Contribution(f"word:{words.get(bucket, '…')}", 1.0, effect))
        found.append(
            Contribution("prototypes", float(likeness.max()), float((likeness - mean) @ weights.likeness[:, 0]))
        )
        moved = [item for item in found if item.effect != 0.0]
        return sorted(moved, key=lambda item: -abs(item.effect))[: max(0, top)]


def _told(length: float, ngram: float, output: float, spread: float, value: float, max_tokens: float | None) -> Score:
    """Logarithms as a score; no more tokens are expected than are allowed."""
    most = _LONGEST if max_tokens is None else max(1.0, max_tokens)
    return Score(value, math.exp(length), spread, math.exp(ngram), max(1.0, min(math.exp(output), most)))


def _spelling(text: str) -> dict[int, str]:
    """Buckets of a text's words and pairs, with one way to spell each; slow, for explanations only."""
    mask = "".join(
        (c.lower() if c.isascii() else c) if c in "_#+" or c.isalnum() or ord(c) > 127 else " " for c in text
    )
    words = [word for word in mask.split(" ") if word]
    found: dict[int, str] = {}
    for first, second in zip(words, [*words[1:], ""], strict=False):
        found.setdefault(buckets_of(first)[0], first)
        if second:
            found.setdefault(buckets_of(f"{first} {second}")[-1], f"{first} {second}")
    return found
