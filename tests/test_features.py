"""Views and features: total, bounded, deterministic, in any language."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.conversation import EARLIER_CAP, SYSTEM_CAP, USER_CAP, clip
from classifier.features import BUCKETS, NAMES, buckets_of, hash_of, hash_words, measure
from classifier.view import TOOLS_CAP, View, number

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
KEYS = st.sampled_from(
    "messages prompt input system instructions tools tool_choice response_format temperature top_p max_tokens n stop "
    "prediction text".split()
)
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool", 7, None])
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": ROLES, "content": JSON, "type": JSON}) | JSON, max_size=6
)
KINDS = st.sampled_from(["chat", "completions", "responses", "messages", "other"])
LANGUAGES = {
    "English": "Please write a short story about the sea.",
    "Russian": "Напиши короткий рассказ о море и не забудь про чаек.",
    "Spanish": "Escribe una historia corta sobre el mar, por favor.",
    "Polish": "Napisz krótkie opowiadanie o morzu i nie zapomnij o mewach.",
    "Chinese": "请写一个关于大海的短篇故事。",
    "Japanese": "海についての短い物語を書いてください。",
    "Arabic": "اكتب قصة قصيرة عن البحر من فضلك.",
    "Hindi": "कृपया समुद्र के बारे में एक छोटी कहानी लिखिए।",
    "Korean": "바다에 관한 짧은 이야기를 써 주세요.",
    "Hebrew": "כתוב בבקשה סיפור קצר על הים.",
    "Greek": "Γράψε μια σύντομη ιστορία για τη θάλασσα.",
    "Thai": "ช่วยเขียนเรื่องสั้นเกี่ยวกับทะเล",
    "emoji": "📖🌊🐚✨ ➡️ 🧜‍♀️?",
}


def chat(text: object, **more: object) -> View:
    """A chat of one user turn."""
    return View.of({"messages": [{"role": "user", "content": text}], **more})


def cue(view: View, name: str) -> float:
    """One feature of a view."""
    return float(measure(view).cues[NAMES.index(name)])


@given(st.dictionaries(KEYS | st.text(max_size=5), JSON | MESSAGES, max_size=6), KINDS)
def test_any_json_is_viewed_and_measured(body: dict[str, Any], kind: str):
    """Whatever JSON a client sends, a view and finite features come out."""
    measured = measure(View.of(body, kind))

    assert measured.cues.shape == (len(NAMES),)
    assert np.isfinite(measured.cues).all()
    assert all(0 <= bucket < 2 * BUCKETS for bucket in measured.words.tolist())


@given(st.text(max_size=9000))
def test_any_text_is_measured_the_same_twice(text: str):
    """Features depend on the text alone."""
    first, second = measure(chat(text)), measure(chat(text))

    assert np.array_equal(first.cues, second.cues)
    assert np.array_equal(first.words, second.words)
    assert np.isfinite(first.cues).all()


@pytest.mark.parametrize("body", [None, [], "text", 5, {"messages": [[[[[[]]]]]]}, {"messages": {"role": "user"}}])
def test_what_is_no_request_is_an_empty_one(body: Any):
    """A body of another type, and messages of other types, are read as saying nothing."""
    assert View.of(body).user == ""


def test_deep_nesting_is_read_to_a_fixed_depth():
    """Ten thousand levels of content cost no recursion."""
    content: Any = "deep"
    for _ in range(10_000):
        content = [{"type": "tool_result", "content": content}]

    assert chat(content).user == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_words(language: str):
    """Text in any script has words, a script and finite features."""
    measured = measure(chat(LANGUAGES[language]))

    assert np.isfinite(measured.cues).all()
    assert measured.words.size > 0
    assert (cue(chat(LANGUAGES[language]), "share_non_ascii") > 0) == (
        language not in ("English", "Spanish")
    ) or language == "Spanish"


@pytest.mark.parametrize(
    ("language", "feature"),
    [("Russian", "share_cyrillic"), ("Chinese", "share_cjk"), ("Japanese", "share_cjk"), ("Korean", "share_hangul"),
     ("Arabic", "share_semitic"), ("Hebrew", "share_semitic"), ("Greek", "share_greek"),
     ("Hindi", "share_indic"), ("Thai", "share_indic")],
)  # fmt: skip
def test_scripts_are_told_apart(language: str, feature: str):
    """The script of a text shows in its own feature."""
    assert cue(chat(LANGUAGES[language]), feature) > 0.3
    assert cue(chat(LANGUAGES["English"]), feature) == 0.0


@pytest.mark.parametrize(
    ("language", "tongue"), [("Spanish", "es"), ("Polish", "pl"), ("Russian", "ru"), ("English", "en")]
)
def test_languages_are_told_by_their_common_words(language: str, tongue: str):
    """A language's commonest words count for it."""
    assert cue(chat(LANGUAGES[language]), f"tongue_{tongue}") > 0.25


