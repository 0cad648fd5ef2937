"""The data path's HTTP/1.1 client, against scripted origins on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop
from fakes import CLOSE, END, RESET, SILENCE, SSE_HEAD, Script, ScriptedEngine, chunk, reply, scripted
from harness import until

from gateway.http1 import MAX_IDLE_SECONDS, Client
from gateway.outbound import MAX_HEAD_BYTES
from gateway.reply import Broken, Reply, Silent

Run = Callable[[Coroutine[Any, Any, None]], None]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
BOUND = 65536
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@asynccontextmanager
async def origin(*scripts: Script) -> AsyncIterator[tuple[ScriptedEngine, Client]]:
    """Serve a scripted origin, with a client for it."""
    async with scripted(*scripts) as engine:
        client = Client(engine.url)
        client.limit(connect_seconds=2.0, buffer_bytes=BOUND)
        try:
            yield engine, client
        finally:
            client.close()
            await until(lambda: "open=0 idle=0" in repr(client))


async def ask(client: Client, method: bytes = b"POST", body: bytes = b"{}") -> Reply:
    """Send a request and wait for the head of its reply."""
    found = await client.request(method, b"/v1/x?y=1", [(b"x-a", b"1")], body)
    await found.head()
    return found


async def rest(found: Reply) -> bytes:
    """Read a reply to its end."""
    parts = []
    while data := await found.read():
        parts.append(data)
    return b"".join(parts)


async def fetch(client: Client) -> bytes:
    """Send a request and read its whole reply."""
    return await rest(await ask(client))


# What goes out


async def test_a_request_is_what_was_asked_for() -> None:
    """Line, host, headers, length and body go out once, in that order, and nothing is added."""
    async with origin([reply(b"ok")]) as (engine, client):
        await fetch(client)
        (seen,) = engine.seen

        assert (seen.method, seen.target, seen.body) == ("POST", "/v1/x?y=1", b"{}")
        assert seen.headers == [("host", f"127.0.0.1:{engine.port}"), ("x-a", "1"), ("content-length", "2")]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [(b"GET", b"", None), (b"POST", b"", "0"), (b"DELETE", b"", None), (b"PUT", b"x", "1")],
)
async def test_a_length_is_told_where_there_is_a_body(method: bytes, body: bytes, length: str | None) -> None:
    """A POST always has a length, other methods only with a body."""
    async with origin([reply(b"ok")]) as (engine, client):
        await rest(await ask(client, method, body))

        assert engine.seen[0].header("content-length") == length


async def test_a_large_body_arrives_whole() -> None:
    """A body beyond one write is sent after its head."""
    body = bytes(range(256)) * 4096
    async with origin([reply(b"ok")]) as (engine, client):
        await rest(await ask(client, body=body))

        assert engine.seen[0].body == body


async def test_a_path_in_the_origin_stands_before_every_target() -> None:
    """An engine behind a path is asked there."""
    async with scripted([reply(b"ok")]) as engine:
        client = Client(engine.url + "/base/")
        await fetch(client)
        client.close()

        assert engine.seen[0].target == "/base/v1/x?y=1"


@pytest.mark.parametrize("url", ["", "engine:8000", "ftp://engine", "http://", "/v1"])
def test_an_origin_is_an_http_address(url: str) -> None:
    """Anything else is a defect of whoever made it, and said at once."""
    with pytest.raises(ValueError, match="origin"):
        Client(url)


# What comes back


@pytest.mark.parametrize(
    ("script", "body", "connections"),
    [
        ([HEAD + b"Content-Length: 5\r\n\r\nhello"], b"hello", 1),
        ([HEAD + b"Content-Length: 5\r\n\r\n", b"he", 0.01, b"llo"], b"hello", 1),
        ([HEAD + b"Content-Length: 0\r\n\r\n"], b"", 1),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hel") + chunk(b"lo") + END], b"hello", 1),
        (
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"5;x=y\r\nhe", 0.01, b"llo\r\n0\r\n", b"\r\n"],
            b"hello",
            1,
        ),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello") + b"0\r\nX-Sum: 1\r\n\r\n"], b"hello", 1),
        ([HEAD + b"\r\nhello", CLOSE], b"hello", 2),
        ([HEAD + b"\r\n", CLOSE], b"", 2),
        ([HEAD + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello"], b"hello", 2),
        ([b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"], b"hello", 2),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello"], b"hello", 1),
        (
            [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0.01, HEAD + b"Content-Length: 2\r\n\r\nhi"],
            b"hi",
            1,
        ),
    ],
    ids=[
        "length",
        "length in pieces",
        "empty",
        "chunked",
        "chunked in pieces",
        "trailers",
        "until the end",
        "nothing until the end",
        "close",
        "HTTP/1.0",
        "continue",
        "early hints",
    ],
)
@both_loops
def test_every_framing_of_a_body(run: Run, script: Script, body: bytes, connections: int) -> None:
    """Bodies by length, in chunks or until the end come whole; interim heads and trailers leave no trace."""

    async def main() -> None:
        async with origin(script, [reply(b"next")]) as (engine, client):
            found = await ask(client)
            assert (found.status, found.headers[0]) == (200, (b"content-type", b"text/plain"))
            assert not any(name in {b"link", b"x-sum"} for name, _ in found.headers)
            assert await rest(found) == body
            assert found.complete
            assert await found.read() == b""

            await fetch(client)
            assert engine.connections == connections

    run(main())


@pytest.mark.parametrize("status", [204, 304])
async def test_replies_without_a_body_are_complete(status: int) -> None:
    """A status that has no body ends with its head, and the connection is kept."""
    async with origin([b"HTTP/1.1 %d X\r\nx: y\r\n\r\n" % status], [reply(b"next")]) as (engine, client):
        found = await ask(client)
        assert (found.status, await rest(found)) == (status, b"")
        await fetch(client)

        assert engine.connections == 1


async def test_the_reply_to_head_has_no_body() -> None:
    """The length that a HEAD's reply announces is not waited for."""
    async with origin([HEAD + b"Content-Length: 500\r\n\r\n"], [reply(b"next")]) as (_, client):
        found = await ask(client, b"HEAD", b"")

        assert (b"content-length", b"500") in found.headers
        assert await rest(found) == b""
        assert await fetch(client) == b"next"


