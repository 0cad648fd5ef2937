"""Watching one call from the side: the client that leaves, the client that stops reading, the engine that falls silent.

The client's departure is called in by its connection, and the times are looked at now and then. Neither does anything per
event, and behind a server that knows no departures, a task waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gateway.errors import RequestTimeout, TooLarge
from gateway.reply import Silent
from gateway.rounds import ROUNDS

if TYPE_CHECKING:
    from gateway.config import Limits
    from gateway.exchange import Exchange
    from gateway.request import Request

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


_LOOKS_PER_LIMIT = 4  # a limit is enforced within a quarter of it
_SLOWEST_BODY = 16384  # bytes per second after the first seconds: a phone's uplink is faster, a slowloris is not


class Watch:
    """A context around the serving of one call. When the client leaves, the serving task is cancelled, and only then.

    `sending_since` is set by the relay around a write to the client: loop time, or 0 when it is not writing.
    """

    __slots__ = """_ended _exchange _limits _loop _receive _serving _task line look_at sending_since""".split()

    def __init__(self, exchange: Exchange, receive: Receive, limits: Limits, line: Request | None) -> None:
        self._exchange = exchange
        self._receive = receive
        self._limits = limits
        self._loop = asyncio.get_running_loop() if line is None else line.loop
        self.line = line
        self._serving: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self.look_at = 0.0
        self.sending_since = 0.0

    def __enter__(self) -> Self:
        self._serving = asyncio.current_task(self._loop)
        return self

    async def read_body(self) -> bytes:
        """Read the request's body, then begin to watch; what comes after the body is the client's departure."""
        limits, line = self._limits, self.line
        body = None if line is None or self._receive != line.receive else line.take_body()
        if body is None:
            body = await read_body(self._receive, limits.max_body_bytes, limits.header_seconds)
        else:
            _check_size(len(body), limits.max_body_bytes)
        if line is not None:
            line.on_departure(self._left)
        else:
            self._task = asyncio.create_task(self._departure())
        ROUNDS.add(self._loop, self)
        return body

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        serving, self._serving = self._serving, None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        ROUNDS.discard(self)
        if self._ended and serving is not None:
            serving.uncancel()
            return kind is asyncio.CancelledError
        return False

    async def _departure(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self._end("client_gone")

    def _end(self, outcome: str) -> None:
        if self._serving is None or self._ended:
            return
        self._ended = True
        self._exchange.outcome = outcome  # type: ignore[assignment]
        self._exchange.status = self._exchange.status or 499  # nginx's status for a client that closed the request
        self._serving.cancel()

    def look(self, now: float) -> None:
        """Check the idle, total and reader limits; look again later."""
        limits, stream = self._limits, self._exchange.stream
        if self.sending_since and now - self.sending_since > limits.client_idle_seconds:
            if self.line is not None:
                self.line.abort()
            self._end("client_stalled")
            ROUNDS.discard(self)
            return
        if stream is not None and not self.sending_since:
            reply = stream.reply
            if now - reply.heard_at > limits.idle_seconds:
                reply.fail(Silent(f"The engine sent nothing for {limits.idle_seconds:g} s."))
            elif now - self._exchange.started > limits.total_seconds:
                reply.fail(Silent(f"The answer took longer than {limits.total_seconds:g} s."))
        shortest = min(limits.idle_seconds, limits.client_idle_seconds, limits.total_seconds)
        self.look_at = now + shortest / _LOOKS_PER_LIMIT


async def read_body(receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Read a request's body whole, within bounds of size and time: each byte that comes extends the time a little.

    Raises:
        TooLarge: over `max_bytes`. RequestTimeout: slower than `seconds` and _SLOWEST_BODY allow. ClientLeft: the
            connection closed.
    """
    parts: list[bytes] = []
    size = 0
    until = asyncio.get_running_loop().time() + seconds
    try:
        async with asyncio.timeout_at(until) as limit:
            while True:
                message = await receive()
                body = _bytes_of(message, size, max_bytes)
                size += len(body)
                if not message.get("more_body", False):
                    return b"".join([*parts, body]) if parts else body
                parts.append(body)
                limit.reschedule(until + size / _SLOWEST_BODY)
    except TimeoutError:
        raise RequestTimeout(f"The request body came too slowly, {size} bytes of it.", code="body_timeout") from None


def _bytes_of(message: MutableMapping[str, Any], before: int, max_bytes: int) -> bytes:
    """Return a message's part of the body, `before` bytes of which have come already."""
    if message["type"] == "http.disconnect":
        raise ClientLeft
    body: bytes = message.get("body", b"")
    _check_size(before + len(body), max_bytes)
    return body


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise TooLarge(f"The request body is over {max_bytes} bytes.", code="request_too_large")
