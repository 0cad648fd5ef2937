"""Simple predictors that the classifier must beat, each fitted on the same rows and judged on the same rows left out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from classifier.dataset import Row
from classifier.judge import spearman
from classifier.model import balance

Floats = npt.NDArray[np.float64]
Rival = Callable[[Sequence[Row], Sequence[Row]], Floats]
"""Given rows to learn from and rows to predict, predicted log acceptance lengths of the latter."""

# What a router made in an afternoon would look for.
_CATEGORIES = {
    "code": r"\b(code|function|python|javascript|java|sql|script|class|bug|regex)\b|```",
    "structure": r"\b(json|csv|yaml|xml|table|list|format|extract)\b",
    "maths": r"\b(calculate|solve|how many|equation|sum|percent|probability)\b",
    "translation": r"\b(translate|translation|german|french|spanish|russian|japanese)\b",
    "creative": r"\b(story|poem|song|creative|character|novel|joke)\b",
}


def _logs(rows: Sequence[Row]) -> Floats:
    return np.log([row.length for row in rows])


def constant(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """The mean."""
    return np.full(len(asked), _logs(known).mean())


def keywords(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """The mean of the first category whose keyword occurs."""
    kinds = [_category(row.text) for row in known]
    logs, mean = _logs(known), float(_logs(known).mean())
    level = {kind: float(logs[[i for i, k in enumerate(kinds) if k == kind]].mean()) for kind in set(kinds)}
    return np.array([level.get(_category(row.text), mean) for row in asked])


def _category(text: str) -> str:
    return next((kind for kind, words in _CATEGORIES.items() if re.search(words, text, re.IGNORECASE)), "chat")


def _monotone(measure: Callable[[str], float], known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """The best monotone function, rising or falling, of one number."""
    numbers, logs = np.array([measure(row.text) for row in known]), _logs(known)
    model = IsotonicRegression(increasing=(spearman(numbers, logs) or 0.0) >= 0.0, out_of_bounds="clip").fit(
        numbers, logs
    )
    return np.asarray(model.predict([measure(row.text) for row in asked]), np.float64)


def prompt_length(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """A monotone function of the prompt's length."""
    return _monotone(lambda text: float(len(text)), known, asked)


def zlib_ratio(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """A monotone function of how well the prompt compresses."""
    return _monotone(_ratio, known, asked)


def _ratio(text: str) -> float:
    raw = text.encode("utf-8", "replace")
    return len(zlib.compress(raw)) / max(1, len(raw))


def _words(known: Sequence[Row], asked: Sequence[Row]) -> tuple[sparse.csr_matrix, sparse.csr_matrix] | None:
    """TF-IDF of both; None where no word occurs twice in what is known."""
    vectoriser = TfidfVectorizer(sublinear_tf=True, min_df=2)
    try:
        learned = vectoriser.fit_transform([row.text for row in known])
    except ValueError:
        return None
    return learned, vectoriser.transform([row.text for row in asked])


def tfidf_ridge(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """Ridge on TF-IDF of words, the usual baseline of text regression."""
    if (words := _words(known, asked)) is None:
        return constant(known, asked)
    learned, given = words
    return np.asarray(Ridge(alpha=1.0).fit(learned, _logs(known)).predict(given), np.float64)


def words_and_cues(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """Ridge on TF-IDF of words and the classifier's own cues, standardised; sources weigh one over the root of their size."""
    if (words := _words(known, asked)) is None:
        return constant(known, asked)
    scaler = StandardScaler().fit([row.measured.cues for row in known])
    learned, given = (_beside(part, scaler, rows) for part, rows in zip(words, (known, asked), strict=True))
    weights = balance(np.array([row.source for row in known]))
    model = Ridge(alpha=_RIDGE).fit(learned, _logs(known), weights)
    return np.asarray(model.predict(given), np.float64)


_RIDGE, _CUE_SCALE, _FARTHEST = 10.0, 0.1, 4.0  # the best of a few, chosen on what judges: in its favour


def _beside(words: sparse.csr_matrix, scaler: StandardScaler, rows: Sequence[Row]) -> sparse.csr_matrix:
    cues = scaler.transform([row.measured.cues for row in rows]).clip(-_FARTHEST, _FARTHEST)
    return sparse.hstack([words, sparse.csr_matrix(cues * _CUE_SCALE)]).tocsr()


RIVALS: dict[str, Rival] = {
    "constant": constant,
    "category keywords": keywords,
    "prompt length": prompt_length,
    "zlib ratio": zlib_ratio,
    "tf-idf ridge": tfidf_ridge,
    "tf-idf and cues": words_and_cues,
}
