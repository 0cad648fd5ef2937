"""Judging: each measure against a value worked out by hand or by scikit-learn."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import rows
from scipy.stats import spearmanr
from sklearn.metrics import r2_score, roc_auc_score

from classifier.dataset import DataError, Row, row_of
from classifier.evaluate import (
    SHARES,
    ceiling,
    cross_validate,
    judge_artefact,
    judge_held_back,
    learning_curve,
    table,
)
from classifier.judge import auc, by_source, calibration, decision, judge, r_squared, spearman
from classifier.model import Settings
from classifier.plots import draw
from classifier.rivals import RIVALS

NUMBERS = st.lists(st.integers(0, 20), min_size=5, max_size=60)


@pytest.fixture(scope="module")
def known() -> list[Row]:
    """Rows of five kinds."""
    return [row_of(row) for row in rows(25)]


@given(NUMBERS)
def test_order_is_measured_as_others_measure_it(values: list[int]):
    """Spearman with ties, AUC and R² agree with scipy and scikit-learn."""
    a = np.array(values, float)
    b = np.array([(7 * v) % 11 for v in values], float)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b)[0], abs=1e-9)
        assert r_squared(a, b) == pytest.approx(r2_score(a, b), abs=1e-9)
    if 0 < (a > 7).sum() < len(a):
        assert auc(a > 7, b) == pytest.approx(roc_auc_score(a > 7, b), abs=1e-9)


def test_what_cannot_be_measured_is_none():
    """Constants and single classes have no correlation and no AUC."""
    one = np.ones(5)

    assert spearman(one, np.arange(5.0)) is None
    assert auc(np.ones(5, bool), np.arange(5.0)) is None
    assert r_squared(one, one) is None
    assert decision(one * 2, one, one, 1.0)["gap_closed"] is None


def test_decode_time_by_hand():
    """Two requests, one at 4 and one at 1 token per step, at R = 2: the oracle takes 3/4, always speculating 5/4."""
    lengths, tokens = np.array([4.0, 1.0]), np.array([100.0, 100.0])
    found = decision(lengths, np.array([4.0, 1.0]), tokens, 2.0)

    assert found["speculative"] == pytest.approx((0.5 + 2.0) / 2)
    assert found["oracle"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["gap_closed"] == pytest.approx(1.0)
    assert decision(lengths, np.array([1.0, 1.0]), tokens, 2.0)["gap_closed"] == pytest.approx(0.0)
    assert decision(lengths, np.array([1.0, 4.0]), tokens, 2.0)["gap_closed"] == pytest.approx(-2.0)


def test_requests_weigh_by_their_tokens():
    """A long answer counts for more decode time than a short one."""
    found = decision(np.array([4.0, 1.0]), np.array([4.0, 1.0]), np.array([300.0, 100.0]), 2.0)

    assert found["oracle"] == pytest.approx((150 + 100) / 400)


def test_calibration_is_read_per_tenth():
    """Ten groups of equal size; a score that is always a tenth too high errs by a tenth."""
    quantiles = np.linspace(0, 0.9, 200)
    groups = calibration(quantiles + 0.1, quantiles)

    assert len(groups) == 10
    assert all(group["error"] == pytest.approx(0.1) for group in groups)
    assert sum(group["rows"] for group in groups) == 200


def test_every_source_is_judged_alone():
    """Per source the figures are those of its own rows."""
    lengths, guesses, tokens = np.array([1.0, 2.0, 3.0, 6.0]), np.array([1.0, 2.0, 6.0, 3.0]), np.ones(4)
    found = by_source(["a", "a", "b", "b"], lengths, guesses, tokens)

    assert found["a"]["rows"] == 2
    assert found["b"]["mean_measured"] == 4.5
    assert found["b"]["bias"] == pytest.approx(0.0)


def test_the_ceiling_is_two_answers_to_one_prompt(known: list[Row]):
    """Pairs are found by prompt, and a source's mean is judged as a predictor."""
    found = ceiling(known)

    assert found["same_prompt_pairs"] == 15
    assert 0.5 < found["same_prompt_spearman"] <= 1.0
    assert found["known_source"]["spearman"] > 0.8


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_predicts(known: list[Row], name: str):
    """A rival learns from some rows and predicts others with finite numbers, even from very few."""
    assert np.isfinite(RIVALS[name](known[:80], known[80:])).all()
    assert np.isfinite(RIVALS[name](known[:2], known[:5])).all()


def test_cross_validation_reports_all(known: list[Row]):
    """By prompt and by source, with calibration, decisions, rivals and figures for people."""
    report, outcomes = cross_validate(known, [], Settings(prototypes=40))
    text = table(report)

    assert set(report) == {"data", "ceiling", "by_prompt", "leave_one_source_out"}
    assert set(report["by_prompt"]["rivals"]) == set(RIVALS)
    assert report["by_prompt"]["pooled"]["spearman"] > 0.8
    assert report["by_prompt"]["pooled"]["spearman"] > report["by_prompt"]["rivals"]["prompt length"]["spearman"]
    assert set(report["leave_one_source_out"]["sources"]) == {"lists", "edits", "chat", "stories", "facts"}
    assert {"1.6", "2.33", "3"} == set(report["by_prompt"]["pooled"]["decision"])
    assert all(outcome.predicted.shape == (len(known),) for outcome in outcomes.values())
    assert "rival: tf-idf ridge" in text
    json.dumps(report, allow_nan=False)


