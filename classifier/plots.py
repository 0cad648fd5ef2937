"""Draws how well scores are calibrated and what routing by them saves, as PNG or as an HTML page that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from classifier.evaluate import Outcome
from classifier.judge import calibration, decision

_GRID = np.linspace(1.2, 4.0, 29)


def draw(outcomes: Mapping[str, Outcome], path: Path, *, text: str = "") -> None:
    """Write the plots to `path`: .png, or .html with the figures' table below; raises ValueError on another ending."""
    if path.suffix not in {".png", ".html"}:
        raise ValueError(f"{path.name}: plots are written as .png or .html")
    with mpl.rc_context({"svg.hashsalt": "draftlane", "font.size": 9}):
        raw = _png(outcomes)
    if path.suffix == ".png":
        path.write_bytes(raw)
        return
    image = base64.b64encode(raw).decode()
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Draftlane classifier</title>"
        "<body style='font-family:sans-serif;max-width:70rem;margin:2rem auto'><h1>How the classifier is judged</h1>"
        f"<img alt='calibration and decision curves' style='max-width:100%' src='data:image/png;base64,{image}'>"
        f"<pre>{html.escape(text)}</pre>\n",
        encoding="utf-8",
    )


def _png(outcomes: Mapping[str, Outcome]) -> bytes:
    figure = Figure(figsize=(9.0, 3.6 * len(outcomes)), dpi=110, layout="constrained")
    rows = figure.subplots(max(1, len(outcomes)), 2, squeeze=False)
    for (left, right), (name, outcome) in zip(rows, outcomes.items(), strict=False):
        _calibration(left, name, outcome)
        _decision(right, name, outcome)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _calibration(axes: Axes, name: str, outcome: Outcome) -> None:
    scores = outcome.scores
    if scores is None:  # a source left out has no scale of its own: its order is what counts
        axes.loglog(outcome.predicted, outcome.lengths, ".", markersize=2, alpha=0.4)
        axes.set(title=f"{name}: order", xlabel="predicted tokens per step", ylabel="measured")
        return
    groups = calibration(scores, outcome.quantiles)
    axes.plot([0, 1], [0, 1], color="0.8")
    axes.plot([group["score"] for group in groups], [group["observed"] for group in groups], "o-")
    axes.set(
        title=f"{name}: calibration",
        xlabel="mean score of a tenth",
        ylabel="mean measured quantile",
        xlim=(0, 1),
        ylim=(0, 1),
    )


def _decision(axes: Axes, name: str, outcome: Outcome) -> None:
    found = [decision(outcome.lengths, outcome.predicted, outcome.tokens, float(price)) for price in _GRID]
    for key, style in (("policy", "-"), ("oracle", ":"), ("baseline", "--"), ("speculative", "--")):
        axes.plot(_GRID, [item[key] or 0.0 for item in found], style, label=key)
    axes.set(
        title=f"{name}: decode time", xlabel="step time ratio R", ylabel="against always baseline", ylim=(0.3, 1.4)
    )
    axes.legend(fontsize=8)
