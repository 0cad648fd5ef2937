"""A connection to an engine: requests are written, replies are parsed by httptools and handed on as they come.

While all that comes is ordinary events, they go past the parser, and after a few of them past the transport too (`bypass`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import httptools

from gateway.bypass import bypass, plain_socket
from gateway.headers import Head
from gateway.lockstep import BURST, OTHERS
from gateway.reply import Broken, Reply

if TYPE_CHECKING:
    from gateway._native import Bypass, Passage
    from gateway.http1 import Client

MAX_HEAD_BYTES = 65536  # an engine's status line and headers; h11 and nginx allow less

_STEADY = 4  # reads in a row, of nothing but ordinary events, after which more of them are expected


class Connection(asyncio.Protocol):
    """One connection to the origin, carrying one reply at a time."""

    __slots__ = """_between_chunks _bypass _client _framed _head _head_bytes _head_only _parser _passage _reading_paused _reply
        _seen _socket _transport _used idle_since loop on_header""".split()

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
        self._bypass: Bypass | None = None  # which reads in the transport's place
        self._socket = -1  # what it reads; none where it could not
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
        self._socket = plain_socket(transport)

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
        self._leave_bypass()
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
        if self._bypass is not None and self._passage is None:
            self._leave_bypass()
            if self._transport is not None:
                self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Let ordinary events past, which are whole chunks and leave the parser where it stands; parse the rest."""
        passage = self._passage
        if passage is None or not passage(data):
            self._parse(data)
        elif passage.row == _STEADY:  # once, where there is no bypass
            self._enter_bypass(passage)

    def _enter_bypass(self, passage: Passage) -> None:
        """Have more such events read and written by compiled code, until something else comes."""
        transport = self._transport
        if transport is None or self._reading_paused or (found := bypass(self.loop, self._socket)) is None:
            return
        try:
            found.add(self._socket, passage, self.take_back)
        except OSError:  # the kernel watches no more sockets for this user
            return
        self._bypass = found
        transport.pause_reading()

    def _leave_bypass(self) -> None:
        """Have nothing more read there."""
        left, self._bypass = self._bypass, None
        if left is not None:
            left.remove(self._socket)

    def take_back(self, data: bytes | None) -> None:
        """Read on, first what the bypass has read and let nobody have; None where what it took could not be written."""
        self._bypass = None
        if data is None or self._transport is None:
            self.abort()
            return
        self._transport.resume_reading()  # which meets the end of the connection, or its failure, once more
        if data:
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