@pytest.mark.parametrize(
    "text", ["", " ", "\n" * 9000, "\x00", "\ud800", "a" * 100_000, "é" * 50_000, "'" * 5000, "9" * 5000, "²" * 50]
)
def test_hostile_text_is_measured(text: str):
    """Empty, endless, unpaired and controlling characters give finite features."""
    assert np.isfinite(measure(chat(text)).cues).all()


def test_the_view_is_bounded():
    """However large a request, what is kept of it is not."""
    text = "word " * 200_000
    tools = [{"type": "function", "function": {"name": f"f{i}" * 500, "description": text}} for i in range(500)]
    messages = [{"role": role, "content": text} for role in ("system", "user", "assistant", "user")] * 200
    view = View.of({"messages": messages, "tools": tools})

    assert len(view.user) <= USER_CAP
    assert len(view.system) <= 2 * SYSTEM_CAP
    assert len(view.earlier) <= 2 * EARLIER_CAP
    assert len(view.tools) <= 2 * TOOLS_CAP
    assert view.user_chars == len(text)
    assert view.turns == 800


def test_head_and_tail_are_kept():
    """Of a long text both ends are read, where instructions stand."""
    text = clip("START " + "x" * 10_000 + " END", 300)

    assert len(text) <= 300
    assert text.startswith("START")
    assert text.endswith("END")


def test_the_last_user_turn_is_told_from_the_rest():
    """The system prompt, earlier turns, the last user turn and a prefilled answer are kept apart."""
    roles = [
        ("system", "be brief"),
        ("user", "first"),
        ("assistant", "reply"),
        ("user", "second"),
        ("assistant", "It is"),
    ]
    view = View.of({"messages": [{"role": role, "content": text} for role, text in roles]})

    assert (view.system, view.user, view.prefill) == ("be brief", "second", "It is")
    assert "first" in view.earlier
    assert "reply" in view.earlier


def test_tool_results_after_the_question_are_counted():
    """A call that continues after tools answered says so."""
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "12 °C"},
    ]
    view = View.of({"messages": messages})

    assert view.tool_results == 1
    assert view.user == "weather?"


def test_multimodal_parts_are_flags_and_text():
    """Text parts are read; images, audio and files are counted."""
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "input_audio"},
        {"type": "file"},
    ]
    view = chat(parts)

    assert view.user == "what is this?"
    assert (view.images, view.audio, view.files) == (1, 1, 1)
    assert cue(view, "media") == pytest.approx(math.log1p(3))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat", {"messages": [{"role": "developer", "content": "brief"}, {"role": "user", "content": "count"}]}),
        ("responses", {"instructions": "brief", "input": "count"}),
        (
            "responses",
            {
                "instructions": "brief",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "count"}]}],
            },
        ),
        (
            "messages",
            {"system": [{"type": "text", "text": "brief"}], "messages": [{"role": "user", "content": "count"}]},
        ),
    ],
)
def test_four_request_shapes_say_the_same(kind: str, body: dict[str, Any]):
    """The same request in each API's shape gives the same features and the same template."""
    view = View.of(body, kind)

    assert (view.system, view.user) == ("brief", "count")
    assert view.template == View.of({"messages": [{"role": "system", "content": "brief"}]}).template


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("count", 1), (["count", "more"], 2), ([1, 2, 3], 3), ([[1, 2], [3, 4, 5]], 5)]
)
def test_completion_prompts_are_text_or_tokens(prompt: Any, tokens: int):
    """Prompts may be strings, lists of strings, or token ids, which are counted and not read."""
    view = View.of({"prompt": prompt}, "completions")

    assert view.prompt_tokens >= tokens
    assert (view.user == "") == (not isinstance(prompt, str) and not isinstance(prompt[0], str))


