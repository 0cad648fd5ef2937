"""The model card: what it says of the shipped artefact is what stands in the artefact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from classifier import __main__ as command
from classifier.artifact import SHIPPED, load
from classifier.features import NAMES
from classifier.traffic import HELD_OUT

CARD = SHIPPED.with_name("README.md").read_text(encoding="utf-8")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def about() -> dict[str, Any]:
    """The artefact's description."""
    return load()[1]


def test_the_card_s_figures_are_the_artefact_s(about: dict[str, Any]):
    """Spearman, R², AUC and the closed gaps of five folds by prompt are those that training wrote into the artefact."""
    found = re.search(
        r"^\| five folds by prompt \| (\.\d+) \| (\.\d+) \| (\.\d+) \| (\d+) % / (\d+) % ", CARD, re.MULTILINE
    )
    metrics = about["metrics"]["cross_validated_by_prompt"]
    gaps = [100 * metrics["decision"][price]["gap_closed"] for price in ("2.33", "3")]

    assert found is not None
    order, explained, above, *closed = map(float, found.groups())
    assert order == pytest.approx(metrics["spearman"], abs=0.0006)
    assert explained == pytest.approx(metrics["r_squared"], abs=0.006)
    assert above == pytest.approx(metrics["auc"]["2.33"], abs=0.0006)
    assert closed == pytest.approx(gaps, abs=0.6)


def test_the_card_s_counts_are_the_artefact_s(about: dict[str, Any]):
    """Rows, sources, prototypes, cues and the held-out sample are as many as the card says."""
    assert f"{about['data']['rows']:,} rows from eight sources" in CARD
    assert len(about["data"]["sources"]) == 8
    assert f"{about['data']['own_rows']} rows of the project's own" in CARD
    assert f"{len(load()[0].prototypes):,} prototypes" in CARD
    assert f"about {round(len(NAMES), -1)} cues" in CARD
    assert f"{HELD_OUT:,} calls" in CARD
    assert about["drafter"]["draft"] in CARD


def test_every_command_of_the_card_exists():
    """Commands of the classifier parse as they are written, and what else is named can be run."""
    named = re.findall(r"(?:`|python -m classifier )((?:train|evaluate|score) --(?:[\w-]| (?! ))*)", CARD)
    assert {"--traffic", "--learning", "--out", "--json"} <= set(" ".join(named).split())
    for line in named:
        out = [] if "--out" in line or not line.startswith("train") else ["--out", "FILE"]
        command._parser().parse_args([*line.split(), *out])
    modules = re.findall(r"python -m (bench\.\w+)", CARD)
    assert modules
    assert all((ROOT / f"{module.replace('.', '/')}.py").is_file() for module in modules)
