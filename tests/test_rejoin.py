"""Going on with a broken stream: the client holds the new engine's answer, whole, or the new answer is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import DONE, ROLE, USAGE, delta, event
from hypothesis import given
from hypothesis import strategies as st

from gateway.rejoin import MOST_BYTES, Diverged, Rejoin, Told

TEXT = '1\n2\nGrüße, 世界 🎉\n"three"\n'


def told(*events: bytes) -> Told:
    """Return what a client was told by these events."""
    found = Told()
    for each in events:
        assert found.keep(each) == each
    return found


def renamed(data: bytes) -> bytes:
    """Return events of another answer's id."""
    return data.replace(b"chatcmpl-1", b"chatcmpl-2")


def text_of(data: bytes) -> str:
    """Return the text that events carry."""
    lines = [line[6:] for line in data.decode().split("\n\n") if line and not line.endswith("[DONE]")]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return "".join(choice["delta"].get("content") or "" for found in events for choice in found["choices"])


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """Return a text in pieces, of which some may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.data())
def test_whatever_the_pieces_the_client_has_the_whole_text_once(data: st.DataObject) -> None:
    """However the two engines cut the text into events and wherever the first broke off, nothing is missing or twice."""
    broke_at = data.draw(st.integers(1, len(TEXT)))
    first = [delta(piece) for piece in data.draw(pieces(TEXT[:broke_at]))]
    second = [delta(piece) for piece in data.draw(pieces(TEXT))]
    rejoin = Rejoin(told(ROLE, *first))

    rest = b"".join(rejoin.feed(renamed(each)) for each in (ROLE, *second, delta("", finish="stop"), USAGE, DONE))

    assert text_of(b"".join([ROLE, *first, rest])) == TEXT
    assert b"chatcmpl-2" not in rest
    assert rest.endswith(USAGE + DONE)
    assert rest.count(b'"stop"') == 1


@pytest.mark.parametrize(
    "second",
    [
        (delta("1\n2\n4"),),
        (delta("1\n", finish="stop"),),
        (delta("1\n"), DONE),
        (delta("1\n"), USAGE),
        (b'data: {"choi\n\n',),
        (b'data: {"choices":7}\n\n',),
    ],
    ids=["other text", "shorter", "ended", "usage too soon", "no JSON", "another shape"],
)
def test_another_answer_is_refused(second: tuple[bytes, ...]) -> None:
    """An answer that says something else, or less, is never gone on with."""
    rejoin = Rejoin(told(ROLE, delta("1\n2"), delta("\n3")))

    with pytest.raises(Diverged):
        b"".join(rejoin.feed(each) for each in second)


def test_completions_are_gone_on_with_too() -> None:
    """Events of completions carry their text elsewhere."""

    def piece(text: str, **fields: Any) -> bytes:
        return event(id="cmpl-1", choices=[{"index": 0, "text": text, "finish_reason": None, **fields}])

    rejoin = Rejoin(told(piece("a b"), piece(" c")))
    rest = rejoin.feed(piece("a b c d").replace(b"cmpl-1", b"cmpl-9") + piece(" e").replace(b"cmpl-1", b"cmpl-9"))

    assert [json.loads(line[6:])["choices"][0]["text"] for line in rest.decode().split("\n\n") if line] == [" d", " e"]
    assert b"cmpl-9" not in rest


def test_an_answer_too_long_to_be_remembered_is_not_gone_on_with() -> None:
    """Beyond a bound nothing is kept, so memory stays bounded, and the broken answer stays broken."""
    found = told(delta("x" * (MOST_BYTES // 2)), delta("x" * (MOST_BYTES // 2)))

    with pytest.raises(Diverged):
        Rejoin(found)
    with pytest.raises(Diverged):
        Rejoin(Told())