async def test_headers_are_kept_as_they_came() -> None:
    """Names in lower case, values and repetitions untouched, in order."""
    lines = b"Set-Cookie: a=1\r\nset-cookie: b=2\r\nX-Empty:\r\nX-Text: \xe4 b\r\n"
    async with origin([HEAD + lines + b"Content-Length: 0\r\n\r\n"]) as (_, client):
        found = await ask(client)

        assert found.headers[1:5] == [
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            (b"x-empty", b""),
            (b"x-text", b"\xe4 b"),
        ]


async def test_a_head_cut_anywhere_is_the_same_head() -> None:
    """Reads may meet at any byte of status line, headers and body."""
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello") + END
    scripts: list[Script] = [[whole[:at], 0.001, whole[at:]] for at in range(1, len(whole))]
    async with origin(*scripts) as (engine, client):
        for _ in scripts:
            found = await ask(client)
            assert (found.status, len(found.headers), await rest(found)) == (200, 2, b"hello")

        assert engine.connections == 1


async def test_one_read_gives_all_that_has_come() -> None:
    """Chunks that have arrived together are handed on together."""
    async with origin([SSE_HEAD + chunk(b"a") + chunk(b"b"), SILENCE]) as (_, client):
        found = await ask(client)

        assert await found.read() == b"ab"
        assert not found.complete


async def test_bytes_can_be_put_back() -> None:
    """A reader that looked ahead leaves no trace, even after the connection has gone on to other work."""
    async with origin([reply(b"hello")]) as (_, client):
        found = await ask(client)
        data = await found.read()
        found.unread(data)

        assert found.pending
        assert found.starts_with(b"hel")
        assert not found.starts_with(b"x")
        assert await rest(found) == b"hello"


# Connections


async def test_the_warmest_connection_is_taken_first() -> None:
    """Of two idle connections the one used last is used next, so that the others can grow old."""
    async with origin([0.02, reply(b"a")], [0.06, reply(b"b")], [reply(b"c")]) as (engine, client):
        await asyncio.gather(fetch(client), fetch(client))
        assert engine.connections == 2
        assert repr(client) == f"<Client 127.0.0.1:{engine.port} open=2 idle=2>"
        await fetch(client)
        await fetch(client)

        assert [seen.connection for seen in engine.seen] == [1, 2, 2, 2]


async def test_replies_at_once_have_connections_of_their_own() -> None:
    """No request waits for another's reply."""
    async with origin([0.02, reply(b"x")]) as (engine, client):
        await asyncio.gather(*(fetch(client) for _ in range(5)))

        assert engine.connections == 5


async def test_a_connection_that_was_idle_for_long_is_not_trusted() -> None:
    """The server may be closing it this moment, so it is closed here and a fresh one opened."""
    async with origin([reply(b"x")]) as (engine, client):
        await fetch(client)
        client._idle[0].idle_since -= MAX_IDLE_SECONDS + 0.1
        found = await ask(client)

        assert not found.reused
        assert engine.connections == 2
        await until(lambda: "open=1" in repr(client))


