"""Server-sent events as they pass: counted, watched for usage and the end, never decoded one by one. No I/O.

`Reader.feed` returns the bytes to forward: whole events only, so that whatever breaks, the client never holds half of one.
Engines write whole events, so nothing is delayed by that. Two things are taken out or noticed on the way: the usage event that
the gateway asked for on its own behalf, and the marks of an end. Marks are looked for at line starts, where no answer's text
can put them (JSON escapes line breaks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway import usage

_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_END = re.compile(
    rb"(?:^|[\r\n])(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))"
)
_COLON = 58  # a line that begins with one is a comment
_MARKS = {"responses": b"event: response.output_text.delta", "messages": b"event: content_block_delta"}
_DATA = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")


class EventTooLarge(Exception):
    """One event passed `max_event_bytes` without an end."""


class Reader:
    """Counts the events of one stream and remembers what they told.

    Args:
        endpoint: whose events these are; `responses` and `messages` name those that carry tokens.
        strip_usage: take the extra usage event out.
        max_event_bytes: the largest event to hold.

    Attributes:
        events: events that carry tokens (the first may carry only the role, see `silent_first`).
        ended: an end mark (`[DONE]`, `message_stop`, `response.completed`) has passed.
        finished: a finish reason has passed, so the answer is complete even if the end mark is missing.
        silent_first: the first event carried only the role, no token.
        swallowed: tool-call or reasoning deltas passed, whose parsers merge or hide events.
    """

    __slots__ = (
        "_carry",
        "_mark",
        "_max",
        "_strip",
        "ended",
        "events",
        "finished",
        "silent_first",
        "speculation",
        "swallowed",
        "usage",
    )

    def __init__(self, endpoint: str, *, strip_usage: bool, max_event_bytes: int) -> None:
        self._mark = _MARKS.get(endpoint)
        self._carry = b""
        self._max = max_event_bytes
        self._strip = strip_usage
        self.events = 0
        self.ended = False
        self.finished = False
        self.silent_first = False
        self.swallowed = False
        self.usage: usage.Usage | None = None
        self.speculation: usage.Speculation | None = None

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the engine, return those to forward (perhaps none yet).

        Raises:
            EventTooLarge: the event in progress is over the limit.
        """
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if not data.endswith(b"\n\n"):
            data = self._hold_partial(data)
            if not data:
                return b""
        if not self.events:
            self._look_at_first(data)
        self._count(data)
        if b'"finish_reason":"' in data or b'"finish_reason": "' in data:
            self.finished = True
        if b'"tool_calls"' in data:
            self.swallowed = True
        if b'"usage"' in data:
            data = self._read_usage(data)
        if b"[DONE]" in data or b"event:" in data:
            self._look_for_end(data)
        return data

    def rest(self) -> bytes:
        """Return the bytes after the last whole event, for a stream that ended well without a final blank line."""
        rest, self._carry = self._carry, b""
        return rest

    @property
    def holds_partial(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._carry)

    def _count(self, data: bytes) -> None:
        if self._mark:
            self.events += data.count(self._mark)
        elif b"\r" in data or b"\n:" in data or data[0] == _COLON:  # CRLF, or comments, which are not events
            self.events += sum(b"data:" in event for event in _events(data))
        else:
            self.events += data.count(b"\n\n")

    def _hold_partial(self, data: bytes) -> bytes:
        """Keep what follows the last boundary, return what precedes it."""
        cut = 0
        for found in _BOUNDARY.finditer(data):
            cut = found.end()
        self._carry = data[cut:]
        if len(self._carry) > self._max:
            raise EventTooLarge(f"an event of over {self._max} bytes")
        return data[:cut]

    def _look_at_first(self, data: bytes) -> None:
        event = next(_events(data), b"")
        self.silent_first = b'"content":""' in event and b'"role"' in event
        self.swallowed = b'"reasoning' in data

    def _look_for_end(self, data: bytes) -> None:
        found = _END.search(data)
        if found:
            self.ended = True
            if not self._mark:
                self.events -= 1

    def _read_usage(self, data: bytes) -> bytes:
        """Note the usage in these events; drop the event that is nothing else if it was not the client's wish."""
        kept: list[bytes] = []
        for event in _events(data):
            if b'"usage"' in event and (found := _DATA.search(event)):
                told = usage.read(found.group(1), self.usage)
                self.usage = told.usage or self.usage
                self.speculation = told.speculation or self.speculation
                if told.only_usage:
                    self.events -= not self._mark
                    if self._strip:
                        continue
            kept.append(event)
        return b"".join(kept)


def _events(data: bytes) -> Iterator[bytes]:
    """Split whole events, each with the blank line that ends it."""
    at = 0
    for found in _BOUNDARY.finditer(data):
        yield data[at : found.end()]
        at = found.end()
    if at < len(data):
        yield data[at:]
