"""Learns from an operator's own traffic: a correction on top of a current artefact, in one pass and bounded memory.

Observations are JSON lines or Parquet, one finished call each:

| field | meaning |
|---|---|
| `request` and `endpoint` | the decoded body and chat, completions, responses or messages; or, where text must not be kept, |
| `features` | what `Scorer.features` gave for the call: `digest`, `cues`, `words` |
| `acceptance` | tokens per verification step at window 7 |
| `steps` | verification steps; absent: one independent sample |
| `source` | how the acceptance was seen; by "timing" counts a quarter: it knows a step's time only roughly |
| `propensity` | the probability with which the pool was chosen; absent: 1 |
| `template` | names what traffic repeats; calls of one template are held out together |
| `biased` | why the observation teaches nothing, or empty |

The correction is a ridge whose prior is the artefact: its strength is counted in independent samples. Only sums are kept,
X'WX and X'Wy over cues and folded word buckets, so memory does not grow with the number of observations; a tenth of the
templates is held out in a sample of fixed size, and decides whether the result may be published.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classifier.artifact import digest_of
from classifier.calibrate import curve, knots
from classifier.dataset import DataError
from classifier.features import BUCKETS, NAMES, Measured, measure
from classifier.judge import decision, spearman
from classifier.model import Floats, rounded
from classifier.view import View
from classifier.weights import CEILING, Weights

STEPS_PER_SAMPLE = (
    8.5  # successive steps of one call depend on each other: S steps teach as much as S / 8.5 independent ones
)
TIMING = 0.25  # of a sample that was timed instead of counted: as the gateway's curves weigh it
LARGEST_WEIGHT = 20.0  # clip of inverse propensity: at 1 % exploration an unclipped call would count a hundredfold
FOLDED = 1024  # word buckets of the correction; all words that share one are corrected together
PRIOR_SAMPLES = 200.0  # independent samples that the artefact counts for, per direction of the standardised features
HELD_OUT = 20_000  # observations judged at most
BATCH = 1024
PAGES = 1 << 20  # bytes of a Parquet column read at once
FEWEST = 30  # held-out observations below which nothing is concluded


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished call: its features, log acceptance length, weight and the template that it belongs to."""

    measured: Measured
    log_length: float
    weight: float
    template: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a corrected artefact may be published, and why, with the figures behind it."""

    publish: bool
    reason: str
    figures: dict[str, Any]


def observations(path: Path) -> Iterator[Observation]:
    """The observations of a JSONL or Parquet file, streamed; those that teach nothing are passed over. Raises DataError."""
    for number, content in enumerate(_contents(path), 1):
        try:
            found = _observation(content)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            said = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path.name}, observation {number}: {said}") from error
        if found is not None:
            yield found


def _contents(path: Path) -> Iterator[str | Mapping[str, Any]]:
    """Lines of JSON, or rows of Parquet."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with path.open(encoding="utf-8") as lines:
            yield from (line for line in lines if line.strip())
    except ValueError as error:  # no Parquet (ArrowInvalid), or no UTF-8
        raise DataError(f"{path.name} cannot be read: {error}") from error


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import parquet

    # Writers put a million rows in a row group, and its columns would be read whole: both settings keep them from being so.
    with parquet.ParquetFile(path, buffer_size=PAGES, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()


def _observation(content: object) -> Observation | None:
    if isinstance(content, str):
        content = json.loads(content)
    if not isinstance(content, Mapping):
        raise TypeError("an observation must be a JSON object")
    if content.get("biased"):
        return None
    length = float(content["acceptance"])
    if not math.isfinite(length) or length < 1.0:
        raise ValueError(f"an acceptance of {content['acceptance']} is below one token per step")
    steps = content.get("steps")
    samples = 1.0 if steps is None else max(0.0, float(steps)) / STEPS_PER_SAMPLE
    if content.get("source") == "timing":
        samples *= TIMING
    propensity = content.get("propensity")
    chance = 1.0 if propensity is None else float(propensity)
    if not 0.0 < chance <= 1.0:
        raise ValueError(f"a propensity of {propensity} is not in (0, 1]")
    measured, template = _measured(content)
    # One long answer says more of itself than of its kind: no call counts for more than twenty.
    weight = min(samples, 20.0) * min(1.0 / chance, LARGEST_WEIGHT)
    if weight <= 0.0:  # no step was seen
        return None
    return Observation(measured, min(math.log(length), CEILING), weight, str(content.get("template") or template))


def _measured(content: Mapping[str, Any]) -> tuple[Measured, str]:
    """Features, computed or as given, and a name for the request where no template is told."""
    given = content.get("features")
    if given is None:
        request = content["request"]
        body = json.loads(request) if isinstance(request, str) else request  # Parquet holds bodies as JSON text
        if not isinstance(body, Mapping):
            raise TypeError("neither features nor a request that is a JSON object")
        view = View.of(body, str(content.get("endpoint") or "chat"))
        return measure(view), view.template or hashlib.sha256(view.user.encode("utf-8", "replace")).hexdigest()[:16]
    if given["digest"] != digest_of():
        raise ValueError("features of another release; keep requests, or observe anew")
    cues, words = np.array(given["cues"], np.float64), np.array(given["words"], np.intp)
    if (
        cues.shape != (len(NAMES),)
        or not np.isfinite(cues).all()
        or words.ndim != 1
        or (words.size and not 0 <= words.min() <= words.max() < 2 * BUCKETS)
    ):
        raise ValueError("features that do not fit")
    return Measured(cues, words), hashlib.sha256(cues.tobytes()).hexdigest()[:16]


class Sums:
    """Weighted sums over observations, enough for a ridge on what the artefact left unexplained."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.size = 1 + len(NAMES) + FOLDED
        self.gram = np.zeros((self.size, self.size))
        self.moment = np.zeros(self.size)
        self.samples = 0.0
        self.rows = 0
        self._batch: list[tuple[Floats, float, float]] = []

    def add(self, seen: Observation) -> None:
        """Take in one observation; its features are not kept beyond the batch."""
        predicted = self.weights.predict(seen.measured).log_length
        self._batch.append((self.direction(seen.measured), seen.log_length - predicted, seen.weight))
        if len(self._batch) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Add the batch to the sums."""
        if not self._batch:
            return
        rows = np.array([row for row, _, _ in self._batch])
        rest = np.array([rest for _, rest, _ in self._batch])
        weight = np.array([weight for _, _, weight in self._batch])
        self.gram += rows.T @ (rows * weight[:, None])
        self.moment += rows.T @ (rest * weight)
        self.samples += float(weight.sum())
        self.rows += len(rows)
        self._batch.clear()

    def direction(self, measured: Measured) -> Floats:
        """A request as the correction sees it: one, scaled cues, folded words."""
        z, rarity, norm, _ = self.weights.parts(measured)
        words = np.bincount(measured.words % FOLDED, weights=norm * rarity, minlength=FOLDED)
        return np.concatenate(([1.0], z / math.sqrt(len(NAMES)), words))

    def corrected(self, prior: float = PRIOR_SAMPLES) -> Weights:
        """The artefact's weights plus the correction that these sums support."""
        self.flush()
        penalty = np.full(self.size, prior)
        penalty[0] = prior / 10.0  # the level is learned first: it is what differs most between drafts
        found = np.linalg.solve(self.gram + np.diag(penalty), self.moment)
        cues, words = self.weights.cues.copy(), self.weights.words.copy()
        bias = self.weights.bias.copy()
        bias[0] += found[0]
        cues[:, 0] += found[1 : 1 + len(NAMES)] / math.sqrt(len(NAMES))
        words[:, 0] += found[1 + len(NAMES) + np.arange(2 * BUCKETS) % FOLDED]
        words[self.weights.rarity == 0.0] = 0.0
        return replace(self.weights, bias=rounded(bias), cues=rounded(cues), words=rounded(words))


def learn(
    paths: Sequence[Path], current: Weights, *, seed: int, prior: float = PRIOR_SAMPLES
) -> tuple[Weights, Verdict]:
    """Correct an artefact by the observations of some files and judge the result on templates held out."""
    sums, held, chance = Sums(current), list[Observation](), np.random.default_rng(seed)
    met = 0
    for path in paths:
        for seen in observations(path):
            if int(hashlib.sha256(seen.template.encode("utf-8", "replace")).hexdigest()[:8], 16) % 10:
                sums.add(seen)
                continue
            met += 1
            if len(held) < HELD_OUT:
                held.append(seen)
            elif (place := int(chance.integers(met))) < HELD_OUT:
                held[place] = seen
    learned = sums.corrected(prior)
    verdict = compare(current, learned, held)
    figures = {"observations": sums.rows, "samples": round(sums.samples, 1), "held_out": len(held)} | verdict.figures
    return _recalibrated(learned, held), replace(verdict, figures=figures)


def _recalibrated(weights: Weights, held: Sequence[Observation]) -> Weights:
    """Score and curve of the corrected weights in the distribution of the held-out traffic, where there is enough of it."""
    if len(held) < 10 * FEWEST:
        return weights
    predicted = np.array([weights.predict(seen.measured).log_length for seen in held])
    observed = np.array([seen.log_length for seen in held])
    bends = rounded(knots(predicted, observed))
    scores = np.interp(predicted, bends[:, 0], bends[:, 1])
    return replace(weights, knots=bends, curve=rounded(curve(scores, np.exp(observed))))


def compare(current: Weights, learned: Weights, held: Sequence[Observation]) -> Verdict:
    """Which of two is better on the same observations: squared error first, then the decode time that routing saves."""
    if len(held) < FEWEST:
        return Verdict(
            False, f"only {len(held)} observations are held out; {FEWEST} are needed to tell better from worse", {}
        )
    before, after = _errors(current, held), _errors(learned, held)
    weight = np.array([seen.weight for seen in held])
    gain = (before - after) * weight / weight.mean()
    margin = float(gain.std() / math.sqrt(len(gain)))
    figures: dict[str, Any] = {"current": _figures(current, held), "learned": _figures(learned, held)}
    figures |= {"mean_gain": round(float(gain.mean()), 6), "standard_error": round(margin, 6)}
    if float(gain.mean()) <= 0.0:
        return Verdict(False, "its squared error on held-out traffic is larger than the current artefact's", figures)
    slower = float(figures["learned"]["decode_time"]) - float(figures["current"]["decode_time"])
    if slower > 0.005:
        return Verdict(False, f"routing by it would take {slower:.1%} more decode time on held-out traffic", figures)
    return Verdict(True, "its squared error on held-out traffic is smaller", figures)


def _errors(weights: Weights, held: Sequence[Observation]) -> npt.NDArray[np.float64]:
    return np.array([(weights.predict(seen.measured).log_length - seen.log_length) ** 2 for seen in held])


def _figures(weights: Weights, held: Sequence[Observation]) -> dict[str, Any]:
    predicted = np.array([weights.predict(seen.measured).log_length for seen in held])
    observed = np.array([seen.log_length for seen in held])
    order = spearman(observed, predicted)
    weight = np.array([seen.weight for seen in held])
    time = decision(np.exp(observed), np.exp(predicted), weight, 2.33)["policy"] or 0.0
    return {
        "rmse": round(float(np.sqrt(np.average((predicted - observed) ** 2, weights=weight))), 5),
        "spearman": None if order is None else round(order, 4),
        "decode_time": round(time, 5),
    }
