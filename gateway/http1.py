"""An HTTP/1.1 client for one origin: the data path's own, on httptools.

It owns connections and the bytes of replies, and refuses everything else: no redirects, cookies, proxies, decompression.
General-purpose clients walk their whole pool on each assignment and hop through several tasks per read; on a relay that is
most of the cost. Here a request is one write, an event one read, and the idle connections a stack (the warmest first).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httptools

from gateway.headers import Head, lines
from gateway.lockstep import BURST, OTHERS
from gateway.reply import Broken, Reply

if TYPE_CHECKING:
    from gateway._native import Passage

MAX_HEAD_BYTES = 65536  # an engine's status line and headers; h11 and nginx allow less
MAX_IDLE_SECONDS = 4.0  # uvicorn, and so vLLM, closes idle connections after 5 s

_LOOKS = 3  # turns of the loop after the time to connect is over, in which it may still turn out to be


class Connection(asyncio.Protocol):
    """One connection to the origin, carrying one reply at a time."""

    __slots__ = """_between_chunks _client _framed _head _head_bytes _head_only _parser _passage _reading_paused _reply
        _seen _transport _used idle_since loop on_header""".split()

    def __init__(self, client: Client) -> None:
        self._client = client
        self.loop = client.loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._reply: Reply | None = None
        self._head = Head()
        self.on_header = self._head.add  # which a parser asks for once
        self._head_bytes = 0
        self._framed = False
        self._between_chunks = False
        self._passage: Passage | None = None  # the reply's, while the parser stands between chunks
        self._head_only = False
        self._reading_paused = False
        self._seen = False
        self._used = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and switch Nagle's algorithm off."""
        self._client.opened(self)
        self._transport = transport  # type: ignore[assignment]
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, head: bytes, body: bytes) -> Reply:
        """Write one request and return its reply, still to come."""
        self._head_only = head.startswith(b"HEAD ")
        transport = self._transport
        if transport is None:
            raise Broken("the connection is closed", seen=False)
        reply = Reply(self, self.loop, self._used)
        self._reply = reply
        self._used = True
        if self._parser is None:  # the next reply is the same parser's next message
            self._parser = httptools.HttpResponseParser(self)
        self._head.begin()
        self._head_bytes = 0
        self._framed = self._seen = self._between_chunks = False
        self._passage = None
        if len(body) > 65536:
            transport.write(head)
            transport.write(body)
        elif OTHERS.ready:
            BURST.add(self.loop, transport, head + body)
        else:  # nobody is about to send more
            BURST.leave()
            transport.write(head + body)
        return reply

    def is_open(self) -> bool:
        """Whether the connection may carry another request."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close at once, dropping what is buffered; the end of a connection that is cut is not the end of a body."""
        self._framed, self._reading_paused = True, False
        if self._transport is not None:
            self._transport.abort()

    def resume_reading(self) -> None:
        """Read on after a pause."""
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
            if self._reply is not None:
                self._reply.last_byte_at = self.loop.time()

    # asyncio.Protocol

    def heard_at(self) -> float:
        """When bytes of the reply in flight came last, loop time; 0 where there is none."""
        return 0.0 if self._reply is None else self._reply.heard_at

    def look_at_passage(self) -> None:
        """Let events past the reply in flight where it has a way for them, and the parser stands between chunks."""
        self._passage = self._reply.passage if self._reply is not None and self._between_chunks else None

    def data_received(self, data: bytes) -> None:
        """Let ordinary events past, which are whole chunks and leave the parser where it stands; parse the rest."""
        passage = self._passage
        if passage is None or not passage(data):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse what came and wake the reader once, however many chunks it held."""
        reply = self._reply
        if reply is None or self._parser is None:
            self.abort()  # bytes that nobody asked for
            return
        self._seen = True
        reply.last_byte_at = self._client.last_byte_at = self.loop.time()
        if not reply.headers_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reply.fail(Broken(f"not an HTTP response: {error}", seen=True))  # unless what is wrong came behind it
            self.abort()
        if not reply.headers_done and self._head_bytes > MAX_HEAD_BYTES:
            reply.fail(Broken("response headers too large", seen=True))
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")  # and not in the size of the next one
        reply.wake()
        self.look_at_passage()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the reply in flight, unless the end of the connection is how its body ends."""
        self._client.lost(self)
        reply, self._reply = self._reply, None
        self._parser = self._passage = None
        self._transport = None
        if reply is None or reply.complete:
            return
        if reply.headers_done and not self._framed and exc is None:
            reply.finish()
            reply.wake()
        else:
            reply.fail(Broken(f"connection lost{f': {exc}' if exc else ''}", seen=self._seen))

    # httptools

    def on_message_begin(self) -> None:
        """A reply begins: bytes behind the end of another would be taken for the next request's, so the connection goes."""
        if self._reply is None:
            self.abort()

    def on_headers_complete(self) -> None:
        """The head is in; 1xx heads are dropped."""
        reply, parser, head = self._reply, self._parser, self._head
        if reply is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            head.begin()
            return
        reply.status = status
        reply.is_events, reply.is_json = head.is_events, head.is_json
        reply.headers = head.end()
        reply.headers_done = True
        if head.framed or status in (204, 304):
            self._framed = True
        if self._head_only:  # the parser would wait for the body that the headers announce
            reply.finish()
            self._reply = None
            if self._transport is not None:
                self._transport.close()

    def on_chunk_header(self) -> None:
        """A chunk has begun."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk has ended, its line break included."""
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        """Hand bytes to the reply; pause past its bound."""
        reply, transport = self._reply, self._transport
        if reply is None or transport is None:
            return
        if reply.feed(body, self._client.buffer_bytes) and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()

    def on_message_complete(self) -> None:
        """The reply is whole: free the connection for the next request."""
        reply, parser = self._reply, self._parser
        if reply is None or parser is None or not reply.headers_done:
            return  # the end of a 1xx
        reply.finish()
        self._reply = None
        keep = parser.should_keep_alive() and self._framed
        self.resume_reading()
        if keep and self.is_open():
            self._client.idle(self)
        elif self._transport is not None:
            self._transport.close()