async def test_an_idle_connection_that_the_server_closes_is_forgotten() -> None:
    """A close while idle costs nothing: the next request opens another."""
    async with origin([reply(b"x"), CLOSE], [reply(b"y")]) as (engine, client):
        await fetch(client)
        await until(lambda: "open=0 idle=0" in repr(client))

        assert await fetch(client) == b"y"
        assert engine.connections == 2


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_stale_connection_can_be_told(end: Any) -> None:
    """A reused connection that ends before any byte says so, and the caller may repeat the request."""
    async with origin([reply(b"x")], [end]) as (_, client):
        await fetch(client)
        found = await client.request(b"POST", b"/", [], b"")
        with pytest.raises(Broken) as caught:
            await found.head()

        assert found.reused
        assert not caught.value.seen


async def test_bytes_behind_a_reply_are_nobody_s() -> None:
    """Whatever follows a reply at once would be taken for the next request's, so the connection is not used again."""
    behind = (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", b"HTTP/1.1 200 OK\r\nCont", b"junk")
    for junk in behind:
        async with origin([reply(b"x") + junk], [reply(b"next")]) as (engine, client):
            assert await fetch(client) == b"x"
            assert await fetch(client) == b"next"
            assert engine.connections == 2


async def test_bytes_on_an_idle_connection_close_it() -> None:
    """The same holds for what comes later, while nothing is asked."""
    async with origin([reply(b"x"), 0.01, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"], [reply(b"y")]) as (
        engine,
        client,
    ):
        await fetch(client)
        await until(lambda: "open=0 idle=0" in repr(client))

        assert await fetch(client) == b"y"
        assert engine.connections == 2


async def test_a_retired_origin_keeps_no_connection() -> None:
    """Idle connections close at once, busy ones when their reply is complete."""
    async with origin([reply(b"x")], [SSE_HEAD, chunk(b"a"), 0.05, chunk(b"b"), END]) as (_, client):
        await fetch(client)
        running = await ask(client)
        client.retire()

        assert await rest(running) == b"ab"
        await until(lambda: "open=0 idle=0" in repr(client))


# Failures


async def test_an_origin_that_refuses_is_broken() -> None:
    """No listener: an error that names the place, and no byte was seen."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    with pytest.raises(Broken, match=f"127.0.0.1:{port}") as caught:
        await client.request(b"GET", b"/", [], b"")

    assert not caught.value.seen


async def test_an_origin_that_does_not_answer_a_connect_is_broken() -> None:
    """Opening a connection has a limit of its own."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # fill the queue, so that the kernel drops further attempts
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        client.limit(connect_seconds=0.1, buffer_bytes=BOUND)
        with pytest.raises(Broken, match=r"in 0\.1 s"):
            await client.request(b"GET", b"/", [], b"")


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ([CLOSE], "nothing"),
        ([RESET], "nothing"),
        ([b"HTTP/1.1 200 OK\r\ncontent-le", CLOSE], "seen"),
        ([b"HTTP/1.1 200 OK\r\ncontent-le", 0.01, RESET], "seen"),
        ([b"garbage\r\n\r\n"], "seen"),
        ([b"HTTP/1.1 abc OK\r\n\r\n"], "seen"),
        ([b"HTTP/9.9 200 OK\r\n\r\n"], "seen"),
        ([HEAD + b"Content-Length: x\r\n\r\n"], "seen"),
        ([HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"], "seen"),
        ([HEAD + b"Bad Name: x\r\n\r\n"], "seen"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], "seen"),
        ([HEAD + b"X: " + b"a" * 40_000, 0.01, b"b" * 40_000], "seen"),
        ([*[b"HTTP/1.1 100 Continue\r\nx: " + b"a" * 30_000 + b"\r\n\r\n", 0.01] * 4], "seen"),
    ],
    ids=[
        "close",
        "reset",
        "half a head",
        "half a head, reset",
        "garbage",
        "no status",
        "no version",
        "no length",
        "two lengths",
        "no name",
        "upgrade",
        "large",
        "endless interim heads",
    ],
)
@both_loops
def test_a_head_that_is_none_is_broken(run: Run, script: Script, seen: str) -> None:
    """Whatever is no response ends as Broken, with whether a byte had come, and the connection goes."""

    async def main() -> None:
        async with origin(script) as (_, client):
            found = await client.request(b"POST", b"/", [], b"")
            with pytest.raises(Broken) as caught:
                await found.head()
            assert caught.value.seen is (seen == "seen")
            await until(lambda: "open=0" in repr(client))

    run(main())


def test_a_head_may_not_be_endless() -> None:
    """The bound on heads is what the case above passes."""
    assert MAX_HEAD_BYTES < 80_000


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ([HEAD + b"Content-Length: 9\r\n\r\nhello", CLOSE], b"hello"),
        ([HEAD + b"Content-Length: 9\r\n\r\nhello", 0.02, RESET], b"hello"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello"), CLOSE], b"hello"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello")[:-3], CLOSE], b"hell"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello") + b"0\r\n", CLOSE], b"hello"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"hello"), 0.02, b"nonsense\r\n"], b"hello"),
        ([HEAD + b"\r\nhello", 0.02, RESET], b"hello"),
    ],
    ids=["length", "length, reset", "chunked", "in a chunk", "in the end", "bad chunk", "until the end, reset"],
)
@both_loops
def test_a_body_that_breaks_off_never_looks_whole(run: Run, script: Script, body: bytes) -> None:
    """What came can be read, then the reply is broken; it is not complete, and the connection is not used again."""

    async def main() -> None:
        async with origin(script, [reply(b"next")]) as (engine, client):
            found = await ask(client)
            got = b""
            while len(got) < len(body):
                got += await found.read()
            with pytest.raises(Broken) as caught:
                await found.read()
            assert got == body
            assert caught.value.seen
            assert not found.complete
            assert await fetch(client) == b"next"
            assert engine.connections == 2

    run(main())


