"""The way of ordinary events past the relay: written as they came off the wire, entered in the books afterwards.

Most events of a stream differ in a piece of text alone. Parsed, joined, looked at and framed anew, each takes a dozen calls of
Python; compared with the one before and written as it is, one (gateway/native). What is not like the one before goes the long
way, and so does everything where the module was not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.rejoin import Told
    from gateway.request import Request
    from gateway.sse import Reader

KEPT: Final = 2048  # bytes of text that wait to be remembered, for going on with a stream that breaks off


class Shortcut:
    """The shortcut of one stream; without a `line`, and where `passage` is None for another reason, there is none."""

    __slots__ = ("_line", "_reader", "_told", "passage")

    def __init__(self, line: Request | None, reader: Reader, told: Told | None) -> None:
        self._line, self._reader, self._told = line, reader, told
        self.passage = None if line is None else line.passage(0 if told is None else KEPT)

    def settle(self) -> None:
        """Count and remember what has passed since the last time; before anything else is made of the stream."""
        if self.passage is not None and self.passage.events:
            count, text = self.passage.take()
            self._reader.events += count
            if self._told is not None:
                self._told.keep_text(text)

    def look(self) -> None:
        """Open it, or close it, for what comes after the event that went the long way."""
        self._reader.learn()
        if self._line is None:
            return
        example = self._reader.example
        if example is None or not (self._told is None or self._told.knows(example)):
            self._line.close_passage()
        else:
            self._line.let_through(example)
