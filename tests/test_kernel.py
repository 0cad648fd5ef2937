"""The compiled arithmetic: the same numbers as numpy's, whatever the request, and clear errors for what it is not made for."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered
from test_features import JSON, KEYS, KINDS, LANGUAGES, MESSAGES, ROLES, chat

from classifier.artifact import load
from classifier.conversation import Conversation, compiled, conversation
from classifier.features import lexicon_arrays, measure
from classifier.kernel import AVAILABLE, Compiled, Kernel
from classifier.scorer import Scorer, View
from classifier.weights import KERNEL_ARRAYS, Weights

HOSTILE = (
    "",
    "\n",
    " \t\u2003\n\n  ",
    "\ud800 lone \udfff",
    "\x00" * 50,
    "a" * 9000,
    "word " * 3000,
    "\U0001f600" * 5000,
    "_" * 300 + "```" * 7 + "``",
    "1,2,3\u2003\u0661\u0662\u0663, 1234567 123456 12a",
    "\n" * 400 + "x\ny\nx",
    "• a\n- b\n* c\n7 d\n\te",
    "ǅ Title-case first",
    "ends with a question？ ",
    "ends with a fence ```",
)

TYPES = "text image_url image input_audio file function_call function_call_output reasoning tool_result"
PARTS = st.recursive(
    JSON,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(TYPES.split()) | JSON,
                "text": st.text(max_size=300) | JSON,
                "content": inner,
                "output": inner,
                "arguments": inner,
                "role": ROLES,
            },
        )
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from("messages input prompt system instructions".split()), PARTS | MESSAGES, max_size=4
)


@pytest.fixture(scope="module")
def weights() -> Weights:
    """The shipped ones."""
    return load()[0]


@pytest.fixture(scope="module")
def kernel(weights: Weights) -> Kernel:
    """Compiled, for the shipped weights."""
    found = Kernel.of(weights)
    assert found is not None
    return found


def agree(kernel: Kernel, weights: Weights, view: View) -> None:
    """Features are equal to the bit; predictions to what single precision loses in a sum of thousands."""
    numpy, compiled = measure(view), kernel.measure(view)
    assert np.array_equal(numpy.cues, compiled.cues)
    assert np.array_equal(numpy.words, compiled.words)
    expected, (found, score) = weights.predict(numpy), kernel.predict(view)
    for name in expected.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-4)
    assert score == pytest.approx(weights.score(found.log_length), abs=1e-12)


def test_it_was_built():
    """A machine with a C compiler has the compiled arithmetic; what is slower is not taken for it."""
    assert AVAILABLE
    assert Kernel.of(load()[0]) is not None


@given(body=st.dictionaries(KEYS | st.text(max_size=5), JSON | MESSAGES, max_size=6), kind=KINDS)
def test_any_json_is_measured_alike(kernel: Kernel, weights: Weights, body: dict[str, Any], kind: str):
    """Whatever a client sends, compiled features and predictions are numpy's."""
    agree(kernel, weights, View.of(body, kind))


def read_alike(body: Any, key: str) -> None:
    """The compiled reading says what the definition says."""
    assert compiled is not None
    assert compiled(body, key) == Conversation.of(body, key).told()


@given(body=BODIES, key=st.sampled_from(["messages", "input", "prompt"]))
def test_any_conversation_is_read_alike(body: dict[str, Any], key: str) -> None:
    """Whoever speaks, in whatever parts, nested or of wrong types: the same texts, counts and tokens."""
    read_alike(body, key)


@pytest.mark.parametrize("text", [*HOSTILE, *LANGUAGES.values()])
def test_any_text_is_read_alike(text: str) -> None:
    """Texts of every script and length, lone surrogates among them, are clipped and counted alike."""
    for parts in (text, [text, {"type": "text", "text": text}], [{"text": text}] * 40):
        messages = [
            {"role": role, "content": parts} for role in ("system", "user", "assistant", "user", "tool", "user")
        ]
        for last in range(1, len(messages) + 1):
            read_alike({"messages": messages[:last]}, "messages")
    read_alike({"prompt": text}, "prompt")


