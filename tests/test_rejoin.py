"""Going on with a broken stream: the client holds the new engine's answer, whole, or the new answer is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import DONE, ROLE, USAGE, delta, event
from hypothesis import given
from hypothesis import strategies as st

from gateway.rejoin import MOST_TEXT, RAW_BYTES, Diverged, Rejoin, Told

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
    found = told(*[delta("x" * 1024) for _ in range(MOST_TEXT // 1024 + 1)])

    with pytest.raises(Diverged):
        Rejoin(found)
    assert not found._texts
    with pytest.raises(Diverged):
        Rejoin(Told())


def thought(text: str, **fields: Any) -> bytes:
    """Return an event of a model that thinks before it answers."""
    return event(
        id="chatcmpl-1", choices=[{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None, **fields}]
    )


def test_of_a_long_answer_the_text_alone_is_kept() -> None:
    """Beyond a few events memory grows with the text, not with what stands around it."""
    pieces = [f"{number} " for number in range(4000)]
    found = told(ROLE, *map(delta, pieces))
    held = sum(len(part) for _, part in found._parts) + sum(map(len, found._texts))

    assert held < RAW_BYTES + 2 * len("".join(pieces))
    assert found.answer() == ("chatcmpl-1", "\0content\0" + "".join(pieces))


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
        | st.sampled_from(['"', "\\", "\n", "\N{GRINNING FACE}", "data: ", "\n\n"]),
        max_size=30,
    ),
    st.booleans(),
)
def test_the_text_is_kept_however_it_is_written(pieces: list[str], spaced: bool):  # noqa: FBT001
    """Events that are alike and read in runs tell the same as each read by itself, escapes, thoughts and gaps included."""
    pieces = [piece.replace("\0", "") for piece in pieces]
    separators = (", ", ": ") if spaced else (",", ":")
    events = [ROLE]
    for number, piece in enumerate(pieces):
        kind = "reasoning_content" if number % 11 == 7 else "content"
        whole = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {kind: piece}, "finish_reason": None}]}
        events.append(f"data: {json.dumps(whole, separators=separators, ensure_ascii=number % 2 == 0)}\n\n".encode())
    at_once, one_by_one = told(*events), told()
    for each in events:
        one_by_one.keep(each)
        one_by_one._digest()

    flat = kind_before = ""
    for number, piece in enumerate(pieces):
        kind = "reasoning_content" if number % 11 == 7 else "content"
        if piece:
            flat += (f"\0{kind}\0" if kind != kind_before else "") + piece
            kind_before = kind
    assert at_once.answer() == one_by_one.answer() == ("chatcmpl-1", flat)


def around(text: bytes, **fields: Any) -> tuple[bytes, bytes]:
    """Return what stands before and after the text of an event."""
    before, _, after = delta("TEXT", **fields).partition(b"TEXT")
    return before + text, after


@given(
    st.lists(
        st.tuples(st.booleans(), st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=6))
    )
)
def test_texts_are_kept_in_their_places(pieces: list[tuple[bool, str]]) -> None:
    """Texts that came without their events tell the same, among events, as the events that they are of."""
    found, whole = told(ROLE), told(ROLE)
    assert found.knows(around(b""))
    for alone, text in pieces:
        whole.keep(delta(text))
        if alone:
            found.keep_text(json.dumps(text)[1:-1].encode())
        else:
            found.keep(delta(text))

    assert outcome(found) == outcome(whole)


def outcome(found: Told) -> tuple[str, str] | None:
    """Return what was told, or None where that is not known."""
    try:
        return found.answer()
    except Diverged:
        return None


def test_texts_of_another_kind_are_kept_as_such() -> None:
    """Where the example changes, what follows is text of the new one's kind."""
    found = told(ROLE)
    before, _, after = thought("TEXT").partition(b"TEXT")
    assert found.knows((before, after))
    found.keep_text(b"Let me")
    assert found.knows(around(b""))
    found.keep_text(b" see\\n")

    assert found.answer() == ("chatcmpl-1", "\0reasoning_content\0Let me\0content\0 see\n")


