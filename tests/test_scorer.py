"""The scorer: total, deterministic, calibrated and explained, in numpy alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_features import JSON, KEYS, KINDS, LANGUAGES, MESSAGES, chat

from classifier.artifact import load
from classifier.features import NAMES, Measured, measure
from classifier.scorer import Score, Scorer, View


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """The shipped one."""
    return Scorer.load()


def sound(score: Score) -> bool:
    """Whether every number of a score lies where it must."""
    return (
        0.0 <= score.value <= 1.0
        and 1.0 <= score.acceptance_length <= 8.001
        and 0.02 < score.spread <= 1.0
        and 1.0 <= score.ngram_acceptance_length <= 8.001
        and 1.0 <= score.output_tokens < 200_000
    )


@given(body=st.dictionaries(KEYS | st.text(max_size=5), JSON | MESSAGES, max_size=6), kind=KINDS)
def test_any_json_is_scored(scorer: Scorer, body: dict[str, Any], kind: str):
    """No request raises, and every score lies within its bounds."""
    assert sound(scorer.score(View.of(body, kind)))


@given(text=st.text(max_size=3000))
def test_any_text_is_scored_the_same_twice(scorer: Scorer, text: str):
    """A score depends on the request alone."""
    first, second = scorer.score(chat(text)), scorer.score(chat(text))

    assert sound(first)
    assert first == second


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_is_scored(scorer: Scorer, language: str):
    """Thirteen languages and scripts have sound scores."""
    assert sound(scorer.score(chat(LANGUAGES[language])))


def test_the_order_of_keys_is_irrelevant(scorer: Scorer):
    """A body with its keys in another order has the same score."""
    body = {
        "messages": [{"role": "user", "content": "Sort: b, a"}],
        "temperature": 0.5,
        "max_tokens": 50,
        "n": 1,
        "stop": ["x"],
    }

    assert scorer.score(View.of(body)) == scorer.score(View.of(dict(reversed(body.items()))))


def test_features_the_artefact_does_not_weigh_change_nothing(scorer: Scorer):
    """The order in which word buckets are listed is irrelevant."""
    measured = measure(chat("List ten rivers of Europe, one per line"))
    turned = scorer.score_measured(Measured(measured.cues, measured.words[::-1].copy()))

    assert turned.acceptance_length == pytest.approx(scorer.score_measured(measured).acceptance_length, rel=1e-6)


@pytest.mark.parametrize(
    ("predictable", "open_ended"),
    [
        ("Count from 1 to 100, separated by commas. Output only the numbers.",
         "Write a short story about a lonely lighthouse keeper."),
        ("Repeat the sentence 'the sky is blue' 20 times, one per line.", "What should I think about when I choose a career?"),
        ("Convert this CSV to JSON.\n\nid,name,city\n1,Ann,Bonn\n2,Bob,Rome\n3,Cid,Oslo",
         "Translate into Polish: Good morning, how did you sleep?"),
        ("Rename foo to bar and return the whole code.\n```python\ndef foo(x):\n    return foo(x - 1)\n```",
         "Compose a poem about the sea in winter."),
    ],
)  # fmt: skip
def test_predictable_requests_score_above_open_ones(scorer: Scorer, predictable: str, open_ended: str):
    """What the field agrees on holds for prompts that are in no training data."""
    high, low = scorer.score(chat(predictable)), scorer.score(chat(open_ended))

    assert high.value > low.value + 0.2
    assert high.acceptance_length > low.acceptance_length


def test_output_is_bounded_by_the_limit(scorer: Scorer):
    """A request that allows nine tokens is not expected to have more."""
    assert scorer.score(chat("Write an essay on trade", max_tokens=9)).output_tokens <= 9


def test_the_prior_curve_rises(scorer: Scorer):
    """Ten mean acceptance lengths, from the least to the most predictable tenth of the scale."""
    curve = scorer.prior_curve

    assert len(curve) == 10
    assert list(curve) == sorted(curve)
    assert 1.0 <= curve[0] < 2.33 < curve[-1] <= 8.0


def test_explanations_add_up(scorer: Scorer):
    """All contributions together are the prediction less that of a request at the mean of everything."""
    view = chat("Write a Python function that returns the squares of 1 to 20 as JSON")
    weights, _, _ = load()
    parts = scorer.explain(view, top=100_000)
    mean = float(weights.bias[0]) + float(weights.liken(np.zeros(len(NAMES), np.float32)) @ weights.likeness[:, 0])

    assert sum(part.effect for part in parts) + mean == pytest.approx(
        np.log(scorer.score(view).acceptance_length), abs=1e-4
    )
    assert [abs(part.effect) for part in parts] == sorted((abs(part.effect) for part in parts), reverse=True)
    assert scorer.explain(view, top=3) == parts[:3]
    assert scorer.explain(view, top=0) == []


def test_explanations_name_words(scorer: Scorer):
    """A word and a pair of words are named as they were written."""
    names = {part.name for part in scorer.explain(chat("Translate it to German, then translate it back"), top=1000)}

    assert "word:translate" in names
    assert "word:to german" in names


@given(text=st.text(max_size=200))
def test_any_text_is_explained(scorer: Scorer, text: str):
    """An explanation never raises, whatever the text."""
    assert all(np.isfinite(part.effect) for part in scorer.explain(chat(text)))


def test_features_are_exported_without_text(scorer: Scorer):
    """What is kept for training holds numbers alone, and scores the same."""
    view = chat("my secret plan is to sort apples")
    features = json.loads(json.dumps(scorer.features(view)))
    measured = Measured(np.array(features["cues"]), np.array(features["words"]))

    assert "secret" not in json.dumps(features)
    assert scorer.score_measured(measured).acceptance_length == pytest.approx(
        scorer.score(view).acceptance_length, rel=1e-3
    )


def test_serving_imports_numpy_alone():
    """Scoring brings in neither scikit-learn nor scipy nor anything that waits or talks."""
    program = (
        "import sys; from classifier.scorer import Scorer, View; Scorer.load().score(View.of({}));"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'sklearn', 'scipy', 'matplotlib', 'pyarrow', 'httpx', 'redis', 'fastapi', 'asyncio', 'pydantic', 'gateway'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_it_shows_what_matters(scorer: Scorer):
    """The repr names the version and the range of the curve."""
    assert scorer.version in repr(scorer)
    assert len(scorer.version) == 12
