"""Going on with a stream that broke off: another engine is asked the same, and its client gets what is missing. No I/O.

Pools of one model say the same at temperature 0, however they speculate. So the new answer is read from its beginning,
compared with what was told, and passed on from where the first one broke off. In the end the client holds the new engine's
answer, whole, or is told that its answer broke off: nothing is ever glued together from two different answers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway import sse

MOST_BYTES: Final = 1 << 20  # of one answer's events that are remembered; a longer one that breaks off stays broken

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Diverged(Exception):
    """The new answer is another one, or the old one cannot be compared."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None  # of completions
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        """What the event adds to the answer."""
        return self.text or (self.delta.content if self.delta else None) or ""


class _Event(msgspec.Struct):
    id: str = ""
    choices: list[_Choice] = []


_decode: Final = msgspec.json.Decoder(_Event).decode


class Told:
    """The events that a client has been sent."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def keep(self, data: bytes) -> bytes:
        """Remember events on their way to the client, and return them."""
        self._size += len(data)
        if self._size <= MOST_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()
        return data

    def answer(self) -> tuple[str, str]:
        """Return the id and the text that were told; raises Diverged when they are not to be had any more."""
        if not 0 < self._size <= MOST_BYTES:
            raise Diverged
        events = [_read(event) for event in sse.events(b"".join(self._parts)) if sse.data_of(event)]
        if not events:
            raise Diverged
        return events[0].id, "".join(choice.said for event in events for choice in event.choices)


class Rejoin:
    """Follows the new answer; `feed` returns nothing until it has reached what was told, and the rest from there on."""

    __slots__ = ("_behind", "_id", "_new_id", "_said", "_told")

    def __init__(self, told: Told) -> None:
        self._id, self._told = told.answer()
        self._said = ""
        self._behind = True
        self._new_id = b""

    def feed(self, data: bytes) -> bytes:
        """Take whole events of the new answer, return those to forward; raises Diverged if it is another answer."""
        found = []
        for event in sse.events(data):
            if not self._behind:
                found.append(event.replace(self._new_id, b'"id":"%b"' % self._id.encode(), 1))
            elif sse.data_of(event):
                found.append(self._compare(event))
        return b"".join(found)

    def _compare(self, event: bytes) -> bytes:
        read = _read(event)
        if not read.choices:
            raise Diverged  # its end, before it had said as much
        choice = read.choices[0]
        self._said += choice.said
        if len(self._said) < len(self._told):
            if choice.finish_reason or not self._told.startswith(self._said):
                raise Diverged
            return b""
        if not self._said.startswith(self._told):
            raise Diverged
        self._behind = False
        self._new_id = b'"id":"%b"' % read.id.encode()
        rest = self._said[len(self._told) :]
        return self._cut(event, rest) if rest or choice.finish_reason else b""

    def _cut(self, event: bytes, rest: str) -> bytes:
        """Return an event with only the part of its text that the client does not have."""
        try:
            whole: dict[str, Any] = msgspec.json.decode(sse.data_of(event))
        except UNREADABLE:  # in what was skipped before
            raise Diverged from None
        whole["id"] = self._id
        choice = whole["choices"][0]
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["content"] = rest
        else:
            choice["text"] = rest
        return b"data: " + msgspec.json.encode(whole) + b"\n\n"


def _read(event: bytes) -> _Event:
    try:
        return _decode(sse.data_of(event))
    except UNREADABLE:
        raise Diverged from None
