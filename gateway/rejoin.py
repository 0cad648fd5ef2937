"""Going on with a stream that broke off: another engine is asked the same, and its client gets what is missing. No I/O.

Pools of one model say the same at temperature 0, however they speculate. So the new answer is read from its beginning,
compared with what was told, and passed on from where the first one broke off. In the end the client holds the new engine's
answer, whole, or is told that its answer broke off: nothing is ever glued together from two different answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec

from gateway import sse

MOST_TEXT: Final = 256 * 1024  # characters of one answer that are remembered; a longer one that breaks off stays broken
RAW_BYTES: Final = 32 * 1024  # of events that are kept as they are, before only their text is: a hundred tokens
# What may be compared. Anything else in an event, such as calls of tools or ids of tokens, is not known well enough.
_TEXTS: Final = frozenset({"content", "reasoning_content", "reasoning"})

_PLAIN: Final = rb'[^"\\\x00-\x1f]*+'  # text that JSON writes as it is

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Diverged(Exception):
    """The new answer is another one, or the old one cannot be compared."""


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None  # of completions
    token_ids: Any = None
    finish_reason: str | None = None

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield what the event adds to the answer: where, and what; raises Diverged where that is no text."""
        if self.token_ids:
            raise Diverged
        if self.text:
            yield "text", self.text
        for name, value in (self.delta or {}).items():
            if value and name != "role":
                if name not in _TEXTS or not isinstance(value, str) or "\0" in value:
                    raise Diverged
                yield name, value


class _Event(msgspec.Struct):
    id: str = ""
    choices: list[_Choice] = []


class _Failure(msgspec.Struct):
    error: dict[str, Any] | str


_decode: Final = msgspec.json.Decoder(_Event).decode
_decode_failure: Final = msgspec.json.Decoder(_Failure).decode


class _Flat:
    """Texts of several kinds as one, in which the kind stands between NULs where another one begins."""

    __slots__ = ("_kind",)

    def __init__(self) -> None:
        self._kind = ""

    def add(self, pieces: Iterator[tuple[str, str]]) -> str:
        """Return further pieces as they follow the ones before."""
        flat = ""
        for kind, text in pieces:
            if text and kind != self._kind:
                self._kind = kind
                flat += f"\0{kind}\0"
            flat += text
        return flat


class _Alike:
    """Events that differ from an example in their text alone: most of a stream's, and read thirty times as fast."""

    __slots__ = ("_head", "_quotes", "_tail", "kind")

    def __init__(self, kind: str, head: bytes, tail: bytes) -> None:
        self.kind = kind
        self._head, self._tail = head, tail
        self._quotes = tail.count(b'"')

    @classmethod
    def of(cls, event: bytes, kind: str, text: str) -> _Alike | None:
        """Take an event with one piece of text for the example; None where the text is not found as it is, or twice."""
        written = b'"%b":"%b"' % (kind.encode(), text.encode())
        if event.count(written) != 1 or not re.fullmatch(_PLAIN, text.encode()):
            return None
        head, _, tail = event.partition(written)
        return cls(kind, head + b'"%b":"' % kind.encode(), b'"' + tail)

    def run(self, data: bytes, at: int) -> tuple[str, int] | None:
        """Return the text of the events alike that begin at a place, and where they end; None where there are none."""
        head, tail, size = self._head, self._tail, len(self._tail)
        if not data.startswith(head, at):
            return None
        texts, end = [], at
        for part in data[at + len(head) :].split(head):
            # A quote that is not escaped would be the end of the text, and the rest of it something else.
            if (
                not part.endswith(tail)
                or part.count(b'"') - part.count(b'\\"') != self._quotes
                or part.count(b"\n\n") != 1
            ):
                break
            texts.append(part[:-size])
            end += len(head) + len(part)
        return (_unescaped(b"".join(texts)), end) if texts else None


