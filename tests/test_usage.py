"""Usage: what bodies and events of the four endpoints tell of tokens and of speculation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage import Speculation, Told, Usage, read, read_whole

OPENAI: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
TYPED: dict[str, Any] = {"input_tokens": 9, "output_tokens": 6}
SPECULATED = {"speculative_decoding": {"num_spec_steps": 3, "num_draft_tokens": 21, "num_accepted_draft_tokens": 12}}


def told(value: Any, before: Usage | None = None) -> Told:
    """Read a value as JSON."""
    return read(json.dumps(value).encode(), before)


@pytest.mark.parametrize(
    "body",
    [
        {"object": "chat.completion", "choices": [{"index": 0}], "usage": OPENAI},
        {"object": "text_completion", "choices": [{"text": "x"}], "usage": OPENAI | {"prompt_tokens_details": None}},
        {"object": "response", "output": [], "usage": TYPED | {"input_tokens_details": {"cached_tokens": 0}}},
        {"type": "message", "content": [], "usage": TYPED | {"cache_read_input_tokens": 0}},
        {
            "type": "response.completed",
            "response": {"usage": TYPED, "incomplete_details": {"reason": "max_output_tokens"}},
        },
        {"type": "message_start", "message": {"usage": TYPED}},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 6, "future": [1]}},
    ],
)
def test_every_endpoint_s_usage_is_read(body: dict[str, Any]) -> None:
    """Prompt and completion tokens are found wherever an endpoint puts them, under either pair of names."""
    assert told(body) == Told(usage=Usage(9, 6))


def test_a_typed_stream_tells_whether_its_last_token_was_silent() -> None:
    """Where the model ended its answer itself, the token for that is counted and has no event; at a limit there is none."""
    limit = {"usage": TYPED, "incomplete_details": {"reason": "max_output_tokens"}}

    assert told({"type": "response.completed", "response": {"usage": TYPED, "incomplete_details": None}}).silent_last
    assert told({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": TYPED}).silent_last
    assert not told({"type": "response.completed", "response": limit}).silent_last
    assert not told({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": TYPED}).silent_last
    assert not told({"choices": [], "usage": OPENAI}).silent_last


def test_only_the_extra_event_is_only_usage() -> None:
    """The event that `include_usage` adds has no choices; one with choices, or without the field, is not it."""
    assert told({"choices": [], "usage": OPENAI}).only_usage
    assert not told({"choices": [{}], "usage": OPENAI}).only_usage
    assert not told({"usage": OPENAI}).only_usage
    assert not told({"choices": [], "usage": None}).only_usage


def test_what_a_later_event_omits_stays_as_an_earlier_one_told() -> None:
    """A messages stream tells its input tokens at the start and its output tokens at the end."""
    first = told({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}).usage
    last = told({"type": "message_delta", "usage": {"output_tokens": 6}}, first).usage

    assert last == Usage(9, 6)


@pytest.mark.parametrize(
    "body",
    [{"choices": [], "usage": OPENAI, "metrics": SPECULATED}, {"response": {"usage": TYPED, "metrics": SPECULATED}}],
)
def test_speculation_is_read_where_the_engine_offers_it(body: dict[str, Any]) -> None:
    """Per-request metrics give steps with a draft, drafted and accepted tokens."""
    assert told(body).speculation == Speculation(steps=3, drafted=21, accepted=12)


@pytest.mark.parametrize("metrics", [None, {}, {"speculative_decoding": None}, {"time_to_first_token": 0.1}])
def test_an_engine_without_speculation_tells_none(metrics: Any) -> None:
    """Other metrics, or none, are no speculation."""
    assert told({"usage": OPENAI, "metrics": metrics}) == Told(usage=Usage(9, 6))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[DONE]",
        b"{",
        b"null",
        b'{"usage":null}',
        b'{"usage":"x"}',
        b'{"usage":{"prompt_tokens":"9"}}',
        b'{"usage":{"prompt_tokens":9.5}}',
        b'{"usage":{"prompt_tokens":9},"x":"\xff"',
        b'{"choices":[{"delta":{"content":"\\"usage\\": {}"}}]}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_tells_nothing(data: bytes) -> None:
    """Malformed data, and usage that is none, is no error: there is simply nothing to count."""
    assert read(data) == Told()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":2}}', Told(usage=Usage(9, 2))),
        (b'{"usage":{"prompt_tokens":"9"},"choices":[{}]}', Told()),
        (b"[1, 2]", Told()),
        (b"[" * 100_000, Told()),
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":2}', None),
        (b'{"usage":{"prompt_tokens":"9"},"choices":[{', None),
        (b'{"usage":{"prompt_tokens":9}}{}', None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_a_whole_body_tells_its_usage_or_is_none(body: bytes, found: Told | None) -> None:
    """Of a body that says it is JSON one reading tells both what it says and whether it is whole; odd types are no defect."""
    assert read_whole(body) == found


@given(st.binary(max_size=80))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever an engine sends, reading its usage never fails."""
    assert isinstance(read(b'{"usage":' + data + b"}"), Told)
