"""Header lines: collected as a parser finds them, looked up, left out, written. Compiled where that was possible.

Each of a request's headers would cost some thirty instructions of Python at every one of half a dozen looks, and an ordinary
client sends fifteen. What stands here is the definition; `gateway._native` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

Header = tuple[bytes, bytes]  # lower-case name, value
Headers = Sequence[Header]

__all__ = ["Head", "Header", "Headers", "lines", "values", "without"]
_SEVERAL = b"\0"  # stands for several Host headers: none of them is one
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class PlainHead:
    """The headers of one message as they come, and what of them concerns its frame. Trailers are none of them.

    `host` is the value of the only Host header, None without one, and no host where there are several; `awaits_continue` is
    whether the client waits for leave to send its body; `framed` whether the message tells where it ends; `is_events` and
    `is_json` are what the content type says.
    """

    __slots__ = ("_open", "_pairs", "awaits_continue", "framed", "host", "is_events", "is_json")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was collected: a message begins."""
        self._open = True
        self._pairs: list[Header] = []
        self.host: bytes | None = None
        self.awaits_continue = self.framed = self.is_events = self.is_json = False

    def add(self, name: bytes, value: bytes) -> None:
        """Take one header, unless the head has ended."""
        if not self._open:
            return
        name = name.lower()
        if name == b"host":
            self.host = value if self.host is None else _SEVERAL
        elif name == b"expect":
            self.awaits_continue = value.lower() == b"100-continue"
        elif name == b"content-type":
            self.is_events = value.startswith(b"text/event-stream")
            self.is_json = b"json" in value
        elif name in _FRAMING:
            self.framed = True
        self._pairs.append((name, value))

    def end(self) -> list[Header]:
        """The head is whole: return its headers; what else was noted stays until the next one begins."""
        self._open = False
        pairs, self._pairs = self._pairs, []
        return pairs


def plain_lines(headers: Headers) -> bytes:
    """Return headers as they go on the wire.

    Raises:
        ValueError: one has a line break in it, and would be two.
    """
    made = b"".join([b"%b: %b\r\n" % (name, value) for name, value in headers])
    if made.count(b"\n") != len(headers):
        raise ValueError("a header has a line break in it")
    return made


def plain_values(headers: Headers, *names: bytes) -> tuple[bytes, ...]:
    """Return the values of all headers of these names, in the headers' order."""
    return tuple([value for name, value in headers if name in names])


def plain_without(headers: Headers, names: AbstractSet[bytes], beginnings: tuple[bytes, ...]) -> list[Header]:
    """Return the headers whose name is none of these and begins with none of those."""
    return [pair for pair in headers if pair[0] not in names and not pair[0].startswith(beginnings)]


try:
    from gateway._native import Head, lines, values, without
except ImportError:  # no C compiler where the package was installed
    Head, lines, values, without = PlainHead, plain_lines, plain_values, plain_without  # type: ignore[assignment,misc]
