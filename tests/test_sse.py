"""Streams as they pass: every byte kept but for what is taken out on purpose, however the reads cut them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from fakes import CHAT_EVENTS, DONE, ROLE, USAGE, USAGE_COUNTS, delta, event
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import EventTooLarge, Reader
from gateway.usage import Speculation, Usage

MANY = 1 << 20


@dataclass(frozen=True)
class Case:
    """A stream and what is known of it once it has passed; `dropped` events are not forwarded to a client without a wish."""

    events: tuple[bytes, ...]
    tokens: int  # events that carry tokens, the silent first one included
    endpoint: str = "chat"
    usage: Usage | None = None
    dropped: tuple[int, ...] = ()
    ended: bool = True
    finished: bool = True
    failed: bool = False
    silent_first: bool = True
    swallowed: bool = False
    speculation: Speculation | None = None

    @property
    def data(self) -> bytes:
        """The whole stream."""
        return b"".join(self.events)

    @property
    def kept(self) -> bytes:
        """What reaches a client that did not ask for usage."""
        return b"".join(event for place, event in enumerate(self.events) if place not in self.dropped)

    def facts(self) -> tuple[object, ...]:
        """What a reader must know in the end."""
        flags = (self.ended, self.finished, self.failed, self.silent_first, self.swallowed)
        return self.tokens, self.usage, self.speculation, flags


def told_by(reader: Reader) -> tuple[object, ...]:
    """Return the same facts as a reader has them."""
    flags = (reader.ended, reader.finished, reader.failed, reader.silent_first, reader.swallowed)
    return reader.events, reader.usage, reader.speculation, flags


def typed(name: str, fields: str) -> bytes:
    """Return one event of a typed stream."""
    return f'event: {name}\ndata: {{"type":"{name}",{fields}}}\n\n'.encode()


COUNTED = Usage(9, 6)
TEXT = tuple(event(choices=[{"index": 0, "text": text, "finish_reason": None}]) for text in ("Eins", " zwei"))
NULLS = tuple(delta(text, usage=None) for text in ("a", "b"))
RUNNING = tuple(
    delta(text, usage={"prompt_tokens": 9, "total_tokens": 9 + count, "completion_tokens": count})
    for count, text in enumerate("abcd", 1)
)
SPECULATED = event(
    choices=[],
    usage=USAGE_COUNTS,
    metrics={"speculative_decoding": {"num_spec_steps": 2, "num_draft_tokens": 14, "num_accepted_draft_tokens": 4}},
)
ERROR = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
FINISHED = delta("", finish="stop")
RESPONSE = (
    typed("response.created", '"response":{"id":"resp_1","usage":null},"sequence_number":0'),
    typed("response.output_text.delta", '"delta":"Ein","sequence_number":1'),
    typed("response.output_text.delta", '"delta":"s 世","sequence_number":2'),
    typed("response.completed", '"response":{"usage":{"input_tokens":9,"output_tokens":6}},"sequence_number":3'),
)
MESSAGE = (
    typed("message_start", '"message":{"usage":{"input_tokens":9,"output_tokens":0}}'),
    typed("content_block_start", '"index":0,"content_block":{"type":"text","text":""}'),
    typed("ping", '"x":1'),
    typed("content_block_delta", '"index":0,"delta":{"type":"text_delta","text":"Grüße"}'),
    typed("content_block_delta", '"index":0,"delta":{"type":"text_delta","text":" message_stop [DONE]"}'),
    typed("content_block_stop", '"index":0'),
    typed("message_delta", '"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":6}'),
    typed("message_stop", '"x":1'),
)
CALLED = event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}])
THOUGHT = event(choices=[{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}])
QUOTED = delta('data: [DONE] "usage": {"completion_tokens": 99} {"error"', finish="stop")
OTHER_WRITER = b'data: {"choices": [{"delta": {"role": "assistant", "content": null}, "finish_reason": null}]}\n\n'

CASES = {
    "chat": Case((*CHAT_EVENTS, DONE), tokens=5),
    "chat with the extra usage event": Case((*CHAT_EVENTS, USAGE, DONE), tokens=5, usage=COUNTED, dropped=(5,)),
    "usage null in every chunk": Case(
        (*NULLS, FINISHED, USAGE, DONE), tokens=3, usage=COUNTED, dropped=(3,), silent_first=False
    ),
    "usage so far in every chunk": Case(
        (*RUNNING, FINISHED, USAGE, DONE), tokens=5, usage=COUNTED, dropped=(5,), silent_first=False
    ),
    "usage in the last chunk": Case(
        (delta("a"), delta("b", finish="stop", usage=USAGE_COUNTS), DONE), tokens=2, usage=COUNTED, silent_first=False
    ),
    "speculation in the usage event": Case(
        (*CHAT_EVENTS, SPECULATED, DONE), tokens=5, usage=COUNTED, dropped=(5,), speculation=Speculation(2, 14, 4)
    ),
    "completions": Case((*TEXT, DONE), tokens=2, endpoint="completions", finished=False, silent_first=False),
    "responses": Case(RESPONSE, tokens=2, endpoint="responses", usage=COUNTED, finished=False, silent_first=False),
    "messages": Case(MESSAGE, tokens=2, endpoint="messages", usage=COUNTED, finished=False, silent_first=False),
    "comments": Case((b": keep-alive\n\n", ROLE, b": x\n\n", delta("a", finish="stop"), DONE), tokens=2),
    "cut": Case(CHAT_EVENTS[:3], tokens=3, ended=False, finished=False),
    "no end mark": Case(CHAT_EVENTS, tokens=5, ended=False),
    "an engine's error": Case((*CHAT_EVENTS[:2], ERROR), tokens=2, ended=False, finished=False, failed=True),
    "an engine's error, and an end": Case(
        (*CHAT_EVENTS[:2], ERROR, DONE), tokens=2, ended=False, finished=False, failed=True, dropped=(3,)
    ),
    "a failed response": Case(
        (*RESPONSE[:2], typed("response.failed", '"response":{"usage":null},"sequence_number":2')),
        tokens=1,
        endpoint="responses",
        ended=False,
        finished=False,
        failed=True,
        silent_first=False,
    ),
    "a failed message": Case(
        (*MESSAGE[:4], typed("error", '"error":{"type":"overloaded_error"}')),
        tokens=1,
        endpoint="messages",
        usage=Usage(9, 0),
        ended=False,
        finished=False,
        failed=True,
        silent_first=False,
    ),
    "a tool call": Case((ROLE, CALLED, FINISHED, DONE), tokens=3, swallowed=True),
    "reasoning after the first event": Case((ROLE, THOUGHT, FINISHED, DONE), tokens=3, swallowed=True),
    "marks inside of text": Case((ROLE, delta('"reasoning": "x", "tool_calls"'), QUOTED, DONE), tokens=3),
    "blanks after colons": Case((OTHER_WRITER, DONE), tokens=1, finished=False),
    "nothing but an end": Case((DONE,), tokens=0, finished=False, silent_first=False),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def pass_through(case: Case, pieces: list[bytes], *, strip: str = "yes") -> tuple[Reader, bytes]:
    """Feed the pieces; return the reader and what it forwarded."""
    reader = Reader(case.endpoint, strip_usage=strip == "yes", max_event_bytes=MANY)
    out = b"".join([reader.feed(piece) for piece in pieces])
    return reader, out + reader.rest()


def asked(case: Case) -> bytes:
    """Return what reaches a client that asked for usage: an end after an error is taken out even then."""
    return case.kept if case.failed else case.data


@each_case
def test_a_stream_in_one_read(case: Case) -> None:
    """The whole stream in one read is forwarded whole, and everything about it is known."""
    reader, out = pass_through(case, [case.data])

    assert out == case.kept
    assert told_by(reader) == case.facts()


@each_case
def test_a_stream_event_by_event(case: Case) -> None:
    """An event that arrives alone is forwarded at once: nothing waits for a second one."""
    reader = Reader(case.endpoint, strip_usage=True, max_event_bytes=MANY)
    out = [reader.feed(piece) for piece in case.events]

    assert out == [b"" if place in case.dropped else piece for place, piece in enumerate(case.events)]
    assert told_by(reader) == case.facts()


@each_case
def test_a_stream_byte_by_byte(case: Case) -> None:
    """Characters of several bytes, marks and blank lines may be torn apart anywhere."""
    reader, out = pass_through(case, [bytes([byte]) for byte in case.data])

    assert out == case.kept
    assert told_by(reader) == case.facts()


@each_case
def test_a_stream_cut_at_every_boundary(case: Case) -> None:
    """Two reads that meet at any byte give what one read gives."""
    for at in range(len(case.data) + 1):
        reader, out = pass_through(case, [piece for piece in (case.data[:at], case.data[at:]) if piece])

        assert out == case.kept
        assert told_by(reader) == case.facts()


@each_case
def test_only_whole_events_are_forwarded(case: Case) -> None:
    """After each read, what the client holds ends with a blank line, so no failure leaves it with half an event."""
    reader = Reader(case.endpoint, strip_usage=True, max_event_bytes=MANY)
    for at in range(0, len(case.data), 7):
        out = reader.feed(case.data[at : at + 7])

        assert not out or out.endswith(b"\n\n")


@each_case
def test_a_client_that_asked_for_usage_gets_every_event(case: Case) -> None:
    """Where the usage event is the client's own wish, nothing is taken out, and the same facts are known."""
    reader, out = pass_through(case, [case.data], strip="no")

    assert out == asked(case)
    assert told_by(reader) == case.facts()


