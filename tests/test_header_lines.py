"""Header lines as they come, are looked up, left out and written: the compiled part does what the definition in Python does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import _native as native
from gateway import headers
from gateway.headers import PlainHead, plain_lines, plain_values, plain_without

KNOWN = [
    b"Host",
    b"host",
    b"Expect",
    b"Content-Type",
    b"content-length",
    b"Transfer-Encoding",
    b"X-Draftlane-Route",
    b"x",
]
NAMES = st.one_of(st.sampled_from(KNOWN), st.binary(max_size=12))
VALUES = st.one_of(
    st.sampled_from(
        [b"100-Continue", b"text/event-stream; charset=utf-8", b"application/json", b"jso", b"a\nb", b"\r"]
    ),
    st.binary(max_size=20),
)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
FLAGS = ("host", "awaits_continue", "framed", "is_events", "is_json")


def told(head: Any) -> list[object]:
    """Return all that a head says of the message's frame."""
    return [getattr(head, flag) for flag in FLAGS]


def test_the_gateway_uses_the_compiled_part() -> None:
    """Where a C compiler was there, what the gateway imports is what it made."""
    assert (headers.Head, headers.lines, headers.values) == (native.Head, native.lines, native.values)
    assert headers.without is native.without


@given(messages=st.lists(st.tuples(HEADERS, HEADERS), max_size=3))
def test_heads_are_collected_alike(messages: list[tuple[headers.Headers, headers.Headers]]) -> None:
    """One collector serves messages one after the other; trailers, behind the end of the head, are dropped."""
    heads = PlainHead(), native.Head()
    for lines, trailers in messages:
        for head in heads:
            head.begin()
            for name, value in lines:
                head.add(name, value)
        assert told(heads[0]) == told(heads[1])
        assert heads[0].end() == heads[1].end() == [(name.lower(), value) for name, value in lines]
        before = told(heads[0])
        for head in heads:
            for name, value in trailers:
                head.add(name, value)
            assert head.end() == []
            assert told(head) == before


@pytest.mark.parametrize("letter", [bytes([code]) for code in range(ord("A"), ord("Z") + 1)])
def test_names_of_one_letter_leave_that_letter_alone(letter: bytes) -> None:
    """The interpreter has one object for every single byte: lower case is a new one."""
    head = native.Head()
    head.add(letter, letter)

    assert head.end() == [(letter.lower(), letter)]
    assert (b"-" + letter)[1:] == bytes([letter[0]]) == letter
    assert letter.isupper()


def test_what_a_head_tells() -> None:
    """Of several Host headers none is one; the content type says what the body is; a length or a coding frames it."""
    head = headers.Head()
    head.add(b"Host", b"one")
    assert head.host == b"one"
    head.add(b"hOST", b"two")
    head.add(b"Content-Type", b"text/event-stream; charset=utf-8")
    head.add(b"Expect", b"100-CONTINUE")
    assert head.host == b"\0"
    assert (head.is_events, head.is_json, head.awaits_continue, head.framed) == (True, False, True, False)
    head.begin()
    head.add(b"content-type", b"application/json")
    head.add(b"transfer-encoding", b"chunked")
    assert told(head) == [None, False, True, False, True]


@given(pairs=HEADERS, names=st.lists(NAMES, max_size=3), beginnings=st.lists(NAMES, max_size=2))
def test_lines_are_looked_up_and_left_out_alike(
    pairs: list[headers.Header], names: list[bytes], beginnings: list[bytes]
) -> None:
    """Looking up and leaving out find the same headers, whether they come as lists or as tuples."""
    for given_ in (pairs, tuple(pairs), [list(pair) for pair in pairs]):
        assert native.values(given_, *names) == plain_values(pairs, *names)
        found = native.without(given_, frozenset(names), tuple(beginnings))
        assert [tuple(pair) for pair in found] == plain_without(pairs, set(names), tuple(beginnings))


@given(pairs=HEADERS)
def test_lines_are_written_alike(pairs: list[headers.Header]) -> None:
    """Lines are the same bytes, and a line break within one, which would be another header, is refused by both."""
    if any(b"\n" in name + value for name, value in pairs):
        for write in (native.lines, plain_lines):
            with pytest.raises(ValueError, match="line break"):
                write(pairs)
    else:
        assert native.lines(pairs) == native.lines(tuple(pairs)) == plain_lines(pairs)


@pytest.mark.parametrize(
    "call",
    [
        lambda: native.Head(1),
        lambda: native.Head().add(b"a"),
        lambda: native.Head().add("a", b"b"),
        lambda: native.lines(5),
        lambda: native.lines([(b"a",)]),
        lambda: native.lines([(b"a", "b")]),
        native.values,
        lambda: native.values([(b"a", b"b")], "a"),
        lambda: native.values([b"ab"], b"a"),
        lambda: native.without([(b"a", b"b")], [b"a"], ()),
        lambda: native.without([(b"a", b"b")], {b"a"}, ("x",)),
        lambda: native.without([(b"a", 1)], {b"b"}, ()),
    ],
)
def test_what_is_no_header_is_refused(call: Any) -> None:
    """Whatever is not made of bytes raises a TypeError: nothing is read that is not there."""
    with pytest.raises(TypeError):
        call()
