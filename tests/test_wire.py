"""Request bodies: forwarded byte for byte but for what must change, and refused by the name of the field that is wrong."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import splice, wire
from gateway.errors import BadRequest
from gateway.wire import Call, Endpoint

USER = [{"role": "user", "content": "Hi"}]
PROMPTS: dict[Endpoint, dict[str, Any]] = {
    "chat": {"messages": USER},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": USER, "max_tokens": 9},
}
BLANKS = ("", "", "", " ", "\n", "\t ", "\r\n  ")
SERVED = 'org/Served "name" é'


def body_of(endpoint: Endpoint = "chat", **fields: Any) -> bytes:
    """Return a request body with these fields."""
    return json.dumps({"model": "demo", **PROMPTS[endpoint], **fields}).encode()


def call_of(endpoint: Endpoint = "chat", **fields: Any) -> Call:
    """Parse such a body."""
    return wire.parse(body_of(endpoint, **fields), endpoint)


def refused(body: bytes, endpoint: Endpoint = "chat") -> BadRequest:
    """Return the error that a body is refused with."""
    with pytest.raises(BadRequest) as caught:
        wire.parse(body, endpoint)
    return caught.value


def outcome(body: bytes, endpoint: Endpoint = "chat") -> tuple[Call | None, BadRequest | None]:
    """Return the call, or the error that the body is refused with."""
    try:
        return wire.parse(body, endpoint), None
    except BadRequest as error:
        return None, error


# Text that any JSON writer might have written


class Pen:
    """Writes JSON values the way that other people's programs might: any blanks, any escapes."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def blank(self) -> str:
        """Return blanks that JSON allows between tokens."""
        return self._chance.choice(BLANKS)

    def text(self, value: str) -> str:
        """Return a string, each character plain or escaped."""
        return '"' + "".join(map(self._character, value)) + '"'

    def value(self, value: Any) -> str:
        """Return any value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return "[" + self.blank() + ",".join(self.blank() + self.value(item) + self.blank() for item in value) + "]"
        if isinstance(value, dict):
            return self.members([(key, self.value(item)) for key, item in value.items()])
        return json.dumps(value)

    def members(self, members: list[tuple[str, str]]) -> str:
        """Return an object of names and written values, which may repeat a name."""
        blank = self.blank
        written = [f"{blank()}{self.text(name)}{blank()}:{blank()}{value}{blank()}" for name, value in members]
        return "{" + blank() + ",".join(written) + "}"

    def _character(self, character: str) -> str:
        if character in '"\\' or ord(character) < 32:
            return json.dumps(character)[1:-1]
        if self._chance.random() < 0.8:
            return character
        if character == "/":
            return r"\/"
        units = character.encode("utf-16-be")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
KNOWN = frozenset(wire._Request.__struct_fields__)
MODEL_HERE, OPTIONS_HERE = "\ue000", "\ue001"  # stand in the text for what will be spliced
ASKING: dict[str, str] = {
    '{"include_usage":false}': '{"include_usage":true}',
    '{ "include_usage" : false , "x": [1] }': '{ "include_usage" : true , "x": [1] }',
    '{"include_usage":null}': '{"include_usage":true}',
    '{"continuous":{"include_usage":true}}': '{"include_usage":true,"continuous":{"include_usage":true}}',
    "{ }": '{"include_usage":true }',
    "{}": '{"include_usage":true}',
    "null": '{"include_usage":true}',
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, str]:
    """Draw a chat request's text with marks where `model` and `stream_options` lie, and those two values."""
    pen = Pen(random.Random(draw(st.integers(0, 2**32))))  # st.randoms would draw for every single character
    others = draw(st.dictionaries(TEXT.filter(lambda name: name not in KNOWN), JSON, max_size=6))
    members = [(name, pen.value(value)) for name, value in others.items()]
    members += [("messages", pen.value([{"role": "user", "content": draw(TEXT)}])), ("stream", "true")]
    members += [("model", MODEL_HERE)]
    options = draw(st.sampled_from(["", *ASKING]))
    if options:
        members += [("stream_options", OPTIONS_HERE)]
    members = draw(st.permutations(members))
    for name in draw(st.lists(st.sampled_from(["model", "stream_options", "messages", "x"]), max_size=3)):
        if name in dict(members):  # an earlier member of the same name, which the later one outdoes
            members = [
                (name, pen.value("decoy" if name == "model" else USER if name == "messages" else None)),
                *members,
            ]
    return pen.blank() + pen.members(members) + pen.blank(), pen.text(draw(TEXT.filter(bool))), options