def test_a_template_survives_its_date():
    """Digits do not split a template; words and tools do."""

    def template(system: str, *names: str) -> str:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return View.of({"messages": [{"role": "system", "content": system}], "tools": tools}).template

    assert template("Today is 2024-05-01.") == template("Today is 2025-11-30.")
    assert template("Today is 2024-05-01.") != template("Yesterday was 2024-05-01.")
    assert template("x", "get") != template("x", "put")
    assert len(template("x")) == 16
    assert chat("hello").template == ""


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, None),
        ("1", None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (None, None),
    ],
)
def test_only_finite_numbers_are_numbers(value: object, seen: float | None):
    """Booleans, strings, nan and what no float holds are no numbers."""
    assert number(value) == seen


@given(
    st.lists(st.text(alphabet="abcdefgh0123_", min_size=1, max_size=40), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_words_are_hashed_wherever_they_stand(words: list[str], r: random.Random):
    """A word's hash depends on its bytes alone, not on its neighbours or place."""
    raw = "".join(word + r.choice([" ", ", ", "\n", "("]) for word in words).encode()
    hashes, starts, ends = hash_words(np.frombuffer(raw, np.uint8))

    assert [raw[a:b].decode() for a, b in zip(starts, ends, strict=True)] == words
    assert hashes.tolist() == [hash_of(word) for word in words]


def test_words_fold_the_case_of_ascii():
    """Capital letters make no other word."""
    assert hash_of("JSON") == hash_of("json")
    assert hash_of("json") != hash_of("jsno")


def test_pairs_keep_their_order():
    """Two words make another pair the other way round."""
    assert buckets_of("not now")[:2] == buckets_of("now not")[:2]
    assert buckets_of("not now")[2] != buckets_of("now not")[2]


def test_features_are_the_same_in_every_process():
    """No hash seed of the interpreter enters."""
    program = "from classifier.features import buckets_of; print(buckets_of('Sort these words'))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip

    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("Translate this into German: good morning", "cue_translate"),
        ("Write a poem about rain", "cue_creative"),
        ("Return JSON with the keys a and b", "cue_structure"),
        (
            "Fix the typos and return the whole text:\nhelo wrld, i am writting to you becouse of teh wether",
            "copy_material",
        ),
        ("Who wrote Hamlet?", "fact_question"),
        ("```python\nprint(1)\n```", "fences"),
        ("def my_function_name(): pass", "snake_case"),
        ("- one\n- two\n- three", "bulleted"),
    ],
)
def test_cues_are_seen(text: str, feature: str):
    """What a reader would notice has a feature that is not zero."""
    assert cue(chat(text), feature) > 0


def test_parameters_are_features():
    """Temperature, limits, tools, formats, predictions, choices and stops are read from the request."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d"}}]
    view = chat("x", temperature=0, max_tokens=9, n=3, stop=["a", "b"], tools=tools, tool_choice="required",
                response_format={"type": "json_object"}, prediction={"type": "content", "content": "abc"})  # fmt: skip
    seen = {name: cue(view, name) for name in ("temperature", "sampling", "choices", "tools", "tool_forced", "form")}

    assert seen == {"temperature": 0.0, "sampling": 0.0, "choices": 3.0, "tools": 1.0, "tool_forced": 1.0, "form": 1.0}
    assert cue(view, "log_max_tokens") == pytest.approx(math.log(10))
    assert cue(view, "prediction") == pytest.approx(math.log(4))
    assert cue(view, "stops") == pytest.approx(math.log(3))
    assert cue(chat("x"), "sampling") == 1.0


def test_a_system_prompt_adds_its_cues_at_half_weight():
    """What the system prompt asks for counts, less than what the user asks for."""
    with_system = View.of(
        {"messages": [{"role": "system", "content": "Answer in JSON"}, {"role": "user", "content": "hello"}]}
    )

    assert 0 < cue(with_system, "cue_structure") < cue(chat("Answer in JSON"), "cue_structure")
