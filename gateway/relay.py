"""Copying one reply to one client, byte for byte, and telling every ending apart.

The endings: the whole answer; the engine's own error; a refusal before anything was sent; no engine that answers; a stream that
breaks off, falls silent or takes too long; a client that leaves; a client that stops reading; a shutdown. After the first
byte a failure becomes one SSE error event and no end mark, so that a broken answer never looks whole; a broken reply of
another kind is cut. A stream that broke off goes on from another engine where that says the same (see `rejoin`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from gateway import usage
from gateway.errors import BadGateway, GatewayError, UpstreamTimeout
from gateway.headers import without
from gateway.rejoin import Diverged, Rejoin, Told
from gateway.reply import Broken, Silent
from gateway.shortcut import Shortcut
from gateway.sse import EventTooLarge, Reader
from gateway.watch import ClientLeft, Receive, Watch

if TYPE_CHECKING:
    from gateway.attempts import Stream
    from gateway.config import Limits
    from gateway.exchange import Exchange
    from gateway.record import Outcome
    from gateway.reply import Reply
    from gateway.request import Request

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Read = Callable[[], Awaitable[bytes]]
Open = Callable[["Exchange", Read], Awaitable["Stream"]]
Failure = tuple[GatewayError, "Outcome"]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
_HOP_BY_HOP_OR_LENGTH = _HOP_BY_HOP | {b"content-length"}
_log = logging.getLogger(__name__)


async def relay(
    exchange: Exchange, opening: Open, receive: Receive, send: Send, limits: Limits, line: Request | None
) -> None:
    """Open a stream and copy it to the client; every ending is noted on the exchange and none escapes, except a shutdown's."""
    with exchange:
        try:
            with Watch(exchange, receive, limits, line) as watch:
                stream = await opening(exchange, watch.read_body)
                await _copy(exchange, stream, send, watch, limits, line)
        except GatewayError as error:
            exchange.fail(error)
            await respond(send, error.status, [*error.headers(), *exchange.headers()], error.body())
        except ClientLeft:
            exchange.outcome, exchange.status = "client_gone", 499
        except asyncio.CancelledError:
            exchange.error = "shutdown"
            raise
        except Exception:  # noqa: BLE001 - the one place that stands between a defect and the client
            _log.exception("call %s failed", exchange.request_id)
            exchange.fail(_DEFECT)
            await respond(send, _DEFECT.status, [*_DEFECT.headers(), *exchange.headers()], _DEFECT.body())