@settings(max_examples=80)
@given(requests())
def test_splicing_changes_only_the_spliced_values(request: tuple[str, str, str]) -> None:
    """Blanks, escapes, order, repeated names and unknown fields of any JSON object stay as they came, to the byte."""
    text, model, options = request
    body = text.replace(MODEL_HERE, model).replace(OPTIONS_HERE, options).encode()
    call = wire.parse(body, "chat")

    expected = text.replace(MODEL_HERE, '"' + SERVED.replace('"', '\\"') + '"')
    expected = expected.replace(OPTIONS_HERE, ASKING.get(options, ""))
    if not options:
        expected = expected.replace("{", '{"stream_options":{"include_usage":true},', 1)
    assert call.model == json.loads(model)
    assert call.adds_usage
    assert call.body_for(SERVED) == expected.encode()
    told = json.loads(call.body_for(SERVED))
    assert told["model"] == SERVED
    assert told["stream_options"]["include_usage"] is True


@settings(max_examples=40)
@given(requests())
def test_a_body_that_needs_no_change_is_the_same_object(request: tuple[str, str, str]) -> None:
    """An engine that serves the model under the client's name gets the very bytes when no usage must be asked for."""
    text, model, _ = request
    wish = '{"include_usage":true}'
    text = (
        text.replace(OPTIONS_HERE, wish)
        if OPTIONS_HERE in text
        else text.replace("{", f'{{"stream_options":{wish},', 1)
    )
    body = text.replace(MODEL_HERE, model).encode()
    call = wire.parse(body, "chat")

    assert call.wants_usage
    assert call.body_for(call.model) is body


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_usage_is_asked_for_only_where_it_is_optional(endpoint: Endpoint) -> None:
    """Typed streams always tell their usage, so nothing is spliced into their bodies."""
    call = call_of(endpoint, stream=True)

    assert not call.adds_usage
    assert call.body_for("demo") is call.body
    assert json.loads(call.body_for("other")) == {**json.loads(call.body), "model": "other"}


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": True, "continuous_usage_stats": True}, True),
        ({"include_usage": 1}, True),
        ({"include_usage": "true"}, True),
        ({"include_usage": False}, False),
        ({"include_usage": None}, False),
        ({"other": {"include_usage": True}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_whether_the_client_wants_the_usage_event(options: Any, wants: bool) -> None:  # noqa: FBT001
    """Only who asked for usage gets the event; whatever else may mean "true" to an engine counts as asked."""
    call = call_of(stream=True, stream_options=options)

    assert call.wants_usage is wants
    assert call.adds_usage is not wants


def test_usage_in_every_chunk_is_not_switched_on_with_it() -> None:
    """Without `include_usage` vLLM ignores `continuous_usage_stats`; when the one is spliced in, the other is taken back."""
    call = call_of(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": False})

    assert json.loads(call.body_for("demo"))["stream_options"] == {
        "continuous_usage_stats": False,
        "include_usage": True,
    }


def test_an_escaped_name_is_the_same_name() -> None:
    """A client that escapes letters of a name has asked all the same."""
    body = rb'{"m\u006fdel":"demo","messages":[{"role":"user","content":""}],"stream":true,'
    body += rb'"stream_options":{"include\u005fusage":true}}'
    call = wire.parse(body, "chat")

    assert call.wants_usage
    assert call.body_for("x") == body.replace(b'"demo"', b'"x"')


UNKNOWN: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "guided_decoding_backend": "xgrammar",
    "return_token_ids": True,
    "skip_special_tokens": False,
    "cache_salt": "abc",
    "vllm_xargs": {"a": 1.50},
    "documents": [{"title": "ä"}],
    "priority": -1,
    "future_field": None,
}


def test_unknown_fields_survive() -> None:
    """The parameters of vLLM, and those that nobody has thought of yet, reach the engine unchanged."""
    call = call_of(**UNKNOWN)

    assert json.loads(call.body_for("other")) == {**json.loads(call.body), "model": "other"}
    assert call.body_for("demo") is call.body


# What a call needs of an engine


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"min_p": 0},
        {"min_p": 0.0},
        {"min_p": None},
        {"logit_bias": {}},
        {"logit_bias": None},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"guided_json": None},
        {"structured_outputs": None},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "auto", "tools": []},
        {"tool_choice": "none"},
        {"tool_choice": None},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"repetition_penalty": 1.0},
        {"repetition_penalty": 1},
        {"logprobs": False},
        {"logprobs": None},
        {"top_logprobs": 0},
        {"n": 1},
        {"n": None},
        {"best_of": 1},
        {"use_beam_search": False},
        {"top_p": 1},
        {"top_k": -1},
    ],
)
def test_values_that_mean_nothing_are_no_constraint(fields: dict[str, Any]) -> None:
    """`min_p: 0` and its like ask for nothing: constraints are judged by values, not by presence."""
    assert call_of(temperature=0, **fields).features == frozenset()


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"min_p": 0.05}, "min_p"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "structured_output"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "structured_output"),
        ({"guided_json": {"type": "object"}}, "structured_output"),
        ({"guided_regex": "a+"}, "structured_output"),
        ({"guided_choice": ["a", "b"]}, "structured_output"),
        ({"guided_grammar": "root ::= x"}, "structured_output"),
        ({"structured_outputs": {"json": {}}}, "structured_output"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"presence_penalty": 0.1}, "penalties"),
        ({"frequency_penalty": -0.1}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs"),
        ({"prompt_logprobs": 0}, "logprobs"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "n"),
        ({"use_beam_search": True}, "n"),
        ({"temperature": None}, "sampling"),
        ({"temperature": 0.1}, "sampling"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "images"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "images"),
    ],
)
def test_what_a_value_asks_for(fields: dict[str, Any], feature: str) -> None:
    """Each ability that a speculative engine may lack is found by the value that needs it, and nothing else is."""
    assert call_of(**{"temperature": 0, **fields}).features == {feature}


