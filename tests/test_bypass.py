"""The bypass: sockets that are read in a transport's place while all that comes passes, and given back with what does not."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import DONE, END, RESET, ROLE, SSE_HEAD, STREAM, chunk, delta, post, scripted, slowly, visitor
from harness import config_for, serving

from gateway import bypass as module
from gateway.bypass import Bypass, bypass, plain_socket
from gateway.http1 import Client
from gateway.reply import Reply
from gateway.request import Passage

HEAD, TAIL = b'data: {"text":"', b'"}\n\n'
EVENT = chunk(HEAD + b"a" + TAIL)
OTHER = chunk(b"data: [DONE]\n\n")
WORDS = [delta(f" word{n}") for n in range(60)]


class Line:
    """A connection that the bypass reads: `theirs` is the engine's end, `written` what passed, `back` what was handed back."""

    def __init__(self, on: Bypass, write: Callable[[bytes], object] | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.written: list[bytes] = []
        self.back: list[bytes | None] = []
        self.then: Callable[[], object] = lambda: None
        self.passage = Passage(write or self.written.append, int, -1, 0)
        self.passage.learn(HEAD, TAIL)
        on.add(self.ours.fileno(), self.passage, self._take_back)

    def _take_back(self, data: bytes | None) -> None:
        self.back.append(data)
        self.then()

    def close(self) -> None:
        """Close both ends."""
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def on() -> Bypass:
    """Return a bypass that reads nothing yet."""
    return Bypass()


@pytest.fixture
def line(on: Bypass) -> Iterator[Line]:
    """Return a connection that it reads."""
    made = Line(on)
    yield made
    made.close()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Return the types of the errors that nobody could be handed; themselves they would hold what they passed through."""
    types: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: types.append(event.exc_type))
    return types


def test_it_was_built() -> None:
    """A Linux with a C compiler has it."""
    assert (Bypass is not None) == sys.platform.startswith("linux")


def test_ordinary_events_pass(on: Bypass, line: Line) -> None:
    """What has come by the time of a look passes as it came; where nothing has, nothing happens."""
    on.look()
    line.theirs.send(EVENT)
    line.theirs.send(EVENT)
    on.look()
    on.look()
    line.theirs.send(EVENT)
    on.look()

    assert line.written == [EVENT * 2, EVENT]
    assert (line.back, line.passage.events) == ([], 3)


def test_what_does_not_pass_is_handed_back_with_the_connection(on: Bypass, line: Line) -> None:
    """Whoever takes it back has all bytes that did not pass, and reads the rest itself."""
    line.theirs.send(EVENT + OTHER)
    on.look()
    line.theirs.send(EVENT)
    on.look()

    assert (line.written, line.back) == ([], [EVENT + OTHER])
    assert line.ours.recv(1000) == EVENT


def test_a_passage_that_was_closed_lets_nothing_pass(on: Bypass, line: Line) -> None:
    """A client that stopped reading has its passage closed: the next event finds its connection given back."""
    line.passage.open = False
    line.theirs.send(EVENT)
    on.look()

    assert (line.written, line.back) == ([], [EVENT])


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_an_end_is_handed_back_without_bytes(on: Bypass, how: str) -> None:
    """Whether the other side closed or broke off; the transport meets it again and says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    back: list[bytes | None] = []
    way = Passage(bytes, int, -1, 0)
    on.add(ours.fileno(), way, back.append)
    if how == "reset":
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    theirs.close()
    on.look()

    assert back == [b""]
    ours.close()


def test_what_cannot_be_written_is_handed_back_as_none(on: Bypass, heard: list[type]) -> None:
    """Bytes are lost then, so that the connection cannot go on; the error is told."""

    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    line = Line(on, refuse)
    line.theirs.send(EVENT)
    on.look()

    assert line.back == [None]
    assert heard == [BrokenPipeError]
    line.close()


def test_who_is_removed_while_it_is_written_is_not_handed_back(on: Bypass, heard: list[type]) -> None:
    """A write may end the connection, and fail as well: there is nobody to give it back to."""

    def end(_: bytes) -> None:
        on.remove(line.ours.fileno())
        raise BrokenPipeError

    line = Line(on, end)
    line.theirs.send(EVENT)
    on.look()

    assert (line.back, heard) == ([], [BrokenPipeError])
    line.close()


def test_an_error_of_whoever_takes_it_back_harms_nobody_else(on: Bypass, line: Line, heard: list[type]) -> None:
    """It is told, and the others of the same look are served."""

    def fail() -> None:
        raise ValueError

    line.then, other = fail, Line(on)
    other.then = fail
    line.theirs.send(OTHER)
    other.theirs.send(OTHER)
    on.look()

    assert (line.back, other.back) == ([OTHER], [OTHER])
    assert heard == [ValueError, ValueError]
    other.close()


def test_who_was_removed_by_another_of_the_same_look_is_left_alone(on: Bypass) -> None:
    """One connection's end may end another's: what has come for it stays unread."""
    first, second = Line(on), Line(on)
    first.then = lambda: on.remove(second.ours.fileno())
    second.then = lambda: on.remove(first.ours.fileno())
    first.theirs.send(OTHER)
    second.theirs.send(OTHER)
    on.look()
    on.look()

    assert sorted([first.back, second.back]) == [[], [OTHER]]
    first.close()
    second.close()


def test_who_is_removed_is_read_no_more(on: Bypass, line: Line) -> None:
    """Nor is anything kept of it; to remove whoever is not there is nothing."""
    count = sys.getrefcount(line.passage)
    on.remove(line.ours.fileno())
    on.remove(line.ours.fileno())
    on.remove(1_000_000)
    on.remove(-1)
    line.theirs.send(EVENT)
    on.look()

    after = sys.getrefcount(line.passage)
    assert (line.written, line.back) == ([], [])
    assert after == count - 1


def test_wrong_use_is_told(on: Bypass, line: Line) -> None:
    """A socket that is there already, or is none; what is no passage; arguments."""
    with pytest.raises(ValueError, match=str(line.ours.fileno())):
        on.add(line.ours.fileno(), line.passage, print)
    with pytest.raises(ValueError, match="-1"):
        on.add(-1, line.passage, print)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        on.add(1000, line.passage, print)
    with pytest.raises(TypeError):
        on.add(line.theirs.fileno(), print, print)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        on.remove("one")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Bypass(1)  # type: ignore[call-arg]


def test_it_ends_with_connections_in_it() -> None:
    """A loop that ends takes it along: it lets go of all that it held."""
    made = Bypass()
    line = Line(made)
    count = sys.getrefcount(line.passage)
    del made
    after = sys.getrefcount(line.passage)
    line.close()

    assert after == count - 1


async def test_each_loop_has_one() -> None:
    """It looks whenever something has come, without being asked."""
    made = bypass(asyncio.get_running_loop(), 0)
    assert made is not None
    line = Line(made)
    line.theirs.send(EVENT)
    for _ in range(100):
        if line.written:
            break
        await asyncio.sleep(0.001)

    assert line.written == [EVENT]
    assert bypass(asyncio.get_running_loop(), 0) is made
    assert bypass(asyncio.get_running_loop(), -1) is None
    made.remove(line.ours.fileno())
    line.close()


async def test_without_descriptors_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more can be opened, or nothing was compiled, transports read on."""

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(module, "Bypass", none_left)
    assert bypass(loop, 0) is None
    monkeypatch.setattr(module, "Bypass", None)
    assert bypass(loop, 0) is None
    loop.close()


def test_a_socket_under_tls_is_no_plain_one() -> None:
    """What is written to it is not what goes on the wire; and a transport may have no socket at all."""
    raw = SimpleNamespace(fileno=lambda: 7)

    def knows(**extra: object) -> Any:
        return SimpleNamespace(get_extra_info=extra.get)

    assert plain_socket(knows(socket=raw)) == 7
    assert plain_socket(knows(socket=raw, ssl_object=object())) == -1
    assert plain_socket(knows()) == -1


@asynccontextmanager
async def pouring() -> AsyncIterator[tuple[socket.socket, Reply, list[bytes], asyncio.Task[bool]]]:
    """Yield an engine's end of a connection that the bypass reads, its reply, what has passed so far, and who pours it."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        client = Client(f"http://127.0.0.1:{server.getsockname()[1]}")
        asking = asyncio.create_task(client.request(b"GET", b"/", [], b""))
        engine, _ = await loop.sock_accept(server)
    reply = await asking
    written: list[bytes] = []
    way = Passage(written.append, int, -1, 0)
    way.learn(HEAD, TAIL)
    engine.send(SSE_HEAD + EVENT)
    await reply.head()
    task = asyncio.create_task(reply.pour(lambda _: True, way))
    while reply._connection is None or reply._connection._bypass is None:
        await asyncio.sleep(0.002)
        engine.send(EVENT)
    await asyncio.sleep(0.005)
    yield engine, reply, written, task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    engine.close()
    client.close()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["dropped", "lost"])
