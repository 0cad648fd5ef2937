"""The listening side of HTTP/1.1: one client connection, its requests handed to an ASGI application one after the other.

uvicorn runs the server and makes one `Inbound` per connection in place of its own protocol. What this one adds is what a
public endpoint needs (bounds on the head's size and time, refusals that are OpenAI error objects) and what a relay needs: a
head leaves together with the first bytes of its body, a whole request costs no timer, and the application may ask to be
called when the client leaves instead of keeping a task waiting for it (see `request.LINE`).
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from gateway.answering import Answering
from gateway.errors import BadRequest, GatewayError, HeadersTooLarge, RequestTimeout
from gateway.headers import Head
from gateway.lockstep import BURST
from gateway.request import LINE, Request, Targets

_UPGRADING = frozenset({b"upgrade", b"http2-settings"})
# A name, an IPv4 or a bracketed IPv6 address, perhaps a port, or nothing at all (RFC 9110 §7.2, RFC 3986 §3.2.2).
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(?::\d*)?|\[[0-9A-Fa-f:.]+\](?::\d*)?", re.ASCII)
MAX_BODY_AHEAD = 262_144  # bytes of a body that are read before the application asks for them


class Inbound(asyncio.Protocol):
    """One client connection; `protocol` makes the class for given bounds."""

    __slots__ = """_answering _begun _head _head_again _head_bytes _head_timer _idle_since _idle_timer _in_head
        _keep_alive_seconds _known_host _parser _paused _reading _refusal _scope _targets _url _waiting app
        current drained loop lost on_header state transport""".split()

    max_header_bytes = 65536
    header_seconds = 10.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.app = config.loaded_app
        self.state = server_state
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self.drained: asyncio.Future[None] | None = None  # set while the client reads slower than we write
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": "",
        }
        if app_state:
            self._scope["state"] = app_state
        self._head = Head()
        self.on_header = self._head.add  # which the parser asks for once
        self._parser: Any = httptools.HttpRequestParser(self)
        self._keep_alive_seconds = config.timeout_keep_alive
        self._url = self._known_host = b""  # the latter was found good on this connection
        self._targets = Targets()
        self._in_head, self._begun = True, False  # a head is what comes next; it has not begun
        self._head_again = b""  # of a request that wishes for another protocol
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self.current: Request | None = None  # being answered
        self._answering = Answering(self)
        self.lost = False
        self._reading: Request | None = None  # its body is still coming in
        self._waiting: deque[Request] = deque()  # pipelined behind the current one
        self._refusal: GatewayError | None = None  # said when the answers before it are complete
        self._paused = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first head; no write waits for the client's acknowledgement of the one before."""
        self.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own protocols only
        self.transport = transport  # type: ignore[assignment]
        raw = transport.get_extra_info("socket")
        # asyncio does this only for sockets that name their protocol, which inherited listeners do not
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._scope["server"] = get_local_addr(self.transport)
        self._scope["client"] = get_remote_addr(self.transport)
        self._scope["scheme"] = "https" if is_ssl(self.transport) else "http"
        self._head_timer = self.loop.call_later(self.header_seconds, self._head_late)

    def data_received(self, data: bytes) -> None:
        """Parse; a head that did not come whole gets a time limit with its first bytes."""
        if self._refusal is not None:
            return  # what follows nonsense is none of ours
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the latter by CONNECT: this is no tunnel
            self.refuse(BadRequest("The request is not valid HTTP/1.1.", code="invalid_http"))
            return
        if not self._begun:
            self._head_bytes = 0  # blank lines between requests are no head (RFC 9112 §2.2)
        if self._in_head and self._head_bytes:
            if self._head_bytes > self.max_header_bytes:
                self._refuse_size()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(self.header_seconds, self._head_late)

    def eof_received(self) -> None:
        """A client that has said its last word has left: the transport closes, once what waits for it is written."""
        BURST.leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        """Tell the request that runs; those behind it are never begun."""
        self.state.connections.discard(self)
        self._stop_head_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._waiting.clear()
        self.resume_writing()
        if self.current is not None:
            self.current.lost()
        self._parser = self._reading = self.current = None
        self.lost = True
        self._answering.end()

    def pause_writing(self) -> None:
        """The client reads too slowly: senders wait."""
        if self.drained is None:
            self.drained = self.loop.create_future()
            if self.current is not None:
                self.current.close_passage()

    def resume_writing(self) -> None:
        """Let them go on."""
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # httptools

    def _feed(self, data: bytes) -> None:
        """Parse; a request that wishes for another protocol is parsed again without that wish, as none is offered.

        The parser takes what follows such a head for the other protocol, but Java's client sends its body there, and a
        server may ignore the wish (RFC 9110 §7.8).
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(self._head_again + data[wish.args[0] :])

    def _without_upgrade(self) -> bytes:
        """Return the head that has just come, without the wish for another protocol."""
        parser, lines = self._parser, []
        for name, value in self._head.end():
            words = [word for word in value.split(b",") if word.strip().lower() not in _UPGRADING]
            if name not in _UPGRADING:
                lines.append(b"%b: %b\r\n" % (name, b",".join(words) if name == b"connection" else value))
        first = b"%b %b HTTP/%b\r\n" % (parser.get_method(), self._url, parser.get_http_version().encode())
        self._url = b""
        return b"".join([first, *lines, b"\r\n"])

    def on_message_begin(self) -> None:
        """A head has begun; trailers of the request before are none of its headers."""
        self._begun = True
        self._head.begin()

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind the one that is being answered."""
        if self._parser.should_upgrade():
            self._head_again = self._without_upgrade()
            return
        url, head = self._url, self._head
        self._url, headers = b"", head.end()
        if self._refusal is not None or self.transport.is_closing():
            return  # what follows nonsense is none of ours
        self._stop_head_timer()
        whole_head_counted = 0 < self._head_bytes <= self.max_header_bytes
        self._in_head, self._begun, self._head_bytes = False, False, 0
        if not whole_head_counted and len(url) + sum(len(n) + len(v) + 4 for n, v in headers) > self.max_header_bytes:
            self._refuse_size()
            return
        version = self._parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            self.refuse(BadRequest("The request is not valid HTTP/1.1.", code="invalid_http"))
            return
        if (head.host is None or head.host != self._known_host) and not self._has_host(head.host, version):
            self.refuse(BadRequest("A request has one Host header, with a host in it.", code="invalid_host"))
            return
        scope = self._scope | self._targets.look_up(url)
        scope["http_version"] = version
        scope["method"] = self._parser.get_method().decode("ascii")
        scope["headers"] = headers
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        request = Request(self, scope, keep_alive, head.awaits_continue)
        scope["extensions"] = {LINE: request}
        self._reading = request
        if self.current is None:
            self._begin(request)
        else:
            self._waiting.append(request)
            self._pause_reading()

    def _has_host(self, host: bytes | None, version: str) -> bool:
        """Whether the head names one host in a legal form, as all but the old version's must (RFC 9112 §3.2)."""
        if host is None:
            return version == "1.0"
        self._known_host = host if _HOST.fullmatch(host) else b""
        return host == self._known_host

    def on_body(self, body: bytes) -> None:
        """Hand bytes to the request; pause when it does not take them."""
        if self._reading is not None and self._reading.feed(body) > MAX_BODY_AHEAD:
            self._pause_reading()

    def on_message_complete(self) -> None:
        """The next bytes are another head."""
        if self._parser.should_upgrade():
            return
        self._in_head = True
        self._stop_head_timer()
        if self._reading is not None:
            self._reading.finish()
            self._reading = None

    # the requests

    def _begin(self, request: Request) -> None:
        self.current = request
        self._answering.begin()

    def answered(self, *, keep: bool) -> None:
        """The current request's response is complete: go on with the next one, or wait for it."""
        self.state.total_requests += 1
        self.current = None
        if self.transport.is_closing():
            return
        if not keep:
            self.close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        elif self._refusal is not None:
            self.refuse(self._refusal)
        else:
            self._idle_since = self.loop.time()
            if self._reading is not None:
                # It was answered before its end: the client may finish within the time of a head, then it is cut.
                self._reading = None
                self._head_timer = self.loop.call_later(self.header_seconds, self.close)
            elif self._idle_timer is None:
                self._idle_timer = self.loop.call_later(self._keep_alive_seconds, self._look_if_idle)
            self.resume_reading()

    def is_one_of_many(self) -> bool:
        """Whether others are being answered too, and nothing of this connection's own waits for the answer under way."""
        return len(self.state.tasks) > 1 and not self._waiting

    def close(self) -> None:
        """Close, once what waits for the client has been written."""
        BURST.leave()
        self.transport.close()

    def shutdown(self) -> None:
        """Close once the current response is complete, as the server stops."""
        if self.current is None:
            self.close()
        else:
            self.current.keep_alive = False

    def refuse(self, error: GatewayError) -> None:
        """Answer without the application and close, once the answers to whole requests before this one are complete."""
        current = self.current
        if self.transport.is_closing():
            return
        if current is not None and current is not self._reading:
            self._refusal = error
            return
        if current is not None and current.begun:  # it is being answered before its end, which now never comes
            self.close()
            return
        body = error.body()
        head = (
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        )
        BURST.leave()  # the answer before may be in it
        self.transport.write(head % (error.status, len(body)) + body)
        self.close()

    def resume_reading(self) -> None:
        """Read on after a pause, unless requests wait behind the current one."""
        if self._paused and not self._waiting:
            self._paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    # time and size

    def _refuse_size(self) -> None:
        self.refuse(
            HeadersTooLarge(f"The request's headers are over {self.max_header_bytes} bytes.", code="headers_too_large")
        )

    def _head_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            late = f"The request's headers took over {self.header_seconds:g} s."
            self.refuse(RequestTimeout(late, code="header_timeout"))
        else:
            self.close()  # connected and silent

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_if_idle(self) -> None:
        """Close a kept connection that nobody uses; one timer serves any number of requests."""
        busy = self.current is not None or self._head_bytes > 0
        idle = 0.0 if busy else self.loop.time() - self._idle_since
        if idle >= self._keep_alive_seconds:
            self._idle_timer = None
            self.close()
        else:
            self._idle_timer = self.loop.call_later(self._keep_alive_seconds - idle, self._look_if_idle)


def protocol(max_header_bytes: int, header_seconds: float) -> type[Inbound]:
    """Return the protocol class for these bounds; uvicorn makes one object per connection."""
    bounds = {"max_header_bytes": max_header_bytes, "header_seconds": header_seconds}
    return type("Inbound", (Inbound,), {"__slots__": (), **bounds})