@pytest.mark.parametrize(
    ("endpoint", "fields", "features"),
    [
        ("completions", {"logprobs": 0}, {"logprobs"}),
        ("completions", {"logprobs": False}, set()),
        ("completions", {"echo": True}, set()),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, {"structured_output"}),
        ("responses", {"text": {"format": {"type": "text"}}}, set()),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"images"}),
        ("messages", {"tool_choice": {"type": "any"}}, {"tool_choice"}),
        ("messages", {"tool_choice": {"type": "auto"}}, set()),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {"images"}),
    ],
)
def test_each_endpoint_s_own_words(endpoint: Endpoint, fields: dict[str, Any], features: set[str]) -> None:
    """The same ability is spelt differently at each endpoint."""
    assert call_of(endpoint, **{"temperature": 0, **fields}).features == features


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
        ({"max_output_tokens": 9}, 9),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": 10**30}, 2**31),
        ({"max_tokens": 1.9}, 1),
        ({"max_tokens": None}, None),
    ],
)
def test_the_limit_of_an_answer(fields: dict[str, Any], limit: int | None) -> None:
    """The newer name goes before the older, and the number is brought within what can be counted with."""
    assert call_of(**fields).max_tokens == limit


def test_the_facts_of_a_call() -> None:
    """Scoring and routing read model, stream, temperature, tools and the view, and nothing needs a second look."""
    call = call_of(stream=True, temperature=0.5, tools=[{"type": "function", "function": {"name": "f"}}])

    assert (call.endpoint, call.model, call.stream, call.temperature) == ("chat", "demo", True, 0.5)
    assert call.has_tools
    assert call.view.prompt_tokens >= 1
    assert call.view.template
    assert not call_of(stream=None).stream
    assert call_of().temperature is None


# Bodies that are refused

