"""Judges the classifier on measured requests: cross-validated by prompt and by source, or on data that it never saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from classifier import artifact
from classifier.calibrate import apply, dealt, folds, knots, left_out, ranks
from classifier.dataset import DataError, Row, digest, sample_of
from classifier.judge import by_source, calibration, judge, spearman
from classifier.model import Floats, Indices, Sample, Settings
from classifier.rivals import RIVALS
from classifier.train import SEED, train
from classifier.weights import Weights

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Predicted against measured lengths, with scores where there are any: what a report and a plot are made of."""

    lengths: Floats
    predicted: Floats
    tokens: Floats
    sources: list[str]
    scores: Floats | None

    @property
    def quantiles(self) -> Floats:
        """Where each measured length lies among the measured ones."""
        return ranks(self.lengths, self.lengths)

    def report(self) -> Report:
        """All measures, pooled and per source."""
        found: Report = {"pooled": judge(self.lengths, self.predicted, self.tokens)}
        if self.scores is not None:
            groups = calibration(self.scores, self.quantiles)
            found["calibration"] = {"error": max(group["error"] for group in groups), "deciles": groups}
        found["sources"] = by_source(self.sources, self.lengths, self.predicted, self.tokens)
        return found


def judge_artefact(rows: Sequence[Row], path: Path | None) -> tuple[Report, dict[str, Outcome]]:
    """An artefact as it stands, on rows that it should not have seen; the report says whether it was trained on them."""
    weights, about, version = artifact.load(path)
    outcome = _applied(weights, rows)
    seen = about.get("data", {}).get("sources", {})
    overlap = sorted({row.source for row in rows} & set(seen))
    found = {"artefact": version, "trained_on_these_sources": overlap} | outcome.report()
    return found, {"artefact": outcome}


def cross_validate(
    rows: Sequence[Row], own: Sequence[Row], settings: Settings | None = None
) -> tuple[Report, dict[str, Outcome]]:
    """Five folds by prompt, then one source at a time left out, rivals beside them; in both `own` rows are learned from only.

    Then a fifth of the kinds of `own` at a time: what to expect of kinds of traffic that nobody has seen.
    """
    sample, settings = sample_of([*rows, *own]), settings or Settings()
    asked = np.arange(len(rows))
    by_prompt = folds(sample, 5, seed=SEED)
    sources = [np.flatnonzero(sample.sources[asked] == name) for name in sorted(set(sample.sources[asked].tolist()))]
    report: Report = {
        "data": {"rows": len(rows), "own_rows": len(own), "sha256": digest(rows)},
        "ceiling": ceiling(rows),
    }
    outcomes: dict[str, Outcome] = {}
    for name, parts in (("by_prompt", by_prompt), ("leave_one_source_out", sources if len(sources) > 1 else [])):
        if not parts:
            continue
        predicted = left_out(sample, settings, parts, seed=SEED)[asked, 0]
        scores = _cross_scored(predicted, sample, parts) if name == "by_prompt" else None
        outcomes[name] = _outcome(rows, predicted, scores)
        report[name] = outcomes[name].report()
        report[name]["rivals"] = _rivals(rows, parts)
    if own:
        kinds = dealt(sample.sources, sample.own, 5, seed=SEED)
        predicted = left_out(sample, settings, kinds, seed=SEED)[len(rows) :, 0]
        outcomes["new_kinds"] = _outcome(own, predicted, None)
        report["new_kinds"] = outcomes["new_kinds"].report()  # no rivals: of many only features are known
    return report, outcomes


def judge_held_back(
    rows: Sequence[Row], own: Sequence[Row], unseen: Sequence[Row], settings: Settings | None = None
) -> tuple[Report, dict[str, Outcome]]:
    """Learn from all of `rows` and `own`, as `train` does, and judge on `unseen`, beside rivals that learn from `rows`.

    Raises:
        DataError: some of `unseen` have been seen.
    """
    if seen := len({row.prompt for row in rows} & {row.prompt for row in unseen}):
        raise DataError(
            f"{seen} of the requests held back are among those to learn from; take them out of one of the two"
        )
    weights, about = train([*rows, *own], settings=settings)
    outcome = _applied(weights, unseen)
    rivals = {
        name: judge(outcome.lengths, np.exp(rival(rows, unseen)), outcome.tokens) for name, rival in RIVALS.items()
    }
    report = {"data": about["data"], "held_back": outcome.report() | {"rivals": rivals}}
    return report, {"held_back": outcome}


def _applied(weights: Weights, rows: Sequence[Row]) -> Outcome:
    predicted = apply(weights, sample_of(rows))[:, 0]
    return _outcome(rows, predicted, np.interp(predicted, weights.knots[:, 0], weights.knots[:, 1]))


def _outcome(rows: Sequence[Row], predicted: Floats, scores: Floats | None) -> Outcome:
    lengths = np.array([row.length for row in rows])
    tokens = np.array([row.output for row in rows])
    return Outcome(lengths, np.exp(predicted), tokens, [row.source for row in rows], scores)