def test_kinds_of_our_own_are_left_out_in_turn(known: list[Row]):
    """The project's own rows are judged too, each kind by what the others teach; rows of the data stay to learn from."""
    own = [replace(row, own=True, source=f"own:{row.source}") for row in known if row.source in ("lists", "stories")]
    report, outcomes = cross_validate(known, own, Settings(prototypes=40))

    assert report["new_kinds"]["pooled"]["rows"] == len(own)
    assert set(report["new_kinds"]["sources"]) == {"own:lists", "own:stories"}
    assert outcomes["new_kinds"].sources == [row.source for row in own]
    assert report["new_kinds"]["pooled"]["spearman"] > 0.5  # the data hold the same kinds
    assert "2 kinds, a fifth left out" in table(report)


def test_more_prompts_teach_more(known: list[Row]):
    """The learning curve judges the same rows, learned from ever more prompts; the last point is the whole."""
    settings = Settings(prototypes=40)
    curve = learning_curve(known, [], settings)
    report, _ = cross_validate(known, [], settings)

    assert [point["share"] for point in curve] == list(SHARES)
    assert [point["rows"] for point in curve] == [len(known)] * len(SHARES)
    assert [point["prompts"] for point in curve] == sorted({point["prompts"] for point in curve})
    assert curve[0]["spearman"] < curve[-1]["spearman"]
    assert curve[-1]["spearman"] == pytest.approx(report["by_prompt"]["pooled"]["spearman"], abs=1e-9)
    assert "learned from 12.5% of the prompts" in table({"learning": curve})


def test_what_is_held_back_is_judged_and_not_learned(known: list[Row]):
    """The method learns from some kinds and is judged on others, beside the same rivals."""
    taught = [row for row in known if row.source != "stories"]
    unseen = [row for row in known if row.source == "stories"]
    report, outcomes = judge_held_back(taught, [], unseen, Settings(prototypes=40))
    found = report["held_back"]

    assert report["data"]["sources"].keys() == {"lists", "edits", "chat", "facts"}
    assert found["pooled"]["rows"] == len(unseen)
    assert set(found["sources"]) == {"stories"}
    assert set(found["rivals"]) == set(RIVALS)
    assert outcomes["held_back"].scores is not None
    assert "held back" in table(report)


def test_what_has_been_seen_is_not_held_back(known: list[Row]):
    """Requests on both sides would flatter: they are counted and refused, whoever answered them."""
    with pytest.raises(DataError, match=r"^1 of the requests held back are among those to learn from"):
        judge_held_back(known, [], [replace(known[0], writer="another")], Settings(prototypes=40))


def test_one_source_alone_is_cross_validated_by_prompt_only():
    """Where there is one source, none can be left out."""
    report, _ = cross_validate([row_of(row) for row in rows(40, kinds=("chat",))], [], Settings(prototypes=20))

    assert "leave_one_source_out" not in report


def test_an_artefact_is_judged_as_it_is(known: list[Row]):
    """The shipped artefact ranks kinds it never saw, and the report names it."""
    report, outcomes = judge_artefact(known, None)

    assert report["trained_on_these_sources"] == []
    assert report["pooled"]["spearman"] > 0.4
    assert len(report["calibration"]["deciles"]) == 10
    assert list(outcomes) == ["artefact"]
    assert report["artefact"] in table(report)


def test_an_artefact_that_has_seen_the_data_says_so(known: list[Row]):
    """People are told, as programs are, which sources an artefact was trained on, and every source has its line."""
    report, _ = judge_artefact(known, None)
    seen = table(report | {"trained_on_these_sources": ["chat", "lists"]})

    assert report["trained_on_these_sources"] == []
    assert "trained on" not in table(report)
    assert "trained on chat, lists: " in seen
    assert all(f"source: {name}" in seen for name in report["sources"])


def test_plots_are_drawn(tmp_path: Path, known: list[Row]):
    """A PNG, and an HTML page that holds the picture and the escaped figures; no other form."""
    _, outcomes = judge_artefact(known, None)
    draw(outcomes, tmp_path / "a.png")
    draw(outcomes, tmp_path / "a.html", text="1 < 2")

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "1 &lt; 2" in page
    with pytest.raises(ValueError, match=r"\.png or \.html"):
        draw(outcomes, tmp_path / "a.gif")


def test_judging_the_truth_is_perfect():
    """A predictor that knows the lengths reaches every maximum."""
    lengths = np.array([1.2, 1.7, 2.2, 2.9, 3.3, 5.0])
    found = judge(lengths, lengths, np.ones(6))

    assert found["spearman"] == found["r_squared"] == 1.0
    assert set(found["auc"].values()) == {1.0}
    assert all(part["gap_closed"] == pytest.approx(1.0) for part in found["decision"].values())
    assert math.isclose(found["bias"], 0.0)
