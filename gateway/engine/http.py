"""A small HTTP/1.1 server that keeps hold of the socket, so that faults can cut, stall and reset it.

A request reaches the application whole; the application answers through its `Reply`, at once or later, and hears through
`Reply.on_gone` when the client has left. Requests of one connection are answered in order.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus

import httptools
import msgspec

Headers = list[tuple[bytes, bytes]]
Application = Callable[["Request", "Reply"], None]

_MAX_BODY = 64 * 1024 * 1024
_MAX_HEADERS = 64 * 1024  # h11's and uvicorn's order of magnitude
_MAX_UNFINISHED = 512 * 1024  # a head in the making; more than one read of asyncio, so that pipelined requests pass
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came: method and path as text, headers in order with their names in lower case."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    connection: int

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of that (lower-case) name."""
        return next((value for key, value in self.headers if key == name), None)


class Reply:
    """The way back to one client; every method is a no-op once the client is gone."""

    __slots__ = ("_chunked", "_head_only", "_keep_alive", "_protocol", "on_drain", "on_gone", "started", "status")

    def __init__(self, protocol: Connection, *, head_only: bool, keep_alive: bool, chunked: bool) -> None:
        self._protocol: Connection | None = protocol
        self._head_only = head_only
        self._keep_alive = keep_alive
        self._chunked = chunked
        self.started = False
        self.status = 0
        self.on_gone: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    @property
    def congested(self) -> bool:
        """Whether the client reads too slowly for more to be written now; `on_drain` is called when it catches up."""
        return self._protocol is not None and self._protocol.congested

    @property
    def over(self) -> bool:
        """Whether the answer is complete or the client gone."""
        return self._protocol is None

    def json(self, status: int, value: object, headers: Headers | None = None) -> None:
        """Answer with a JSON document."""
        self.whole(status, msgspec.json.encode(value), _JSON_HEADERS + (headers or []))

    def whole(self, status: int, body: bytes, headers: Headers) -> None:
        """Answer with a complete body."""
        if self._protocol is None:
            return
        length = [(b"content-length", str(len(body)).encode())]
        self._protocol.write(self._head(status, headers + length) + (b"" if self._head_only else body))
        self._finish()

    def part(self, status: int, body: bytes, headers: Headers, *, length: int) -> None:
        """Start an answer that declares `length` bytes and send only `body`; the fault of a cut JSON body."""
        if self._protocol is not None:
            declared = [(b"content-length", str(length).encode())]
            self._protocol.write(self._head(status, headers + declared) + body)

    def open(self, status: int, headers: Headers) -> None:
        """Start an answer of unknown length."""
        if self._protocol is None:
            return
        framing = [(b"transfer-encoding", b"chunked")] if self._chunked else []
        self._keep_alive = self._keep_alive and self._chunked
        self._protocol.write(self._head(status, headers + framing))

    def write(self, data: bytes) -> None:
        """Send a piece of the body that `open` has started."""
        if self._protocol is not None and not self._head_only:
            self._protocol.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def close(self, last: bytes = b"") -> None:
        """Send `last` and end the body that `open` has started."""
        if self._protocol is None:
            return
        if last:
            self.write(last)
        if self._chunked and not self._head_only:
            self._protocol.write(b"0\r\n\r\n")
        self._finish()

    def cut(self) -> None:
        """Close the connection in the middle, once what was written has left."""
        if self._protocol is not None:
            self._protocol.transport.close()

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        if self._protocol is not None:
            self._protocol.reset()

    def gone(self) -> None:
        """Take note that the client has left; called by the connection."""
        self._protocol = None
        tell, self.on_gone, self.on_drain = self.on_gone, None, None
        if tell is not None:
            tell()

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        self.started, self.status = True, status
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown"))]
        lines.extend(b"%b: %b\r\n" % header for header in headers)
        if not self._keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _finish(self) -> None:
        protocol, self._protocol = self._protocol, None
        self.on_gone = self.on_drain = None  # lets go of the answer, which knows this reply
        if protocol is not None:
            protocol.answered(keep_alive=self._keep_alive)


