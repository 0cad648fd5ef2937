"""The listening side: uvicorn with the bounds it lacks, and a drain that lets running streams end.

`BoundedProtocol` adds to uvicorn's httptools protocol what a public endpoint needs: a limit on the head's size and on the
time it may take, refusals that are OpenAI error objects, and the transport's abort for clients that stopped reading.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import BadRequest, GatewayError, HeadersTooLarge, RequestTimeout

ABORT = "draftlane.abort"  # the ASGI extension under which the transport's abort is found


class BoundedProtocol(HttpToolsProtocol):
    """One client connection; `protocol` makes the class for given bounds."""

    max_header_bytes = 65536
    header_seconds = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head; no write waits for the client's acknowledgement of the one before."""
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        # asyncio does this only for sockets that name their protocol, which inherited listeners do not
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head_timer = self.loop.call_later(self.header_seconds, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the head's bytes and time; a kept connection's next head begins with its first byte."""
        if self._in_head:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(self.header_seconds, self._head_late)
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.max_header_bytes:
            self._refuse_size()

    def on_headers_complete(self) -> None:
        """Hand the request to the application, with the transport's abort among its extensions."""
        self._stop_timer()
        self._in_head = False
        self._head_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refuse_size()
            return
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes are another head."""
        self._stop_timer()
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A client that is still sending what was refused may end within the time of a head, then it is cut."""
        if not self._in_head:
            self._head_timer = self.loop.call_later(self.header_seconds, self.transport.close)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is not HTTP."""
        self.refuse(BadRequest("The request is not valid HTTP/1.1.", code="invalid_http"))

    def refuse(self, error: GatewayError) -> None:
        """Answer without the application and close."""
        if self.transport.is_closing():
            return
        body = error.body()
        head = (
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (error.status, len(body)) + body)
        self.transport.close()

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
            self.transport.close()  # connected and silent

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol(max_header_bytes: int, header_seconds: float) -> type[BoundedProtocol]:
    """Return the protocol class for these bounds; uvicorn makes one object per connection."""
    bounds = {"max_header_bytes": max_header_bytes, "header_seconds": header_seconds}
    return type("Bounded", (BoundedProtocol,), bounds)


class DrainingServer(uvicorn.Server):
    """A uvicorn server whose SIGTERM first announces the drain, then waits for running calls, then stops listening.

    `running` tells how many calls run, `draining` is called once when the drain begins; the limit is `drain_seconds`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        running: Callable[[], int],
        draining: Callable[[], None],
        drain_seconds: float,
        notice_seconds: float = 0.5,
    ) -> None:
        super().__init__(config)
        self._running = running
        self._draining = draining
        self._drain_seconds = drain_seconds
        self._notice_seconds = notice_seconds
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain on SIGTERM; SIGINT, or a second signal, stops at once.

        uvicorn would raise a signal that it knows of again in the end, and SIGTERM kills: nothing would be closed after it.
        """
        if sig != signal.SIGTERM:
            super().handle_exit(sig, frame)
        elif self._drain is None and self.started:
            self._draining()
            asyncio.get_event_loop().call_soon_threadsafe(self._begin_drain)
        else:
            self.should_exit = True

    def _begin_drain(self) -> None:
        self._drain = asyncio.get_running_loop().create_task(self._wait_for_calls())

    async def _wait_for_calls(self) -> None:
        """Keep listening until nothing runs, at least long enough for a load balancer to see /readyz turn."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < self._drain_seconds:
            await asyncio.sleep(0.05)
            if loop.time() - began >= self._notice_seconds and not self._running():
                break
        self.should_exit = True