@each_case
def test_lines_may_end_with_crlf(case: Case) -> None:
    """Streams with CRLF pass like others, whole or cut anywhere."""
    crlf = replace(case, events=tuple(event.replace(b"\n", b"\r\n") for event in case.events))
    for at in range(0, len(crlf.data) + 1, 3):
        reader, out = pass_through(crlf, [piece for piece in (crlf.data[:at], crlf.data[at:]) if piece])

        assert out == crlf.kept
        assert told_by(reader) == crlf.facts()


@each_case
def test_the_blank_after_the_colon_is_optional(case: Case) -> None:
    """`data:{` is the same field as `data: {`, and so are its end marks."""
    events = tuple(re.sub(rb"(?m)^(data|event): ", rb"\1:", event) for event in case.events)
    tight = replace(case, events=events)
    reader, out = pass_through(tight, [tight.data])

    assert out == tight.kept
    assert told_by(reader) == tight.facts()


@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 4000), max_size=12))
def test_any_cuts_give_the_same(name: str, cuts: list[int]) -> None:
    """Any number of reads of any size give the same bytes and the same facts."""
    case = CASES[name]
    places = sorted({0, len(case.data), *(cut % (len(case.data) + 1) for cut in cuts)})
    reader, out = pass_through(case, [case.data[a:b] for a, b in pairwise(places)])

    assert out == case.kept
    assert told_by(reader) == case.facts()