@both_loops
def test_a_cut_made_here_is_not_the_end_of_a_body(run: Run) -> None:
    """A body that lasts until the connection ends is broken, not whole, when this side closes the connection."""

    async def main() -> None:
        async with origin([HEAD + b"\r\nhello", SILENCE]) as (_, client):
            found = await ask(client)
            assert await found.read() == b"hello"
            client.close()
            with pytest.raises(Broken):
                await found.read()
            assert not found.complete

    run(main())


@both_loops
def test_an_abort_reaches_the_engine(run: Run) -> None:
    """Dropping a reply closes its connection, before the head as well as in the middle; doing it twice does nothing."""

    async def main() -> None:
        async with origin([SILENCE], [SSE_HEAD, chunk(b"a"), SILENCE]) as (engine, client):
            waiting = await client.request(b"POST", b"/", [], b"")
            await until(lambda: engine.seen)
            waiting.abort()
            await until(lambda: engine.seen[0].left)

            running = await ask(client)
            running.abort()
            running.abort()
            await until(lambda: engine.seen[1].left)
            assert "open=0 idle=0" in repr(client)

    run(main())


async def test_an_abort_after_the_end_spares_the_connection() -> None:
    """A reply that has been received whole no longer owns its connection, even if nobody has read it."""
    async with origin([reply(b"x")]) as (engine, client):
        found = await ask(client)
        await until(lambda: found.complete)
        found.abort()
        found.fail(Silent("too late"))

        assert await rest(found) == b"x"
        await fetch(client)
        assert engine.connections == 1


async def test_a_reply_that_is_failed_from_outside_tells_its_reader() -> None:
    """A watch that finds the engine silent ends the reply; the reader hears why, the engine that nobody listens."""
    async with origin([SSE_HEAD, chunk(b"a"), SILENCE]) as (engine, client):
        found = await ask(client)
        assert await found.read() == b"a"
        reader = asyncio.create_task(found.read())
        await asyncio.sleep(0)
        found.fail(Silent("nothing for 9 s"))
        found.fail(Silent("said twice"))

        with pytest.raises(Silent, match="nothing for 9 s"):
            await reader
        with pytest.raises(Broken):
            await found.read()
        await until(lambda: engine.seen[0].left)


async def test_a_reader_that_is_cancelled_leaves_the_reply_as_it_is() -> None:
    """Waiting can be given up and taken up again."""
    async with origin([SSE_HEAD, 0.05, chunk(b"a") + END]) as (_, client):
        found = await ask(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await found.read()

        assert await rest(found) == b"a"


# Bounds

MEGABYTES = 16


@both_loops
def test_reading_pauses_at_the_bound(run: Run) -> None:
    """An engine that is faster than the reader is held back, and every byte comes once the reader takes them."""
    body = bytes(range(256)) * 256  # 64 KiB
    script: list[Any] = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk(body)] * 16 * MEGABYTES, END]

    async def main() -> None:
        async with origin(script, [reply(b"next")]) as (engine, client):
            found = await ask(client)
            await until(lambda: found.paused)
            await asyncio.sleep(0.05)
            written = engine.seen[0].written
            await asyncio.sleep(0.05)
            assert engine.seen[0].written == written < MEGABYTES << 20
            assert found._size < BOUND + (256 << 10)  # the loops read at most 256 KiB at once
            silent_since = found.last_byte_at

            got = await found.read()
            assert found.last_byte_at > silent_since  # a pause of ours is no silence of the engine's
            while data := await found.read():
                got += data
            assert got == body * 16 * MEGABYTES
            assert await fetch(client) == b"next"
            assert engine.connections == 1

    run(main())


async def test_a_reader_that_keeps_up_never_pauses() -> None:
    """A reply whose bytes are taken as they come is not marked."""
    async with origin([SSE_HEAD, *[chunk(b"x" * 1000)] * 50, END]) as (_, client):
        found = await ask(client)
        await rest(found)

        assert not found.paused