async def test_of_a_connection_that_is_no_more_nothing_passes(how: str) -> None:
    """Not even what has come before the event loop could close it: the client may have been told that the stream has ended."""
    found = bypass(asyncio.get_running_loop(), 0)
    assert found is not None
    async with pouring() as (engine, reply, written, _):
        before, connection = len(written), reply._connection
        assert connection is not None
        transport = connection._transport
        assert transport is not None
        engine.send(EVENT)
        if how == "dropped":
            reply.abort()
        else:
            connection.connection_lost(ConnectionResetError())
        found.look()

        assert len(written) == before > 0
        transport.abort()


async def test_whoever_stops_pouring_reads_on_by_the_transport() -> None:
    """What comes then is the reply's again, and nobody else's."""
    async with pouring() as (engine, reply, written, task):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        before = len(written)
        engine.send(EVENT)

        assert await asyncio.wait_for(reply.read(), 5) == HEAD + b"a" + TAIL
        assert len(written) == before


# ── Through the gateway ───────────────────────────────────────────────────────────────────────────────────────────────


class Counting:
    """Stands before a bypass and counts who is read by it."""

    def __init__(self, real: Bypass) -> None:
        self._real = real
        self.added = self.back = self.removed = 0

    def add(self, number: int, passage: Passage, back: Callable[[bytes | None], object]) -> None:
        """Count, and count again when it is handed back."""

        def counted(data: bytes | None) -> None:
            self.back += 1
            back(data)

        self._real.add(number, passage, counted)
        self.added += 1

    def remove(self, number: int) -> None:
        """Count it."""
        self.removed += 1
        self._real.remove(number)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    """Put a count before the bypass of the loop that comes; it is the list's only element once it was asked for."""
    made: list[Counting] = []

    def found(loop: asyncio.AbstractEventLoop, number: int) -> Counting:
        if not made:
            real = bypass(loop, number)
            assert real is not None
            made.append(Counting(real))
        return made[0]

    monkeypatch.setattr("gateway.outbound.bypass", found)
    return made