class Client:
    """Connections to one origin (`http://host:port`), opened as needed and reused, the last used first.

    Args:
        url: the origin; a path in it is put before every request's path.
        tls: context for https origins; the system's defaults when absent.
    """

    __slots__ = """_connect_seconds _host _host_line _idle _open _port _prefix _retired _tls
        buffer_bytes last_byte_at loop""".split()

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) origin")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._retired = False
        self.last_byte_at = 0.0  # loop time; not of events that go past the replies (see `heard_at`)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._prefix = parts.path.rstrip("/").encode()
        self._host_line = b" HTTP/1.1\r\nhost: " + parts.netloc.rpartition("@")[2].encode("idna") + b"\r\n"
        self.limit(connect_seconds=2.0, buffer_bytes=1024 * 1024)
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by the first request

    def __repr__(self) -> str:
        return f"<Client {self._host}:{self._port} open={len(self._open)} idle={len(self._idle)}>"

    def limit(self, *, connect_seconds: float, buffer_bytes: int) -> None:
        """Set the time for opening a connection, TLS included, and the unread bytes of a reply past which reading pauses."""
        self._connect_seconds = connect_seconds
        self.buffer_bytes = buffer_bytes

    async def request(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Reply:
        """Send one request and return its reply with the head still to come.

        Raises:
            Broken: no connection could be opened.
        """
        head = self.head(method, target, headers, body)
        return self.ask_idle(head, body) or await self.ask_new(head, body)

    def ask_idle(self, head: bytes, body: bytes) -> Reply | None:
        """Send on an idle connection and return the reply, its head still to come; None when no connection is idle."""
        connection = self._take_idle()
        return None if connection is None else connection.send(head, body)

    async def ask_new(self, head: bytes, body: bytes) -> Reply:
        """Send on a new connection; raises Broken when none can be opened."""
        return (await self._connect()).send(head, body)

    def head(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        """Return the bytes of a request's line and headers."""
        end = b"content-length: %d\r\n\r\n" % len(body) if body or method == b"POST" else b"\r\n"
        return b"".join((method, b" ", self._prefix, target, self._host_line, lines(headers), end))

    def heard_at(self) -> float:
        """When any byte came last, loop time."""
        return max(self.last_byte_at, *(connection.heard_at() for connection in self._open), 0.0)

    def drop_idle(self) -> None:
        """Close the idle connections: one was stale, so may be the others."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def retire(self) -> None:
        """Close the idle connections, and each busy one when its reply is complete."""
        self._retired = True
        self.drop_idle()

    def close(self) -> None:
        """Close every connection, busy ones too."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def opened(self, connection: Connection) -> None:
        """Know a connection from its first moment."""
        self._open.add(connection)

    def idle(self, connection: Connection) -> None:
        """Take back a connection whose reply is complete."""
        if self._retired:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open():
                continue
            if self.loop.time() - connection.idle_since > MAX_IDLE_SECONDS:
                connection.abort()
                continue
            return connection
        return None

    def _keep(self, opening: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.idle(opening.result()[1])

    async def _connect(self) -> Connection:
        self.loop = asyncio.get_running_loop()
        opening = self.loop.create_task(
            self.loop.create_connection(lambda: Connection(self), self._host, self._port, ssl=self._tls)
        )
        try:
            await asyncio.wait({opening}, timeout=self._connect_seconds)
            for _ in range(_LOOKS):  # a busy loop is told of its timers before it is told of connections
                if not opening.done():
                    await asyncio.sleep(0)
            if not opening.done():
                raise Broken(f"no connection to {self._host}:{self._port} in {self._connect_seconds} s", seen=False)
            _, connection = opening.result()
        except OSError as error:
            raise Broken(f"no connection to {self._host}:{self._port}: {error}", seen=False) from None
        except asyncio.CancelledError:
            opening.add_done_callback(self._keep)  # it may be there already: somebody else can have it
            raise
        finally:
            opening.cancel()
        return connection
