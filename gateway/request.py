"""One request of a client's connection, as the ASGI application sees it: `receive`, `send`, and a line to the connection.

The head is held back until the first bytes of the body are there, so that both leave in one write. What an application sends
is checked as far as a wrong byte would confuse the client about where a response ends.
"""

from __future__ import annotations

import asyncio
import http
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import httptools
import msgspec

from gateway.bypass import plain_socket
from gateway.headers import lines
from gateway.lockstep import BURST

try:
    from gateway._native import Passage
except ImportError:  # no C compiler where the package was installed: all events go the long way
    Passage = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from gateway.inbound import Inbound

LINE = "draftlane.line"  # the ASGI extension under which an application finds the `Request` itself

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED: Message = {
    "type": "http.response.start",
    "status": 500,
    "headers": [(b"content-length", b"0"), (b"connection", b"close")],
}
_log = logging.getLogger(__name__)


class Request(msgspec.Struct, eq=False):
    """One request and its response. `keep_alive` tells whether the connection outlives them."""

    _connection: Inbound
    scope: Message
    keep_alive: bool
    _awaits_continue: bool
    _body: list[bytes] = []
    _size: int = 0
    _whole: bool = False  # the body has come
    _delivered: bool = False  # and the application has all of it
    _waiter: asyncio.Future[None] | None = None
    _gone: bool = False  # the client is
    _departure: Callable[[], None] | None = None
    _begun: bool = False
    _complete: bool = False
    _head: bytes = b""  # of the response, while it waits for the body
    _chunked: bool = False
    _until_close: bool = False
    _left: int = 0  # bytes of the body that the head has promised
    _passage: Passage | None = None  # for events, past `write`

    # the connection's side

    @property
    def begun(self) -> bool:
        """Whether its response has begun."""
        return self._begun

    def feed(self, data: bytes) -> int:
        """Take bytes of the body; return how many wait to be received."""
        self._body.append(data)
        self._size += len(data)
        self._wake()
        return self._size

    def finish(self) -> None:
        """The body is whole."""
        self._whole = True
        self._wake()

    def lost(self) -> None:
        """The client has left."""
        self._gone = True
        self.close_passage()
        self._wake()
        if self._departure is not None:
            self._departure()

    async def run(self, app: App) -> None:
        """Let the application answer; what it leaves unfinished ends the connection."""
        connection = self._connection
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - a defect costs one request, not the connection's task
            _log.exception("%s %r failed", self.scope["method"], self.scope["path"])
            if not self._begun:
                await self.send(_FAILED)
                await self.send({"type": "http.response.body"})
        finally:
            if not self._complete:
                connection.close()
            # Both lead back here: left in place, every request would wait for the garbage collector.
            self._departure = self._passage = None
            del self.scope["extensions"]

    # the line

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its connection. To ask for the running one is a system call before Python 3.12."""
        return self._connection.loop

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole response without waiting; False, and nothing sent, while the client does not read."""
        connection = self._connection
        if connection.drained is not None:
            return False
        if not self._gone:
            self._begin(status, headers)
            body = self._framed(body, more=False)
            head, self._head = self._head, b""
            if self.keep_alive and connection.is_one_of_many():
                BURST.add(connection.loop, connection.transport, head + body)
            else:
                connection.transport.write(head + body)
            self._end()
        return True

    def write(self, body: bytes) -> bool:
        """Send a further part of the body without waiting; return whether the client takes more at once."""
        connection = self._connection
        if not self._gone:
            out = self._framed(body, more=True)
            if self._head:
                out, self._head = self._head + out, b""
            connection.transport.write(out)
        return connection.drained is None

    def passage(self, keep: int) -> Passage | None:
        """Return a way for events past this object, closed until `let_through`; None where they cannot go as they came.

        It keeps up to so many bytes of their texts until they are taken.
        """
        if not self._chunked or Passage is None:
            return None
        transport = self._connection.transport
        self._passage = made = Passage(transport.write, transport.get_write_buffer_size, plain_socket(transport), keep)
        return made

    def close_passage(self) -> None:
        """Let nothing through for now."""
        if self._passage is not None:
            self._passage.open = False

    def let_through(self, example: tuple[bytes, bytes]) -> None:
        """Open the passage for events like the example, unless the client is gone or does not read."""
        if self._passage is not None and not (self._gone or self._head) and self._connection.drained is None:
            self._passage.learn(*example)

    async def drained(self) -> None:
        """Wait until the client takes more, or has left."""
        if self._connection.drained is not None:
            await self._connection.drained

    def take_body(self) -> bytes | None:
        """Return the body where all of it has come, and nobody has received any: no waiting, no message."""
        if not self._whole or self._delivered or self._gone:
            return None
        return self._take()

    def abort(self) -> None:
        """Drop the connection at once, with what is still to be written."""
        self._connection.transport.abort()

    def on_departure(self, call: Callable[[], None]) -> None:
        """Have `call` called once if the client leaves before its response is complete; at once if it has left."""
        self._departure = call
        if self._gone:
            call()

    # ASGI

    async def receive(self) -> Message:
        """Return the bytes of the body that are there, waiting for some; afterwards wait for the client to leave."""
        if self._awaits_continue and not (self._whole or self._body or self._begun):
            self._connection.transport.write(_CONTINUE)
        self._awaits_continue = False
        while not (self._gone or self._complete or (not self._delivered and (self._body or self._whole))):
            self._connection.resume_reading()
            await self._wait()
        if self._gone or self._complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._take(), "more_body": not self._whole}

    def _take(self) -> bytes:
        """Return the bytes of the body that are there, which are delivered with that."""
        body, self._body = b"".join(self._body), []
        self._size = 0
        self._delivered = self._whole
        return body

    async def send(self, message: Message) -> None:
        """Take the head, then the body in any number of parts; waits while the client does not read."""
        connection = self._connection
        if connection.drained is not None:
            await connection.drained
        if self._gone:
            return
        if not self._begun:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"expected the start of a response, not {message['type']}")
            self._begin(message["status"], message.get("headers") or [])
            return
        if self._complete:
            raise RuntimeError("the response is complete")
        if message["type"] != "http.response.body":
            raise RuntimeError(f"expected a body, not {message['type']}")
        body, more = message.get("body", b""), message.get("more_body", False)
        out = self._framed(body, more=more)
        if self._head:
            out, self._head = self._head + out, b""
        if out:
            connection.transport.write(out)
        if not more:
            self._end()

    def _end(self) -> None:
        self._complete = True
        if self._waiter is not None:
            self._wake()
        self._connection.answered(keep=self.keep_alive)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Render the head and decide how the body is framed (RFC 9112 §6).

        Raises:
            ValueError: a header has a line break in it.
        """
        self._begun, says_close = True, False
        head = (_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + lines(headers)
        known = dict(headers)
        if framed := b"content-length" in known:
            self._left = int(known[b"content-length"])
        if b"connection" in known and any(b"close" in v.lower() for name, v in headers if name == b"connection"):
            self.keep_alive, says_close = False, True
        bodiless = self.scope["method"] == "HEAD" or status in (204, 304)
        if bodiless:
            self._left = 0
        elif not framed and self.scope["http_version"] == "1.0":
            self._until_close = True  # chunks are 1.1's (RFC 9112 §6.1)
        elif not framed:
            self._chunked = True
            head += b"transfer-encoding: chunked\r\n"
        if not (self.keep_alive or says_close):
            head += b"connection: close\r\n"
        self._head = head + b"\r\n"

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        """Return the body's part as it goes on the wire."""
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self.scope["method"] == "HEAD":
            return b""
        if self._until_close:
            return body
        self._left -= len(body)
        if self._left < 0 or (self._left and not more):
            raise RuntimeError("the body is not as long as its content-length says")
        return body

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Targets:
    """What the targets of a connection's requests say, as an application's scope has it; most connections know but one."""

    __slots__ = ("_last", "_said")

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._said: dict[str, Any] = {}

    def look_up(self, url: bytes) -> dict[str, Any]:
        """Return path and query of a target, in any of its forms."""
        if url == self._last:
            return self._said
        path, _, query = origin_form(url).partition(b"?")
        plain = urllib.parse.unquote(path.decode("ascii")) if b"%" in path else path.decode("ascii")
        said = {"raw_path": path, "path": plain, "query_string": query}
        if len(url) <= _REMEMBERED:
            self._last, self._said = url, said
        return said


_REMEMBERED = 256  # bytes of a target: what is longer would weigh on idle connections


def origin_form(url: bytes) -> bytes:
    """Return the target without scheme and host, which proxies' clients send (RFC 9112 §3.2.2)."""
    if url.startswith(b"/"):
        return url
    parsed = httptools.parse_url(url)
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