def test_the_end_mark_keeps_its_frame_when_the_usage_event_goes() -> None:
    """What is left is exactly the stream of an engine that was never asked, `data: [DONE]` and its blank line included."""
    case = CASES["chat with the extra usage event"]
    _, out = pass_through(case, [case.data])

    assert out == CASES["chat"].data
    assert out.endswith(b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


def test_a_stream_without_its_last_blank_line() -> None:
    """What follows the last whole event is held, and given out when the stream has ended well."""
    reader = Reader("chat", strip_usage=True, max_event_bytes=MANY)

    assert reader.feed(FINISHED + b"data: [DO") == FINISHED
    assert reader.rest() == b"data: [DO"
    assert reader.rest() == b""


def test_an_event_may_not_grow_for_ever() -> None:
    """An event over the limit without an end is an error, and what came before it has been forwarded."""
    reader = Reader("chat", strip_usage=True, max_event_bytes=100)

    assert reader.feed(ROLE + b"data: " + b"x" * 94) == ROLE
    with pytest.raises(EventTooLarge, match="over 100 bytes"):
        reader.feed(b"x")


def test_an_event_at_the_limit_passes() -> None:
    """The limit bounds what is held, not what an engine may say in one read."""
    reader = Reader("chat", strip_usage=True, max_event_bytes=100)
    long = b"data: " + b"x" * 500 + b"\n\n"

    assert reader.feed(long) == long


def test_numbered_streams_tell_their_next_number() -> None:
    """A responses stream's error event goes on counting where the engine stopped."""
    reader = Reader("responses", strip_usage=False, max_event_bytes=MANY)
    assert reader.next_sequence == 0
    reader.feed(b"".join(RESPONSE[:3]))

    assert reader.next_sequence == 3


@given(st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"data: {}", b":", b"event: x", b"a", b"\xff"]), max_size=30))
def test_malformed_events_pass(pieces: list[bytes]) -> None:
    """What is no event at all is forwarded as it came: the gateway judges no engine's grammar."""
    case = Case((), tokens=0)
    _, out = pass_through(case, pieces)

    assert out == b"".join(pieces)


def _chunk(text: str, **fields: object) -> bytes:
    """Return one event of a chat as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **fields}
    body = json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":"), ensure_ascii=False)
    return f"data: {body}\n\n".encode()


@given(
    st.lists(
        st.one_of(
            st.text(max_size=12).map(_chunk),
            st.sampled_from(
                [
                    _chunk('","tool_calls":[{"'),
                    _chunk("[DONE] event: error \\"),
                    _chunk("x", finish_reason="stop"),
                    _chunk("x", delta={"content": "a", "reasoning": "b"}),
                    _chunk("x", delta={"content": "a", "tool_calls": [{}]}),
                    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
                    b"data: [DONE]\n\n",
                    b": a comment\n\n",
                ]
            ),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_what_was_learned_of_an_event_changes_nothing(parts: list[bytes], together: int) -> None:
    """A reader that compares events with one that told nothing says the same as one that searches each."""
    learning = Reader("chat", strip_usage=True, max_event_bytes=1_000_000)
    searching = Reader("chat", strip_usage=True, max_event_bytes=1_000_000)
    searching._lessons = 0
    for at in range(0, len(parts), together):
        data = b"".join(parts[at : at + together])

        assert learning.feed(data) == searching.feed(data)
        learning.learn()

    for name in ("events", "ended", "failed", "finished", "silent_first", "silent_last", "swallowed", "usage"):
        assert getattr(learning, name) == getattr(searching, name), name