class Told:
    """What a client has been told of an answer; `failure` is the engine's own error event, which it has not been told yet."""

    __slots__ = (
        "_alike",
        "_example",
        "_flat",
        "_id",
        "_kind",
        "_lost",
        "_parts",
        "_size",
        "_text",
        "_texts",
        "failure",
    )

    def __init__(self) -> None:
        self._parts: list[tuple[str, bytes]] = []  # whole events, or the text alone of some and of what kind it is
        self._size = 0  # of them
        self._id: str | None = None
        self._flat = _Flat()
        self._alike: _Alike | None = None
        self._example: tuple[bytes, bytes] | None = None
        self._kind = ""  # of the text in it
        self._texts: list[str] = []
        self._text = 0  # characters of them
        self._lost = False
        self.failure = b""

    def keep(self, data: bytes) -> bytes:
        """Remember whole events on their way to the client, and return them."""
        self._keep("", data)
        return data

    def knows(self, example: tuple[bytes, bytes]) -> bool:
        """Whether of events that begin and end so the text between is all that there is to remember."""
        if example != self._example:
            self._example, self._kind = example, _kind_of(*example)
        return self._kind != ""

    def keep_text(self, text: bytes) -> None:
        """Remember the texts, as they were written, of events like the example that was asked for last."""
        self._keep(self._kind, text)

    def _keep(self, kind: str, data: bytes) -> None:
        self._parts.append((kind, data))
        self._size += len(data)
        if self._size > RAW_BYTES:
            self._digest()

    def hold_failure(self, data: bytes) -> bytes:
        """Keep the engine's error event, and what follows it, from the client; return the events before it."""
        before = b""
        for event in sse.events(data):
            if self.failure or sse.fails(event):
                self.failure += event
            else:
                before += event
        return before

    @property
    def refused(self) -> bool:
        """Whether the engine's error blames the request: any other engine would refuse it too."""
        try:
            error = _decode_failure(sse.data_of(self.failure)).error
        except UNREADABLE:
            return False
        code = error.get("code") if isinstance(error, dict) else None
        return isinstance(code, int) and 400 <= code < 500

    def answer(self) -> tuple[str, str]:
        """Return the id and the text that were told; raises Diverged when they are not to be had any more."""
        self._digest()
        if self._lost or self._id is None:
            raise Diverged
        return self._id, "".join(self._texts)

    def _digest(self) -> None:
        """Keep of events their text alone: a tenth of their size."""
        try:
            for kind, parts in groupby(() if self._lost else self._parts, itemgetter(0)):
                data = b"".join([part for _, part in parts])
                if kind:
                    self._add(iter([(kind, _unescaped(data))]))
                else:
                    self._read(data)
        except Diverged:
            self._lost = True
        if self._lost or self._text > MOST_TEXT:
            self._lost = True
            self._texts.clear()
        self._parts.clear()
        self._size = 0

    def _read(self, data: bytes) -> None:
        """Read whole events."""
        at = 0
        while at < len(data):
            if self._alike is not None and (found := self._alike.run(data, at)):
                self._add(iter([(self._alike.kind, found[0])]))
                at = found[1]
                continue
            end = sse.end_of(data, at)
            if sse.data_of(event := data[at:end]):
                self._take(event)
            at = end

    def _take(self, event: bytes) -> None:
        read = _read(event)
        if self._id is None:
            self._id = read.id
        pieces = [piece for choice in read.choices for piece in choice.pieces()]
        self._add(iter(pieces))
        if len(pieces) == 1:
            self._alike = _Alike.of(event, *pieces[0]) or self._alike

    def _add(self, pieces: Iterator[tuple[str, str]]) -> None:
        text = self._flat.add(pieces)
        self._texts.append(text)
        self._text += len(text)


def _kind_of(before: bytes, after: bytes) -> str:
    """Return of what kind the text is between these; "" where events like that say more, or nothing that can be compared."""
    try:
        choices = _read(before + b"x" + after).choices
        pieces = [piece for choice in choices for piece in choice.pieces()]
    except Diverged:
        return ""
    return pieces[0][0] if len(pieces) == 1 and pieces[0][1] == "x" else ""


def _unescaped(text: bytes) -> str:
    """Read text as JSON writes it between quotes; raises Diverged where it is none."""
    try:
        read = msgspec.json.decode(b'"%b"' % text, type=str)
    except UNREADABLE:
        raise Diverged from None
    if "\0" in read:
        raise Diverged
    return read


class Rejoin:
    """Follows the new answer; `feed` returns nothing until it has reached what was told, and the rest from there on.

    `behind` is true until then. `note` goes before the first event that is forwarded.
    """

    __slots__ = ("_at", "_flat", "_id", "_new_id", "_old_id", "_told", "behind", "note")

    def __init__(self, told: Told) -> None:
        self._id, self._told = told.answer()
        self._flat = _Flat()
        self._at = 0  # how much of what was told it has said
        self._new_id = self._old_id = b""
        self.behind = True
        self.note = b""

    def feed(self, data: bytes) -> bytes:
        """Take whole events of the new answer, return those to forward; raises Diverged if it is another answer."""
        found = []
        for event in sse.events(data):
            if not self.behind:
                found.append(event.replace(self._new_id, self._old_id, 1))
            elif sse.data_of(event):
                found.append(self._compare(event))
        return b"".join(found)

    def _compare(self, event: bytes) -> bytes:
        read = _read(event)
        if not read.choices:
            raise Diverged  # its end, before it had said as much
        choice = read.choices[0]
        pieces = list(choice.pieces())
        said = self._flat.add(iter(pieces))
        lacking = len(self._told) - self._at
        if len(said) < lacking:
            if choice.finish_reason or not self._told.startswith(said, self._at):
                raise Diverged
            self._at += len(said)
            return b""
        if not said.startswith(self._told[self._at :]):
            raise Diverged
        rest = said[lacking:]
        forward = b""
        self._learn_id(event, read.id)
        if rest == said and (rest or choice.finish_reason):
            forward = event.replace(self._new_id, self._old_id, 1)
        elif rest or choice.finish_reason:
            forward = self._cut(event, pieces, rest)
        self.behind = False
        return self.note + forward

    def _learn_id(self, event: bytes, new: str) -> None:
        """Note how the new engine writes the answer's id, so that it can be written as the one that the client knows."""
        gap = b'"id": "' if b'"id": "%b"' % new.encode() in event else b'"id":"'
        self._new_id, self._old_id = (b'%b%b"' % (gap, name.encode()) for name in (new, self._id))

    def _cut(self, event: bytes, pieces: list[tuple[str, str]], rest: str) -> bytes:
        """Return an event with only the part of its text that the client does not have."""
        if len(pieces) != 1:  # of several texts it would have to be known which one the client has
            raise Diverged
        try:
            whole: dict[str, Any] = msgspec.json.decode(sse.data_of(event))
        except UNREADABLE:  # in what was skipped before
            raise Diverged from None
        whole["id"] = self._id
        choice, (kind, _) = whole["choices"][0], pieces[0]
        if kind == "text":
            choice["text"] = rest
        else:
            choice["delta"][kind] = rest
        return b"data: " + msgspec.json.encode(whole) + b"\n\n"


def _read(event: bytes) -> _Event:
    try:
        return _decode(sse.data_of(event))
    except UNREADABLE:
        raise Diverged from None