@pytest.mark.parametrize(
    "example",
    [
        (b"data: nonsense", b"\n\n"),
        around(b"", finish="stop", logprobs=None)[::-1],
        around(b"more"),
        tuple(event(id="a", choices=[{"delta": {"content": "T", "reasoning": "y"}}]).split(b"T")),
        tuple(event(id="a", choices=[{"delta": {"content": "T"}, "token_ids": [1]}]).split(b"T")),
        tuple(event(id="a", choices=[{"delta": {"audio": "T"}}]).split(b"T")),
    ],
    ids=["no event", "the wrong way round", "text in it", "two texts", "token ids", "no text that is known"],
)
def test_of_events_that_say_more_the_text_alone_is_not_enough(example: tuple[bytes, bytes]) -> None:
    """An example that holds anything but one text, as it is written, is none that texts may be kept by."""
    assert not Told().knows(example)


@pytest.mark.parametrize("text", [b"a\\", b"\\x", b"\xff", b"\\u0000", b"\\ud800"])
def test_texts_that_are_none_are_not_gone_on_with(text: bytes) -> None:
    """What JSON does not read as text cannot be compared."""
    found = told(ROLE)
    assert found.knows(around(b""))
    found.keep_text(text)

    assert outcome(found) is None


@pytest.mark.parametrize("broke_at", range(1, 9))
def test_thoughts_are_gone_on_with_as_thoughts(broke_at: int) -> None:
    """Wherever a model that thinks broke off, its thoughts and its answer are whole, each in its place."""
    whole = [*map(thought, ("Let", " me", " see")), *map(delta, ("It", " is", " 42", "."))]
    first = [ROLE, *whole][:broke_at]
    rejoin = Rejoin(told(*first))
    second = [ROLE, thought("Let me"), thought(" see"), delta("It is"), delta(" 42."), delta("", finish="stop"), DONE]
    rest = b"".join(rejoin.feed(renamed(each)) for each in second)

    events = [
        json.loads(each[6:]) for each in b"".join([*first, rest]).decode().split("\n\n") if each and "[D" not in each
    ]
    deltas = [choice["delta"] for found in events for choice in found["choices"]]
    assert "".join(found.get("reasoning_content") or "" for found in deltas) == "Let me see"
    assert "".join(found.get("content") or "" for found in deltas) == "It is 42."
    assert b"chatcmpl-2" not in rest


@pytest.mark.parametrize(
    "strange",
    [
        event(id="chatcmpl-1", choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]),
        event(id="chatcmpl-1", choices=[{"index": 0, "delta": {"content": "a"}, "token_ids": [7]}]),
        event(id="chatcmpl-1", choices=[{"index": 0, "delta": {"audio": {"id": "x"}}}]),
        delta("a\0b"),
    ],
    ids=["tool calls", "token ids", "audio", "a mark of ours"],
)
def test_what_cannot_be_compared_is_not_gone_on_with(strange: bytes) -> None:
    """An answer that holds anything but known texts, told or new, stays broken."""
    with pytest.raises(Diverged):
        Rejoin(told(ROLE, strange))
    with pytest.raises(Diverged):
        Rejoin(told(ROLE, delta("a"))).feed(strange)


def test_a_note_goes_before_what_is_forwarded() -> None:
    """Once, and only when there is something to forward."""
    rejoin = Rejoin(told(ROLE, delta("a")))
    rejoin.note = b": from elsewhere\n\n"

    assert rejoin.feed(ROLE) == b""
    assert rejoin.feed(delta("ab")).startswith(b": from elsewhere\n\ndata: ")
    assert b"elsewhere" not in rejoin.feed(delta("c"))


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ({"message": "no", "code": 400}, True),
        ({"message": "no", "code": 500}, False),
        ({"message": "no", "code": "x"}, False),
        ("dead", False),
    ],
)
def test_an_engines_own_error_is_held_back(error: Any, refused: bool) -> None:  # noqa: FBT001
    """The events before it are the client's; whether the request is to blame is read from its code."""
    found = Told()
    failure = event(error=error)

    assert found.hold_failure(delta("a") + failure + delta("b")) == delta("a")
    assert found.failure == failure + delta("b")
    assert found.refused == refused