class Connection(asyncio.Protocol):
    """One client's connection: parses with httptools, hands requests to the application one after the other."""

    transport: asyncio.Transport
    _count = 0

    def __init__(self, application: Application, connections: set[Connection]) -> None:
        Connection._count += 1
        self.number = Connection._count
        self.congested = False
        self._application = application
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: Headers = []
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._ready: deque[tuple[Request, bool, bool]] = deque()
        self._reply: Reply | None = None
        self._running = False
        self._in_head = False
        self._unfinished = 0  # bytes received of a head that is not complete

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; small events leave at once."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, _: Exception | None) -> None:
        """Tell the running reply that its client is gone."""
        self._connections.discard(self)
        self._ready.clear()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.gone()

    def data_received(self, data: bytes) -> None:
        """Parse; a request that is no HTTP is answered with 400 and the connection closed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no protocol to upgrade to: the request is answered as it stands
        except httptools.HttpParserError:
            self._refuse(400, b"Invalid HTTP request received.")
        self._unfinished = self._unfinished + len(data) if self._in_head else 0
        if self._unfinished > _MAX_UNFINISHED:
            self._refuse(431, b"Request header fields too large.")

    def pause_writing(self) -> None:
        """The client lags."""
        self.congested = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.congested = False
        if self._reply is not None and self._reply.on_drain is not None:
            self._reply.on_drain()

    # --- httptools ---

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url, self._headers, self._header_bytes = b"", [], 0
        self._body, self._body_bytes = [], 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADERS:
            self._refuse(431, b"Request header fields too large.")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Let a client that waits for it send its body."""
        self._in_head = False
        if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect the body, within bounds."""
        self._body_bytes += len(body)
        if self._body_bytes > _MAX_BODY:
            self._refuse(413, b"Request body too large.")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the request, or run it when none is running."""
        url = httptools.parse_url(self._url)
        request = Request(
            method=self._parser.get_method().decode("ascii"),
            path=(url.path or b"/").decode("utf-8", "replace"),
            query=(url.query or b"").decode("utf-8", "replace"),
            headers=self._headers,
            body=b"".join(self._body),
            connection=self.number,
        )
        self._ready.append((request, self._parser.should_keep_alive(), self._parser.get_http_version() == "1.1"))
        self._run()

    # --- replies ---

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.write(data)

    def answered(self, *, keep_alive: bool) -> None:
        """Go on with the next request, or close."""
        self._reply = None
        if keep_alive:
            self._run()
        else:
            self.transport.close()

    def reset(self) -> None:
        """Close with a TCP reset: linger for zero seconds, then drop."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _run(self) -> None:
        """Hand over requests while the one before is answered; an answer given at once comes back here and only returns."""
        if self._running:
            return
        self._running = True
        while self._ready and self._reply is None and not self.transport.is_closing():
            request, keep_alive, chunked = self._ready.popleft()
            head_only = request.method == "HEAD"
            self._reply = reply = Reply(self, head_only=head_only, keep_alive=keep_alive, chunked=chunked)
            self._application(request, reply)
        self._running = False

    def _refuse(self, status: int, text: bytes) -> None:
        """Close; say why, unless that would be read as part of the answer that is being written."""
        if self._reply is not None and self._reply.started:
            self.transport.abort()
        elif not self.transport.is_closing():
            head = b"HTTP/1.1 %d %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
            head += b"connection: close\r\n\r\n"
            self.write(head % (status, _REASONS[status], len(text)) + text)
            self.transport.close()


async def listen(
    application: Application, host: str, port: int, connections: set[Connection]
) -> tuple[asyncio.Server, int]:
    """Start listening and return the server with the port it got."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(application, connections), host, port, backlog=4096)
    return server, server.sockets[0].getsockname()[1]