_DEFECT = GatewayError("The gateway failed on this request; its log has the reason.", code="internal_error")


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send one whole response; where one has begun, it is left unfinished."""
    try:
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})
    except RuntimeError:  # the response had begun
        return


async def _copy(
    exchange: Exchange, stream: Stream, send: Send, watch: Watch, limits: Limits, line: Request | None
) -> None:
    reply = stream.reply
    exchange.status = reply.status
    events = reply.is_events
    headers = without(reply.headers, _HOP_BY_HOP_OR_LENGTH if events else _HOP_BY_HOP, ())
    headers += exchange.headers()
    if not events and reply.complete and line is not None and send == line.send:  # nobody stands between, as CORS would
        body = reply.take()
        _book_body(exchange, stream, body)
        if line.answer(reply.status, headers, body):
            return
        reply.unread(body)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if events:
        await _copy_events(exchange, stream, send, watch, limits)
    else:
        await _copy_body(exchange, stream, send, watch, line)


async def _copy_events(exchange: Exchange, stream: Stream, send: Send, watch: Watch, limits: Limits) -> None:
    told = Told() if exchange.again is not None else None
    reader = first = _new_reader(exchange, limits)
    feed = reader.feed if told is None else _keeping(told, reader)
    try:
        shortcut = Shortcut(watch.line, reader, told)
        failure = await _pump(exchange, reader, stream.reply, feed, send, watch, shortcut)
        if told is not None and not _is_whole(exchange, reader, failure):
            reader, failure = await _go_on(exchange, told, reader, failure or _ENDED_EARLY, send, watch, limits)
    finally:
        if exchange.reader is not None:
            exchange.usage, exchange.speculation = exchange.reader.usage, exchange.reader.speculation
    if reader.failed:
        exchange.fail(_REPORTED, "truncated" if reader.events else "engine_error")
        rest = told.failure if told is not None and reader is first else b""
    elif _is_whole(exchange, reader, failure):
        exchange.whole(reader.usage, reader.speculation)
        rest = reader.rest()
    else:
        error, outcome = failure or _ENDED_EARLY
        exchange.fail(error, outcome)
        rest = error_event(error, exchange.endpoint, reader.next_sequence)
    watch.sending_since = exchange.clock()
    await send({"type": "http.response.body", "body": rest})


def _new_reader(exchange: Exchange, limits: Limits) -> Reader:
    strip = bool(exchange.call and exchange.call.adds_usage)
    exchange.reader = Reader(exchange.endpoint, strip_usage=strip, max_event_bytes=limits.max_event_bytes)
    return exchange.reader


def _is_whole(exchange: Exchange, reader: Reader, failure: Failure | None) -> bool:
    """Whether the client has the whole answer; of several choices, the end of one says nothing of the rest."""
    call = exchange.call
    finished = call is None or (reader.finished and "n" not in call.features)
    return reader.ended or (finished and failure is None)


def _keeping(told: Told, reader: Reader) -> Callable[[bytes], bytes]:
    """Return the reader's feed that also remembers what the client is told; an engine's own error is not told yet."""

    def feed(data: bytes) -> bytes:
        out = reader.feed(data)
        return told.keep(told.hold_failure(out) if reader.failed else out)

    return feed


async def _go_on(
    exchange: Exchange, told: Told, broken: Reader, failure: Failure, send: Send, watch: Watch, limits: Limits
) -> tuple[Reader, Failure | None]:
    """Ask another engine for the same answer and forward what the client lacks; return its reader and what went wrong.

    Where that is not possible, or would keep the client waiting for longer than an engine may be silent, it stays at the
    broken one's.
    """
    stream, loop = exchange.stream, asyncio.get_running_loop()
    until = loop.time() + limits.idle_seconds
    if stream is None or told.refused or stream.reply.last_byte_at - stream.first_byte_at > limits.idle_seconds:
        return broken, failure  # it would take about as long again to get there
    try:
        rejoin = Rejoin(told)
        async with asyncio.timeout_at(until):
            stream = await exchange.reopen()
    except (Diverged, GatewayError, TimeoutError):
        return broken, failure
    reply, after = stream.reply, None
    if reply.status == 200 and reply.is_events:
        rejoin.note = b": x-draftlane-pool: %b\n\n" % stream.pool.name.encode()
        reader = _new_reader(exchange, limits)
        timer = loop.call_at(until, lambda: reply.fail(Silent("It comes too late.")) if rejoin.behind else None)
        try:
            none = Shortcut(None, reader, None)
            after = await _pump(exchange, reader, reply, lambda data: rejoin.feed(reader.feed(data)), send, watch, none)
        except Diverged:
            pass
        finally:
            timer.cancel()
        if not rejoin.behind:
            return reader, after
    exchange.go_back(broken)
    return broken, failure


async def _pump(
    exchange: Exchange,
    reader: Reader,
    reply: Reply,
    feed: Callable[[bytes], bytes],
    send: Send,
    watch: Watch,
    shortcut: Shortcut,
) -> Failure | None:
    """Forward events as they come until the reply ends; return what went wrong."""
    clock, line = exchange.clock, watch.line
    try:
        if line is None:
            await _pump_messages(exchange, reader, reply, feed, send, watch)
            return None
        passed = _passing(exchange, reader, feed, line, shortcut)
        while await reply.pour(passed, shortcut.passage):
            watch.sending_since = clock()
            await line.drained()
            watch.sending_since = 0.0
    except Broken:
        return BadGateway("The engine broke off its answer.", code="stream_truncated"), "truncated"
    except Silent as error:
        return UpstreamTimeout(str(error), code="stream_stalled"), "stalled"
    except EventTooLarge as error:
        reply.abort()
        return BadGateway(f"The engine sent {error}.", code="event_too_large"), "truncated"
    finally:
        shortcut.settle()
    return None


def _passing(
    exchange: Exchange, reader: Reader, feed: Callable[[bytes], bytes], line: Request, shortcut: Shortcut
) -> Callable[[bytes], bool]:
    """Return what writes events to the client at once, and says whether it takes more."""

    def passed(data: bytes) -> bool:
        shortcut.settle()
        out = feed(data)
        if reader.ended:
            exchange.whole(reader.usage, reader.speculation)
        more = not out or line.write(out)
        shortcut.look()
        return more

    return passed


async def _pump_messages(
    exchange: Exchange, reader: Reader, reply: Reply, feed: Callable[[bytes], bytes], send: Send, watch: Watch
) -> None:
    """Forward events behind a server that knows nothing but ASGI's messages."""
    while data := await reply.read():
        out = feed(data)
        if reader.ended:
            exchange.whole(reader.usage, reader.speculation)
        if out:
            watch.sending_since = exchange.clock()
            await send({"type": "http.response.body", "body": out, "more_body": True})
            watch.sending_since = 0.0
        reader.learn()


