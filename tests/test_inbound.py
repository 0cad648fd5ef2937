"""The listening side of HTTP/1.1, over real sockets: what a client may send, and what an application makes it receive."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from harness import until
from uvicorn.server import ServerState

from gateway.inbound import MAX_BODY_AHEAD, Inbound, protocol
from gateway.request import LINE

App = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@asynccontextmanager
async def listening(app: App, **settings: Any) -> AsyncIterator[uvicorn.Server]:
    """Serve an application on a free port until the block ends."""
    bounds = {"max_header_bytes": 4096, "header_seconds": 5.0, **settings}
    keep_alive = bounds.pop("keep_alive", 60)
    config = uvicorn.Config(
        app, http=protocol(**bounds), ws="none", lifespan="off", log_config=None, timeout_keep_alive=keep_alive
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    server.address = listener.getsockname()  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve([listener]))
    try:
        await until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        await task


async def say(server: Any, *parts: bytes, end: bytes = b"") -> bytes:
    """Send parts one after the other and return all that comes until `end`, or until the connection closes."""
    reader, writer = await asyncio.open_connection(*server.address, limit=100_000_000)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    answer = await (reader.readuntil(end) if end else reader.read())
    writer.close()
    return answer


def post(body: bytes, *lines: bytes, path: bytes = b"/x") -> bytes:
    """Return a request with a body of announced length."""
    head = b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"host: a", b"content-length: %d" % len(body), *lines])
    return head + b"\r\n\r\n" + body


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the method, the path and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    out = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} ".encode() + body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(out))]})
    await send({"type": "http.response.body", "body": out})


async def test_a_request_is_answered_and_the_connection_kept() -> None:
    """Requests that follow each other, or come at once, are answered in their order on one connection."""
    async with listening(echo) as server:
        first, second = post(b"one"), post(b"two", b"connection: close", path=b"/y%20z?q=1")

        apart = await say(server, first, second)
        together = await say(server, first + second)

    assert apart == together
    assert apart.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert apart.endswith(b"POST /y z?q=1 two")
    assert b"connection: close" in apart


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_a_request_may_come_in_pieces(cut: int) -> None:
    """Wherever a request is cut, its answer is the same."""
    request = post(b"hello", b"connection: close")
    async with listening(echo) as server:
        assert (await say(server, request[:cut], request[cut:])).endswith(b"POST /x? hello")


async def test_a_chunked_request_and_one_that_asks_to_continue() -> None:
    """Bodies without a length are taken, and a client that waits for 100 Continue gets it."""
    chunked = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    asking = b"POST /x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    async with listening(echo) as server:
        assert (await say(server, chunked, b"3\r\nabc\r\n", b"0\r\n\r\n")).endswith(b"POST /x? abc")
        assert (await say(server, asking, b"ok")).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_an_answer_without_length_is_chunked() -> None:
    """Each part of a stream is one chunk; the head leaves with the first; HEAD and 204 have none."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
        await send({"type": "http.response.start", "status": 204 if scope["path"] == "/204" else 200, "headers": []})
        await send({"type": "http.response.body", "body": b"" if scope["path"] == "/204" else b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with listening(stream) as server:
        assert (await say(server, GET, end=b"\r\n0\r\n\r\n")).endswith(b"chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        head = GET.replace(b"GET /", b"HEAD /").replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert (await say(server, head)).endswith(b"\r\n\r\n")
        assert b"transfer-encoding" not in await say(server, GET.replace(b"/ ", b"/204 "), end=b"\r\n\r\n")


async def test_http_1_0_is_answered_and_closed() -> None:
    """A client of HTTP/1.0 gets its answer, and then the end of the connection."""
    async with listening(echo) as server:
        assert b"connection: close" in await say(server, b"GET / HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"GET / HTTP/1.1\r\nx: " + b"y" * 5000], b"431"),
        ([b"GET / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n"], b"431"),
        ([GET + b"GET / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n"], b"431"),
        ([b"nonsense\r\n\r\n"], b"400"),
        ([b"GET / HTTP/1.1\r\nho"], b"408"),
    ],
)
async def test_bad_heads_are_refused(parts: list[bytes], status: bytes) -> None:
    """Heads that are too large, no HTTP or too slow get an OpenAI error object, and the connection ends."""
    async with listening(echo, header_seconds=0.2) as server:
        answer = await say(server, *parts)

    assert b"HTTP/1.1 " + status in answer
    assert answer.endswith(b"}")


async def test_silent_connections_end() -> None:
    """A connection that says nothing ends after the time of a head, a kept one after the time that idle ones have."""
    async with listening(echo, header_seconds=0.1, keep_alive=0.2) as server:
        assert await say(server) == b""
        assert (await say(server, GET)).endswith(b"GET /? ")


@pytest.mark.filterwarnings("ignore")
async def test_defects_of_the_application() -> None:
    """An application that raises gives a 500; one that breaks its promise, or leaves, ends the connection."""

    async def faulty(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
        if scope["path"] == "/raises":
            raise ValueError("a defect")
        headers = [(b"x", b"1\r\ninjected: 1")] if scope["path"] == "/breaks" else [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = b"123456" if scope["path"] == "/long" else b"123"
        await send({"type": "http.response.body", "body": body, "more_body": scope["path"] == "/leaves"})

    async with listening(faulty) as server:
        assert (await say(server, GET.replace(b"/ ", b"/raises "))).startswith(b"HTTP/1.1 500 ")
        for path in (b"/breaks", b"/long", b"/short"):
            assert await say(server, GET.replace(b"/ ", path + b" ")) == b""
        assert (await say(server, GET.replace(b"/ ", b"/leaves "))).endswith(b"\r\n\r\n123")


async def test_every_target_of_a_connection_is_its_own() -> None:
    """A target that came before, one that only begins alike, a long one and an escaped one each reach the application."""
    long = b"/l?" + b"q" * 300
    targets = (b"/a", b"/a", b"/a?b=1", b"/a%20b", b"/a", long, b"/a", long)
    requests = [b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % target for target in targets]
    async with listening(echo) as server:
        answer = await say(server, *requests, GET.replace(b"host: a", b"host: a\r\nconnection: close"))

    answered = re.findall(rb"GET (/.*?) (?:HTTP|$)", answer)
    assert answered == [b"/a?", b"/a?", b"/a?b=1", b"/a b?", b"/a?", long, b"/a?", long, b"/?"]


async def test_a_departure_is_called_in() -> None:
    """The line tells at once that the client has left, without anyone waiting for it; `receive` says so too."""
    told: list[str] = []

    async def waiting(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
        gone = asyncio.Event()
        scope["extensions"][LINE].on_departure(gone.set)
        await gone.wait()
        await receive()
        told.append((await receive())["type"])

    async with listening(waiting) as server:
        _, writer = await asyncio.open_connection(*server.address)  # type: ignore[attr-defined]
        writer.write(GET)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await until(lambda: told)

    assert told == ["http.disconnect"]


async def test_a_slow_client_makes_the_application_wait() -> None:
    """What the client does not read is not buffered without bound; `abort` ends such a connection at once."""
    sent = 0

    async def pouring(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
        nonlocal sent
        asyncio.get_running_loop().call_later(0.3, scope["extensions"][LINE].abort)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
            sent += 1

    async with listening(pouring) as server:
        _, writer = await asyncio.open_connection(*server.address)  # type: ignore[attr-defined]
        writer.write(GET)
        await until(lambda: sent)
        before = 0
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)

        assert sent < 1000

        writer.close()


ONE_READ = 262_144  # asyncio's and uvloop's largest


@asynccontextmanager
async def held() -> AsyncIterator[tuple[Any, asyncio.Event, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to an application that begins when it may; give the server, what lets it begin, and the client's side."""
    going = asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await going.wait()
        await echo(scope, receive, send)

    async with listening(waiting) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=100_000_000)  # type: ignore[attr-defined]
        yield server, going, reader, writer
        writer.transport.abort()
        going.set()


async def settled(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side takes no more of what was written."""
    before, now = -1, 0
    while before != now:
        before = writer.transport.get_write_buffer_size()
        await asyncio.sleep(0.1)
        now = writer.transport.get_write_buffer_size()


async def test_a_fast_client_waits_for_the_application() -> None:
    """A body that the application has not asked for is read ahead so far and no further; asked for, it comes whole."""
    body = bytes(30_000_000)
    async with held() as (server, going, reader, writer):
        writer.write(post(body, b"connection: close"))
        connection = await until(lambda: next((each for each in server.server_state.connections if each.current), None))
        await settled(writer)
        ahead = connection.current._size
        going.set()
        answer = await reader.read()

    assert 0 < ahead <= MAX_BODY_AHEAD + ONE_READ
    assert answer.endswith(body)


async def test_requests_behind_one_another_are_not_read_without_bound() -> None:
    """A client that sends request upon request and waits for no answer has no more of them in memory than one read brings."""
    async with held() as (server, _, _, writer):
        writer.write(GET * 200_000)
        connection = await until(
            lambda: next((each for each in server.server_state.connections if each._waiting), None)
        )
        await settled(writer)
        waiting = len(connection._waiting)

    assert 0 < waiting <= ONE_READ // len(GET) + 1


async def test_requests_leave_no_cycles() -> None:
    """What a request leaves is freed at once: no garbage collection ever has to find it."""
    async with listening(echo) as server:
        await say(server, post(b"warm", b"connection: close"))
        gc.collect()
        gc.disable()
        try:
            await say(server, *[post(b"x")] * 20, post(b"x", b"connection: close"))
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [each for each in gc.garbage if type(each).__module__ == "gateway.request"]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert left == []


async def test_a_stopping_server_finishes_what_runs() -> None:
    """Idle connections close at once, a running response is completed first and says that the connection ends."""
    going = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await going.wait()
        await echo(scope, receive, send)

    async with listening(slow) as server:
        idle = asyncio.create_task(say(server))
        running = asyncio.create_task(say(server, GET))
        await until(lambda: len(server.server_state.connections) == 2)
        await asyncio.sleep(0.05)
        server.should_exit = True

        assert await idle == b""

        going.set()

        assert b"connection: close" in await running


async def test_a_body_may_be_written_without_waiting() -> None:
    """The line writes parts of a begun body at once, the head with the first, and says when the client has had enough."""
    answers: list[bool] = []

    async def writing(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
        line = scope["extensions"][LINE]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        answers.append(line.write(b"ab"))
        answers.append(line.write(bytes(10_000_000)))
        await line.drained()
        await send({"type": "http.response.body", "body": b"!"})

    async with listening(writing) as server:
        answer = await say(server, GET, end=b"\r\n0\r\n\r\n")

    assert answers == [True, False]
    assert b"chunked\r\n\r\n2\r\nab\r\n" in answer
    assert answer.endswith(b"1\r\n!\r\n0\r\n\r\n")


class Nowhere(asyncio.Transport):
    """A transport of a connection that leads nowhere."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        """Know nothing of a socket."""
        return default

    def is_closing(self) -> bool:
        """Whether it is."""
        return False

    def close(self) -> None:
        """Do nothing: the loss is told by the test."""


async def test_a_client_that_leaves_at_once_leaves_no_task() -> None:
    """A connection that is lost in the turn of the loop that brought its request leaves nobody for the server to wait for."""
    config = uvicorn.Config(echo)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    problems: list[Any] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    connection = Inbound(config, state, {}, loop)
    connection.connection_made(Nowhere())
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)

    assert state.tasks == set()
    assert problems == []


class Sheet(Nowhere):
    """A transport that notes what is written and that it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note it."""
        self.said.append(bytes(data))

    def is_closing(self) -> bool:
        """Whether it is."""
        return b"closed" in self.said

    def close(self) -> None:
        """Note it, once."""
        if not self.is_closing():
            self.said.append(b"closed")

    def pause_reading(self) -> None:
        """Do nothing: the test says what comes."""

    def resume_reading(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("then", "last"),
    [
        (lambda one: one.data_received(b"nonsense\r\n\r\n"), [b"HTTP/1.1 400 Refused", b"closed"]),
        (lambda one: one.shutdown(), [b"closed"]),
        (lambda one: (one.eof_received(), one.transport.close()), [b"closed"]),
        (lambda one: one._look_if_idle(), [b"closed"]),
    ],
    ids=["nonsense", "a shutdown", "the client's end", "idleness"],
)
async def test_an_answer_that_waits_for_others_leaves_before_the_connection_ends(
    then: Callable[[Inbound], object], last: list[bytes]
) -> None:
    """Whatever ends a connection while its answer is about to leave with those of others, the answer goes first."""
    done, before = asyncio.Event(), list[bytes]()

    async def answering(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        if scope["path"] == "/other":
            await done.wait()  # so that the first is not alone
        assert scope["extensions"][LINE].answer(200, [(b"content-length", b"2")], b"ok")
        if scope["path"] == "/one":
            before.extend(sheet.said)
            then(one)

    config = uvicorn.Config(answering, timeout_keep_alive=0)
    config.load()
    state, loop, sheet = ServerState(), asyncio.get_running_loop(), Sheet()
    other, one = Inbound(config, state, {}, loop), Inbound(config, state, {}, loop)
    for connection, transport, path in ((other, Sheet(), b"/other"), (one, sheet, b"/one")):
        connection.connection_made(transport)
        connection.data_received(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path)
    await asyncio.sleep(0.01)
    said = list(sheet.said)
    done.set()
    await asyncio.sleep(0.01)
    for connection in (one, other):
        connection.connection_lost(None)
    await asyncio.sleep(0)

    assert before == []
    assert said[0].startswith(b"HTTP/1.1 200 OK")
    assert said[0].endswith(b"ok")
    assert [part.partition(b"\r\n")[0] for part in said[1:]] == last


async def test_an_answer_does_not_wait_for_others_before_one_that_does_not() -> None:
    """Of requests behind one another, the first is answered at once though others run: the second may be written directly."""
    done = asyncio.Event()

    async def answering(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        if scope["path"] == "/other":
            await done.wait()
        if scope["path"] == "/first":
            assert scope["extensions"][LINE].answer(200, [(b"content-length", b"5")], b"first")
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
            await send({"type": "http.response.body", "body": b"second"})

    config = uvicorn.Config(answering)
    config.load()
    state, loop, sheet = ServerState(), asyncio.get_running_loop(), Sheet()
    other, one = Inbound(config, state, {}, loop), Inbound(config, state, {}, loop)
    for connection, transport, paths in ((other, Sheet(), (b"/other",)), (one, sheet, (b"/first", b"/second"))):
        connection.connection_made(transport)
        connection.data_received(b"".join([b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path for path in paths]))
    await asyncio.sleep(0.01)
    done.set()
    await asyncio.sleep(0.01)
    for connection in (one, other):
        connection.connection_lost(None)
    await asyncio.sleep(0)

    assert [part[-6:].strip() for part in sheet.said] == [b"first", b"second"]
