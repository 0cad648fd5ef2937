"""Scores requests with numpy alone; the only module of this package that a gateway imports.

Owns serving. Refuses to raise: whatever `View.of` made of a request gets a score.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from classifier.view import View

__all__ = ["ArtefactError", "Contribution", "Score", "Scorer", "View"]

SHIPPED = Path(__file__).parent / "model" / "artefact.json"
_WORD = re.compile(r"\w\w+")


class ArtefactError(Exception):
    """An artefact that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a request promises: `value` is a calibrated quantile in [0, 1] of the reference distribution.

    Acceptance lengths are tokens per verification step at window 7, at least 1; `spread` is the standard deviation of
    the log acceptance length; `output_tokens` is the expected number of completion tokens.
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

    def __init__(self, content: dict[str, object], version: str) -> None:
        self._words: dict[str, list[float]] = content["words"]  # type: ignore[assignment]
        self._bias: list[float] = content["bias"]  # type: ignore[assignment]
        self._knots: list[float] = content["knots"]  # type: ignore[assignment]
        self._spread = float(content["spread"])  # type: ignore[arg-type]
        self.prior_curve: tuple[float, ...] = tuple(content["prior_curve"])  # type: ignore[arg-type]
        self.version = version

    @classmethod
    def load(cls, path: Path | None = None) -> Scorer:
        """Read an artefact (None: the shipped one); raises ArtefactError saying what to do."""
        try:
            raw = (path or SHIPPED).read_bytes()
            return cls(json.loads(raw), hashlib.sha256(raw).hexdigest()[:12])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"cannot use {path or SHIPPED}: {error}; retrain it with `python -m classifier train`") from error

    def score(self, view: View) -> Score:
        """Predict; never raises."""
        found = [self._words[w] for w in set(_WORD.findall(view.user.lower())) if w in self._words]
        scale = 1 / math.sqrt(len(found) or 1)
        log_m, log_n, log_out = (b + scale * sum(f[i] for f in found) for i, b in enumerate(self._bias))
        value = bisect.bisect_left(self._knots, log_m) / len(self._knots)
        return Score(value, max(1.0, math.exp(log_m)), self._spread, max(1.0, math.exp(log_n)), math.exp(log_out))

    def explain(self, view: View, top: int = 8) -> list[Contribution]:
        """The features that moved this prediction most, by absolute effect in log acceptance length."""
        found = [w for w in dict.fromkeys(_WORD.findall(view.user.lower())) if w in self._words]
        scale = 1 / math.sqrt(len(found) or 1)
        moved = [Contribution(f"word:{w}", 1.0, scale * self._words[w][0]) for w in found]
        return sorted(moved, key=lambda c: -abs(c.effect))[:top]