def _cross_scored(predicted: Floats, sample: Sample, parts: Sequence[Indices]) -> Floats:
    """Scores whose calibration was learned on the other parts."""
    scores = np.full(len(predicted), np.nan)
    observed = sample.targets[: len(predicted), 0]
    for part in parts:
        rest = np.setdiff1d(np.arange(len(predicted)), part)
        if part.size and rest.size >= 2:
            bends = knots(predicted[rest], observed[rest])
            scores[part] = np.interp(predicted[part], bends[:, 0], bends[:, 1])
    return scores


def _rivals(rows: Sequence[Row], parts: Sequence[Indices]) -> dict[str, Report]:
    """The rivals on the same parts, in short."""
    lengths, tokens = np.array([row.length for row in rows]), np.array([row.output for row in rows])
    found = {}
    for name, rival in RIVALS.items():
        predicted = np.empty(len(rows))
        for part in parts:
            rest = np.setdiff1d(np.arange(len(rows)), part)
            if part.size:
                predicted[part] = rival([rows[i] for i in rest], [rows[i] for i in part])
        found[name] = judge(lengths, np.exp(predicted), tokens)
    return found


def ceiling(rows: Sequence[Row]) -> Report:
    """How far two writers agree who answer the same prompt: no reader of the prompt can rank single answers much better.

    `known_source` is what a predictor would reach that knew nothing of a request but its source's mean.
    """
    answers: dict[str, list[Row]] = {}
    for row in rows:
        answers.setdefault(row.prompt, []).append(row)
    pairs = [
        (a.length, b.length) for group in answers.values() for a, b in pairwise(sorted(group, key=lambda r: r.writer))
    ]
    lengths = np.array([row.length for row in rows])
    logs, sources = np.log(lengths), np.array([row.source for row in rows])
    means = {name: float(logs[sources == name].mean()) for name in set(sources.tolist())}
    known = np.array([means[name] for name in sources.tolist()])
    both = np.array(pairs) if pairs else np.zeros((0, 2))
    return {
        "same_prompt_pairs": len(pairs),
        "same_prompt_spearman": spearman(both[:, 0], both[:, 1]),
        "known_source": judge(lengths, np.exp(known), np.array([row.output for row in rows])),
    }


SHARES = (0.125, 0.25, 0.5, 1.0)


def learning_curve(rows: Sequence[Row], own: Sequence[Row], settings: Settings | None = None) -> list[Report]:
    """By prompt as above, learned from a share of the other prompts: what more data of the same kinds would still add."""
    sample, settings = sample_of([*rows, *own]), settings or Settings()
    prompts, of = np.unique(sample.prompts, return_inverse=True)
    place = np.random.default_rng(SEED).permutation(len(prompts)) / len(prompts)
    parts, found = folds(sample, 5, seed=SEED), []
    for share in SHARES:
        predicted = left_out(sample, settings, parts, seed=SEED, taught=np.flatnonzero(place[of] < share))
        seen = _outcome(rows, predicted[: len(rows), 0], None)
        judged = judge(seen.lengths, seen.predicted, seen.tokens)
        found.append({"share": share, "prompts": int((place < share).sum())} | judged)
    return found


def table(report: Report) -> str:
    """The figures that matter, as lines for people."""
    lines = [f"{'':34} rows   Spearman  R²     AUC>2.33  gap closed at 2.33 / 3   calibration"]
    if "pooled" in report:
        lines.append(_line(f"artefact {report['artefact']}", report["pooled"], report.get("calibration")))
        lines += [_line(f"  source: {name}", judged) for name, judged in report["sources"].items()]
        if report["trained_on_these_sources"]:
            lines.append(
                f"trained on {', '.join(report['trained_on_these_sources'])}: what it has seen says nothing of new requests"
            )
    for kind in ("by_prompt", "leave_one_source_out", "held_back"):
        if kind in report:
            lines.append(_line(kind.replace("_", " "), report[kind]["pooled"], report[kind].get("calibration")))
            lines += [_line(f"  rival: {name}", judged) for name, judged in report[kind]["rivals"].items()]
            lines += [_line(f"  source: {name}", judged) for name, judged in report[kind]["sources"].items()]
    if "new_kinds" in report:
        lines.append(
            _line(f"{len(report['new_kinds']['sources'])} kinds, a fifth left out", report["new_kinds"]["pooled"])
        )
    if "ceiling" in report:
        lines.append(_line("every source's mean known", report["ceiling"]["known_source"]))
        agreed = report["ceiling"]["same_prompt_spearman"]
        lines.append(
            f"two answers to one prompt agree at Spearman {_show(agreed)} ({report['ceiling']['same_prompt_pairs']} pairs)"
        )
    lines += [_line(f"learned from {each['share']:.1%} of the prompts", each) for each in report.get("learning", [])]
    return "\n".join(lines)


def _line(name: str, judged: Report, calibrated: Report | None = None) -> str:
    gaps = [judged["decision"][price]["gap_closed"] for price in ("2.33", "3")]
    return (
        f"{name:34} {judged['rows']:<6} {_show(judged['spearman']):9} {_show(judged['r_squared']):6} "
        f"{_show(judged['auc']['2.33']):9} {_show(gaps[0])} / {_show(gaps[1]):16} "
        f"{_show(calibrated['error']) if calibrated else ''}"
    ).rstrip()


def _show(value: float | None) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.3f}"


def write(report: Report, path: Path) -> None:
    """Keep a report as JSON."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