async def test_a_stream_goes_past_the_transport_and_comes_back(counting: list[Counting]) -> None:
    """All in order, the event in the midst that is not ordinary among them; and the connection carries the next call."""
    events = [ROLE, *WORDS[:30], delta('"', finish="stop"), *WORDS[30:], DONE]
    async with (
        scripted([*slowly(*map(chunk, events)), END]) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
        visitor(gateway.port) as guest,
    ):
        for _ in range(2):
            await guest.send(post(STREAM))
            assert (await guest.answer()).body == b"".join(events)
        records = await gateway.settled(2)

    assert [(record.outcome, record.completion_tokens) for record in records] == [("ok", 61)] * 2
    assert (counting[0].added, counting[0].back, counting[0].removed) == (4, 4, 0)


async def test_an_engine_that_breaks_off_is_noticed(counting: list[Counting]) -> None:
    """Its connection is read by the bypass at that time: the client is told, after all that came before."""
    async with (
        scripted([*slowly(*map(chunk, [ROLE, *WORDS])), 0.02, RESET]) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
        visitor(gateway.port) as guest,
    ):
        await guest.send(post({**STREAM, "temperature": 1}))
        got = (await guest.answer()).body
        record = (await gateway.settled(1))[-1]

    assert got.startswith(b"".join([ROLE, *WORDS]))
    assert (record.outcome, record.error) == ("truncated", "stream_truncated")
    assert (counting[0].added, counting[0].back) == (1, 1)


async def test_a_client_that_leaves_ends_it(counting: list[Counting]) -> None:
    """The engine's connection is read no more, and closed."""
    async with (
        scripted([*slowly(*map(chunk, [ROLE, *WORDS])), "silence"]) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
        visitor(gateway.port) as guest,
    ):
        await guest.send(post(STREAM))
        await guest.head()
        await guest.until(WORDS[-1])
        guest.leave()
        record = (await gateway.settled(1))[-1]

    assert (record.outcome, record.completion_tokens) == ("client_gone", 60)
    assert (counting[0].added, counting[0].back, counting[0].removed) == (1, 0, 1)


async def test_what_the_kernel_does_not_watch_the_transport_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bypass that takes no more sockets costs nothing but its advantage."""

    class Full:
        """Refuses as the kernel does at its limit of watches."""

        def add(self, *_: object) -> None:
            """Refuse."""
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gateway.outbound.bypass", lambda *_: Full())
    events = [ROLE, *WORDS, DONE]
    async with (
        scripted([*slowly(*map(chunk, events)), END]) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
        visitor(gateway.port) as guest,
    ):
        await guest.send(post(STREAM))
        answer = await guest.answer()

    assert answer.body == b"".join(events)