WRONG_NUMBERS: tuple[Any, ...] = ("1", True, [], {})
WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("model", 5, "model"),
    ("model", None, "model"),
    ("stream", "yes", "stream"),
    ("messages", "x", "messages"),
    ("messages", {}, "messages"),
    ("messages", [5], "messages[0]"),
    ("messages", [{}], "messages[0].role"),
    ("messages", [*USER, {"role": 5, "content": "x"}], "messages[1].role"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("messages", [{"role": "user", "content": {}}], "messages[0].content"),
    ("tools", "x", "tools"),
    ("tools", [5], "tools[0]"),
    ("tool_choice", 5, "tool_choice"),
    ("response_format", "json", "response_format"),
    ("text", "x", "text"),
    ("prediction", [], "prediction"),
    ("stop", 5, "stop"),
    ("stop", ["a", 5], "stop[1]"),
    ("messages", [{"role": "user", "content": ["x", 5]}], "messages[0].content[1]"),
    ("stream_options", [], "stream_options"),
    ("stream_options", "x", "stream_options"),
    ("stream_options", True, "stream_options"),
    ("output_config", 5, "output_config"),
    ("instructions", 5, "instructions"),
    ("system", 5, "system"),
    ("prompt", 5, "prompt"),
    ("input", 5, "input"),
    ("use_beam_search", 1, "use_beam_search"),
    ("logit_bias", [], "logit_bias"),
    *[
        (name, wrong, name)
        for name in (
            "max_tokens max_completion_tokens max_output_tokens temperature top_p min_p top_k n best_of top_logprobs"
            " prompt_logprobs presence_penalty frequency_penalty repetition_penalty"
        ).split()
        for wrong in WRONG_NUMBERS
    ],
    ("logprobs", "1", "logprobs"),
]


@pytest.mark.parametrize(("name", "value", "param"), WRONG_TYPES, ids=lambda value: str(value)[:20])
def test_a_wrong_type_is_named(name: str, value: Any, param: str) -> None:
    """The error says which field is wrong, in `param` and in words."""
    error = refused(body_of(**{name: value}))

    assert error.param == param
    assert f"'{param}'" in error.message
    assert error.code == "invalid_type"


def test_every_field_that_is_read_is_checked() -> None:
    """No field of the parser's lacks a wrong type above, but for those whose type is the engine's to judge."""
    anything = {name for name in KNOWN if name.startswith("guided_")} | {"structured_outputs", "prompt_embeds"}

    assert {name for name, _, _ in WRONG_TYPES} == KNOWN - anything


@pytest.mark.parametrize(
    ("endpoint", "missing"),
    [("chat", "messages"), ("messages", "messages"), ("completions", "prompt"), ("responses", "input")],
)
def test_a_missing_prompt_is_named(endpoint: Endpoint, missing: str) -> None:
    """Each endpoint has one field without which there is nothing to answer."""
    assert refused(b'{"model":"demo"}', endpoint).param == missing
    assert refused(json.dumps({"model": "demo", missing: None}).encode(), endpoint).param == missing


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "model"),
        (b'{"messages":[]}', "model"),
        (b'{"model":"","messages":[]}', "model"),
        (b'{"model":"demo","messages":[]}', "messages"),
    ],
)
def test_what_must_be_there(body: bytes, param: str) -> None:
    """A request without a model or without a message is refused by that name."""
    assert refused(body).param == param


def with_value(value: bytes, field: str = "x") -> bytes:
    """Return a request with a written value in a field."""
    return b'{"model":"demo","messages":[{"role":"user","content":""}],"%b":%b}' % (field.encode(), value)