@pytest.mark.parametrize(
    "content", [(1, 2), MappingProxyType({"text": "a"}), b"a", OrderedDict(text="a"), type("Text", (str,), {})("a")]
)
def test_what_no_decoder_makes_is_left_to_python(content: object) -> None:
    """Where other types stand, the compiled reading gives up, and the view is what Python reads."""
    assert compiled is not None
    for body in ({"messages": [{"role": "user", "content": content}]}, {"prompt": content}, {"system": [content]}):
        key = "prompt" if "prompt" in body else "messages"
        assert compiled(body, key) is None
        assert conversation(body, "completions" if "prompt" in body else "chat") == Conversation.of(body, key).told()


@given(text=st.text(max_size=2000) | st.text(st.sampled_from("ab ,._`\n\t-•19?？ß \ud83d"), max_size=400))
def test_any_text_is_measured_alike(kernel: Kernel, weights: Weights, text: str):
    """Lines, spaces, digits and letters of every script mean the same to both."""
    agree(kernel, weights, chat(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_measured_alike(kernel: Kernel, weights: Weights, text: str):
    """Empty, endless, blank and broken text too."""
    agree(kernel, weights, chat(text))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_is_measured_alike(kernel: Kernel, weights: Weights, language: str):
    """Thirteen languages and scripts, each also as a system prompt."""
    text = LANGUAGES[language]
    body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": text}], "response_format": {}}

    agree(kernel, weights, chat(text))
    agree(kernel, weights, View.of({**body, "response_format": {"type": "json_object"}}))


def test_a_view_made_by_hand_is_read_to_the_same_length(kernel: Kernel, weights: Weights):
    """A text longer than a view keeps is cut at the same byte."""
    agree(kernel, weights, View(kind="chat", user="é1 " * 20_000, user_chars=60_000))


def test_a_scorer_scores_alike_without_it():
    """A scorer that may not use it has the same scores."""
    compiled, plain = Scorer.load(), Scorer(*load(), compiled=False)
    view = chat("List ten rivers of Europe as a JSON array, longest first", max_tokens=300)

    one, other = compiled.score(view), plain.score(view)
    assert one.value == pytest.approx(other.value, abs=1e-5)
    assert one.acceptance_length == pytest.approx(other.acceptance_length, rel=1e-5)
    assert one.output_tokens == pytest.approx(other.output_tokens, rel=1e-4)


def test_every_processor_finds_the_same(weights: Weights):
    """What wide registers compute is, to the bit, what is computed without them."""
    wide, portable = (Compiled(lexicon_arrays(), tuple(arrays(weights)), weights.decay) for _ in range(2))
    portable.be_portable()
    for text in (*HOSTILE, *LANGUAGES.values()):
        view = chat(text)
        assert wide.predict(view, None) == portable.predict(view, None)


def test_weights_off_the_grid_are_left_to_numpy(weights: Weights):
    """Prototypes that no byte holds, as another release may have them, are not served compiled."""
    assert Kernel.of(replace(weights, prototypes=weights.prototypes + np.float32(0.01))) is None


def arrays(weights: Weights) -> list[Any]:
    """What a kernel is given."""
    return [np.ascontiguousarray(getattr(weights, name), np.float32) for name in KERNEL_ARRAYS]


@pytest.mark.parametrize("place", range(len(KERNEL_ARRAYS)))
def test_an_array_of_another_size_is_refused(weights: Weights, place: int):
    """No array is read past its end: one that is short by a number raises an error that names it or a companion."""
    given_ = arrays(weights)
    given_[place] = given_[place].reshape(-1)[:-1].copy()

    with pytest.raises(ValueError, match=r"has \d+ bytes and not \d+"):
        Compiled(lexicon_arrays(), tuple(given_), weights.decay)


def test_wrong_use_is_an_error(weights: Weights):
    """Arguments of other types and a kernel without weights raise, and nothing is read that is not there."""
    bare, whole = Compiled(lexicon_arrays()), Compiled(lexicon_arrays(), tuple(arrays(weights)), weights.decay)
    view = chat("x")

    with pytest.raises(RuntimeError, match="no weights"):
        bare.predict(view, None)
    for wrong in ((view,), (view, b"short"), (altered(view, user=b"x"), None), (altered(view, turns="one"), None)):
        with pytest.raises(TypeError):
            whole.predict(*wrong)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="user"):
        whole.predict(None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        whole.context(b"x")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="once"):
        whole.__init__(lexicon_arrays())  # type: ignore[misc]
    with pytest.raises(ValueError, match="no name 'structure'"):
        Compiled((("a",), *lexicon_arrays()[1:]))
    assert all(map(math.isfinite, whole.predict(view, whole.context("be brief"))))