_ENDED_EARLY: Failure = (
    BadGateway("The engine ended its answer early.", code="stream_truncated"),
    "truncated",
)
_REPORTED = BadGateway("The engine reported an error in its stream.", code="stream_error")


async def _copy_body(exchange: Exchange, stream: Stream, send: Send, watch: Watch, line: Request | None) -> None:
    """Copy any other reply; it is usually whole by now (see `upstream`), and only a larger one can still break off."""
    reply = stream.reply
    kept: list[bytes] = []
    size = 0
    try:
        while True:
            data = await reply.read()
            if size < _READ_UP_TO:
                kept.append(data)
                size += len(data)
            last = reply.complete and not reply.pending
            if last:
                _book_body(exchange, stream, b"".join(kept))
            watch.sending_since = exchange.clock()
            await send({"type": "http.response.body", "body": data, "more_body": not last})
            watch.sending_since = 0.0
            if last:
                return
    except (Broken, Silent) as error:
        silent = isinstance(error, Silent)
        cut = UpstreamTimeout(str(error), code="stalled") if silent else BadGateway(str(error), code="truncated")
        exchange.fail(cut, "stalled" if silent else "truncated")
        if line is not None:
            line.abort()


def _book_body(exchange: Exchange, stream: Stream, body: bytes) -> None:
    told = usage.Told() if exchange.call is None else stream.told or usage.read(body)
    if stream.reply.status < 400:
        exchange.whole(told.usage, told.speculation)
    else:
        exchange.usage, exchange.speculation, exchange.outcome = told.usage, told.speculation, "engine_error"


_READ_UP_TO = 8 * 1024 * 1024  # of a reply, for its usage: it stands at the end


def error_event(error: GatewayError, endpoint: str, sequence: int = 0) -> bytes:
    """Return the SSE event that tells a failure after the first byte; the clients of typed streams look at its name.

    Streams of `responses` number their events and have the error's fields at the top; there they are in both places.
    """
    body = error.body()
    if endpoint == "responses":
        top = {"code": error.code, "message": error.message, "param": error.param, "sequence_number": sequence}
        body = msgspec.json.encode({**msgspec.json.decode(body), **top})
    name = b"event: error\n" if endpoint in ("responses", "messages") else b""
    return name + b"data: " + body + b"\n\n"
