"""The scorer's arithmetic, compiled, where the C module was built; otherwise numpy does the same.

`classifier/native` says in C what `features.measure` and `Weights.predict` say in numpy, and tests hold both to the same
numbers. Numpy's small calls cost one to two microseconds each and a request needs some seventy; compiled, it is one call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from classifier.features import Measured, lexicon_arrays
from classifier.weights import KERNEL_ARRAYS, Prediction, Weights

try:
    from classifier._native import Kernel as Compiled
except ImportError:  # no C compiler where the package was installed, or another platform's build
    Compiled = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from classifier.view import View

AVAILABLE = Compiled is not None


class Kernel:
    """Measures requests and applies weights to them; `of` is how to get one."""

    __slots__ = ("_context", "_measure", "_predict")

    def __init__(self, compiled: Compiled) -> None:
        self._measure = compiled.measure
        self._predict = compiled.predict
        self._context = lru_cache(maxsize=256)(compiled.context)  # system prompts repeat

    @classmethod
    def of(cls, weights: Weights) -> Kernel | None:
        """The compiled arithmetic for these weights; None where there is none, or where they do not fit its grid."""
        if Compiled is None:
            return None
        parts = tuple(np.ascontiguousarray(getattr(weights, name), np.float32) for name in KERNEL_ARRAYS)
        try:
            return cls(Compiled(lexicon_arrays(), parts, weights.decay))
        except ValueError:  # weights of an earlier release, whose prototypes are on no grid
            return None

    def heads(self, view: View) -> tuple[float, float, float, float, float]:
        """Log length, log n-gram length, log output tokens, spread and score of a request."""
        context = self._context(view.system) if view.system else None
        return self._predict(view, context)

    def predict(self, view: View) -> tuple[Prediction, float]:
        """The prediction for a request and its score."""
        *found, score = self.heads(view)
        return Prediction(*found), score

    def measure(self, view: View) -> Measured:
        """The features of a request, the same numbers that numpy finds."""
        context = self._context(view.system) if view.system else None
        cues, words = self._measure(view, context)
        return Measured(np.frombuffer(cues, np.float64), np.array(words, np.intp))