DEEP = b"[" * 1_000_000 + b"]" * 1_000_000  # too deep for any stack; Python 3.14 on has no other bound


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"hello", "invalid_json"),
        (with_value(b"1")[:-1], "invalid_json"),
        (with_value(b"1") + b"x", "invalid_json"),
        (with_value(b"1") * 2, "invalid_json"),
        (with_value(b"'1'"), "invalid_json"),
        (with_value(b"NaN"), "invalid_json"),
        (with_value(b"-Infinity", "temperature"), "invalid_json"),
        (with_value(b"01"), "invalid_json"),
        (with_value(b"1,"), "invalid_json"),
        (b"\xef\xbb\xbf" + with_value(b"1"), "invalid_json"),
        (with_value(b"1").decode().encode("utf-16"), "invalid_utf8"),
        (with_value(b'"\x00"'), "invalid_json"),
        (b"\x00" + with_value(b"1"), "invalid_json"),
        (with_value(b'"\n"'), "invalid_json"),
        (with_value(b'"\xff"'), "invalid_utf8"),
        (with_value(b'"\xc3"'), "invalid_utf8"),
        (with_value(b'"\xed\xa0\x80"'), "invalid_utf8"),  # a surrogate in UTF-8's clothes
        (with_value(b'"\\ud800"', "instructions"), "invalid_json"),
        (with_value(b'"\\udc00\\ud800"', "instructions"), "invalid_json"),
        (with_value(b'"\\u12"', "instructions"), "invalid_json"),
        (with_value(DEEP), "invalid_json"),
        (with_value(DEEP, "stream_options"), "invalid_json"),
        (with_value(DEEP, "guided_json"), "invalid_json"),
        (with_value(b'[{"a":' + DEEP + b"}]", "tools"), "invalid_json"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
        (b'"x"', "invalid_type"),
    ],
    ids=range(29),
)
def test_bodies_that_are_no_request(body: bytes, code: str) -> None:
    """Malformed JSON, NUL, invalid UTF-8, lone surrogates and deep nesting are a 400 that says so."""
    error = refused(body)

    assert error.code == code
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "value", [b"9" * 400, b"-" + b"9" * 400, b"9" * 10_000, b"1e400", b"-1e400", b"1e308", b"1e-400", b"1" + b"0" * 40]
)
@pytest.mark.parametrize("field", ["temperature", "max_tokens", "n", "min_p", "presence_penalty", "x"])
def test_huge_numbers_do_no_harm(value: bytes, field: str) -> None:
    """A number of any size is either read or refused by the name of its field."""
    body = with_value(value, field)
    call, error = outcome(body)

    assert error is None or error.param in {field, None}
    assert call is None or call.body_for("demo") is body


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    """Whatever bytes come, the one thing that can happen is BadRequest."""
    _, error = outcome(body)

    assert error is None or error.status == 400
    assert splice.named_model(body) is None
    assert isinstance(splice.field_names(body), frozenset)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), JSON, max_size=8), st.sampled_from(sorted(PROMPTS)))
def test_no_value_of_a_known_field_does_more_than_be_refused(fields: dict[str, Any], endpoint: Endpoint) -> None:
    """Any JSON in any field that is read gives a call that can be sent, or BadRequest that names a field."""
    body = body_of(endpoint, **fields)
    call, error = outcome(body, endpoint)

    if call is None:
        assert error is not None
        assert error.param is not None
        return
    sent, told = json.loads(body), json.loads(call.body_for("served"))
    assert told.pop("model") == "served"
    told.pop("stream_options", None)
    assert told == {name: value for name, value in sent.items() if name not in {"model", "stream_options"}}


# Other paths' bodies


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"demo","prompt":"x"}', "demo"),
        (b'{"prompt":"x"}', None),
        (b'{"model":null}', None),
        (b'{"model":5}', None),
        (b'{"model":"\xff"}', None),
        (b"", None),
        (b"--boundary\r\n", None),
        (b"[]", None),
        (DEEP, None),
    ],
)
def test_the_model_that_another_path_names(body: bytes, name: str | None) -> None:
    """A body that is not JSON, or has no model in it, names none, and is no error."""
    assert splice.named_model(body) == name


def test_renaming_the_model_leaves_the_rest() -> None:
    """Another path's body is forwarded byte for byte but for the model's name."""
    body = b'{ "prompt": "x\\u00e9", "model" :\t"demo" , "a": 1.00 }'

    assert splice.rename_model(body, "other") == body.replace(b'"demo"', b'"other"')


def test_names_at_the_top_of_an_object() -> None:
    """Names are found without reading values; what is no object has none."""
    assert splice.field_names(b'{"a":[{"b":1}],"c":2}') == {"a", "c"}
    assert splice.field_names(b"[1]") == frozenset()
    assert splice.field_names(DEEP) == frozenset()


@pytest.mark.parametrize(
    "field", ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"]
)
def test_every_way_to_guide_an_answer_is_seen_by_the_score(field: str) -> None:
    """What holds an answer to a form weighs in the score, whichever field asks for it."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], field: {"choice": ["a", "b"]}}

    assert wire.parse(json.dumps(body).encode(), "chat").view.form == "guided"
