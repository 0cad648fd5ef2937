"""The shortcut: events like the one learned, in whole chunks, all or nothing; the same bytes and books as the long way."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import (
    DONE,
    END,
    RESET,
    ROLE,
    SILENCE,
    SSE_HEAD,
    STREAM,
    USAGE,
    Script,
    Visitor,
    chunk,
    delta,
    post,
    scripted,
    slowly,
    visitor,
)
from harness import Running, config_for, serving
from hypothesis import given
from hypothesis import strategies as st

from gateway import request
from gateway.record import Finished
from gateway.request import Passage, Request

HEAD, TAIL = b'data: {"text":"', b'"}\n\n'
GREEDY: dict[str, Any] = {**STREAM, "temperature": 0}


def ordinary(text: bytes) -> bytes:
    """Return an event like the one that is learned here."""
    return HEAD + text + TAIL


def closed(write: Callable[[bytes], object], keep: int = 0) -> Passage:
    """Return a passage that has learned nothing, and writes by this call alone."""
    return Passage(write, int, -1, keep)


def passage(written: list[bytes], keep: int = 0) -> Passage:
    """Return an open passage that writes to a list."""
    made = closed(written.append, keep)
    made.learn(HEAD, TAIL)
    return made


# ── What passes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_was_built() -> None:
    """A machine with a C compiler has the shortcut."""
    assert Passage is not None


REFUSED = {
    "nothing": b"",
    "another event": chunk(b"data: [DONE]\n\n"),
    "the end of the body": END,
    "a quote in the text": chunk(ordinary(b'no","more":"')),
    "a quote behind an escaped backslash": chunk(ordinary(b'no\\\\","more":"')),
    "a backslash that escapes the end": chunk(ordinary(b"no\\")),
    "an escaped line break": chunk(ordinary(b"a\\\nb")),
    "a line break in the text": chunk(ordinary(b"a\nb")),
    "a carriage return in the text": chunk(ordinary(b"a\rb")),
    "two events in a chunk": chunk(ordinary(b"a") + ordinary(b"b")),
    "head and tail that overlap": chunk(HEAD + TAIL[1:]),
    "half a chunk": chunk(ordinary(b"a"))[:-1],
    "a chunk and half of the next": chunk(ordinary(b"a")) + chunk(ordinary(b"b"))[:5],
    "half of a size": chunk(ordinary(b"a")) + b"1",
    "an ordinary one, then another": chunk(ordinary(b"a")) + chunk(DONE),
    "a size in capitals": b"1A\r\n" + ordinary(b"1234567") + b"\r\n",
    "a leading zero": b"01a\r\n" + ordinary(b"1234567") + b"\r\n",
    "an extension": b"1a;x=y\r\n" + ordinary(b"1234567") + b"\r\n",
    "a size that is too small": b"19\r\n" + ordinary(b"1234567") + b"\r\n",
    "a size that is too large": b"1b\r\n" + ordinary(b"1234567") + b"\r\n",
    "a huge size": b"ffffffffffffffff\r\n" + ordinary(b"1234567") + b"\r\n",
    "no line break behind the data": b"1a\r\n" + ordinary(b"1234567") + b"..",
    "a bare line feed": b"1a\n" + ordinary(b"1234567") + b"\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_whole(data: bytes) -> None:
    """Nothing of it is written, counted or kept: whoever asked has all of it still."""
    written: list[bytes] = []
    way = passage(written, 1000)

    assert not way(data)
    assert (written, way.take()) == ([], (0, b""))


def test_the_sizes_of_the_refused_are_right() -> None:
    """The event in the bodies above has 26 bytes: it is their framing that is refused."""
    assert passage([])(b"1a\r\n" + ordinary(b"1234567") + b"\r\n")


def as_json(text: str) -> bytes:
    """Return a text as JSON writes it between quotes."""
    return json.dumps(text)[1:-1].encode()


pieces = st.lists(st.sampled_from([b'"', b"\\", b"\n", b"\r", b"a", b" "]), max_size=8).map(b"".join)


@given(st.lists(st.binary(max_size=20) | st.text(max_size=20).map(as_json) | pieces, min_size=1, max_size=6))
def test_what_passes_is_what_is_like_the_example(texts: list[bytes]) -> None:
    """Chunks pass just when each text has no line break and no quote but escaped ones; bytes are written as they came."""
    written: list[bytes] = []
    way = passage(written, 4096)
    data = b"".join(chunk(ordinary(text)) for text in texts)
    fits = all(re.fullmatch(rb'([^"\\\n\r]|\\[^\n\r])*', text, re.DOTALL) for text in texts)

    assert way(data) is fits
    assert written == [data] * fits
    assert way.take() == ((len(texts), b"".join(texts)) if fits else (0, b""))
    assert way.take() == (0, b"")


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_safe(noise: bytes, at: int) -> None:
    """Whatever stands in a chunk's place, it passes only if it could be taken apart into such chunks again."""
    data = chunk(ordinary(b"abc"))
    data = data[:at] + noise + data[at:]
    written: list[bytes] = []

    if passage(written)(data):
        rest, count = data, 0
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            event, rest = rest[: int(size, 16)], rest[int(size, 16) :]
            assert event.startswith(HEAD)
            assert event.endswith(TAIL)
            assert rest.startswith(b"\r\n")
            rest, count = rest[2:], count + 1
        assert written == [data]


def test_it_keeps_no_more_than_it_may() -> None:
    """Beyond the bytes of text that it may keep it refuses, until they are taken."""
    written: list[bytes] = []
    event = ordinary(b"a" * 20)
    way = passage(written, 41)

    assert [way(chunk(event)) for _ in range(3)] == [True, True, False]
    assert way.take() == (2, b"a" * 40)
    assert way(chunk(event))
    assert len(written) == 3


def test_closed_nothing_passes() -> None:
    """Before it has learned what passes, and while it is closed, everything goes the long way."""
    written: list[bytes] = []
    way = closed(written.append)

    assert not way(chunk(ordinary(b"a")))
    way.learn(HEAD, TAIL)
    assert way(chunk(ordinary(b"a")))
    way.open = False
    assert not way(chunk(ordinary(b"a")))
    assert len(written) == 1


def test_one_that_was_never_told_where_to_write_refuses() -> None:
    """Made past its constructor it lets nothing through, and harms nobody."""
    way = Passage.__new__(Passage)
    way.learn(HEAD, TAIL)

    assert not way(chunk(ordinary(b"a")))
    assert way.take() == (0, b"")


def test_what_cannot_be_written_is_an_error() -> None:
    """An error of the transport reaches whoever read the bytes; wrong use is told."""

    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    way = closed(refuse)
    way.learn(HEAD, TAIL)
    with pytest.raises(BrokenPipeError):
        way(chunk(ordinary(b"a")))
    with pytest.raises(TypeError):
        way("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        way(data=b"")  # type: ignore[call-arg]


def test_where_nothing_waits_it_writes_to_the_socket_itself() -> None:
    """Bytes overtake none that wait in the transport; what the socket does not take goes through it, and what follows."""
    ours, theirs = socket.socketpair()
    through: list[bytes] = []
    before = [5]
    way = Passage(through.append, lambda: before[0], ours.fileno(), 0)
    way.learn(HEAD, TAIL)
    small, large = chunk(ordinary(b"a")), chunk(ordinary(b"b" * 8_000_000))
    with ours, theirs:
        assert way(small)
        assert through == [small]
        before[0] = 0
        assert way(small)
        assert (theirs.recv(1000), through) == (small, [small])
        assert way(large)
        assert 0 < len(through[1]) < len(large)
        before[0] = len(through[1])
        theirs.setblocking(False)
        got = b""
        with suppress(BlockingIOError):
            while part := theirs.recv(1 << 20):
                got += part
        assert got + through[1] == large
        assert way(small)  # for which the socket has room now, but the transport still holds what goes before it
        assert through[2] == small


def test_it_asks_again_whether_anything_waits_after_it_learned() -> None:
    """Others write before an event is learned from: they have to be asked after."""
    ours, theirs = socket.socketpair()
    through: list[bytes] = []
    before = [0]
    way = Passage(through.append, lambda: before[0], ours.fileno(), 0)
    with ours, theirs:
        way.learn(HEAD, TAIL)
        assert way(chunk(ordinary(b"a")))
        before[0] = 3
        way.learn(HEAD, TAIL)
        assert way(chunk(ordinary(b"b")))
        assert theirs.recv(1000) == chunk(ordinary(b"a"))
    assert through == [chunk(ordinary(b"b"))]


def test_a_socket_that_fails_is_left_to_the_transport() -> None:
    """It meets the failure itself and tells whom it concerns; whoever cannot say what waits is an error."""
    ours, theirs = socket.socketpair()
    through: list[bytes] = []
    way = Passage(through.append, int, ours.fileno(), 0)
    way.learn(HEAD, TAIL)
    theirs.close()
    with ours:
        assert way(chunk(ordinary(b"a")))
        assert through == [chunk(ordinary(b"a"))]
        unsure = Passage(through.append, lambda: "much", ours.fileno(), 0)  # type: ignore[arg-type,return-value]
        unsure.learn(HEAD, TAIL)
        with pytest.raises(TypeError):
            unsure(chunk(ordinary(b"a")))
    assert len(through) == 1


@pytest.mark.parametrize(
    ("state", "opens"),
    [({}, True), ({"_gone": True}, False), ({"_head": b"HTTP/1.1 200 OK"}, False), ({"drained": True}, False)],
    ids=["as it should be", "gone", "its head is still here", "it does not read"],
)
def test_it_opens_only_where_a_part_of_the_body_may_be_written(state: dict[str, Any], *, opens: bool) -> None:
    """Not for a client that is gone or does not read, nor before the response's head."""
    connection = SimpleNamespace(drained=state.pop("drained", None))
    line = Request(connection, {}, keep_alive=True, _awaits_continue=False)  # type: ignore[arg-type]
    for name, value in state.items():
        setattr(line, name, value)
    line._passage = way = closed(bytes)

    line.let_through((HEAD, TAIL))

    assert way.open is opens


# ── Through the gateway ───────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def relaying(script: Script) -> AsyncIterator[Running]:
    """Serve a gateway before an engine that plays this to every call."""
    async with scripted(script) as engine, serving(config_for({"base": [engine.url]})) as gateway:
        yield gateway


async def streamed(gateway: Running, **headers: str) -> tuple[bytes, list[bytes], Finished]:
    """Ask for a stream; return its body, its chunks, and the call's record."""
    async with visitor(gateway.port) as guest:
        await guest.send(post(GREEDY, **headers))
        await guest.head()
        parts = await _chunks(guest)
    return b"".join(parts), parts, (await gateway.settled(1))[-1]


async def _chunks(guest: Visitor) -> list[bytes]:
    parts = []
    while part := await guest.chunk():
        parts.append(part)
    return parts


def without_moments(record: Finished) -> dict[str, Any]:
    """Return what a record says, but for times and names."""
    told = {name: getattr(record, name) for name in record.__struct_fields__}
    for name in ("request_id", "time", "duration", "ttft", "overhead", "slot_seconds", "cost_usd", "counterfactual"):
        del told[name]
    for name in ("acceptance", "steps", "step_seconds", "source", "scored", "biased"):
        del told[name]  # by the clock
    return told


WORDS = [delta(f" word{n}") for n in range(40)]
BODY = [ROLE, *WORDS, delta(" Grüße 🎉"), delta('a "quote"'), delta("", finish="stop"), USAGE, DONE]


def among(*pieces: bytes, instead: int = 1) -> list[bytes]:
    """Return writes of which some, in the midst of ordinary events, are these, in place of so many of them."""
    return [*map(chunk, BODY[:10]), *pieces, *map(chunk, BODY[10 + instead :]), END]


def disguised(size: int) -> bytes:
    """Return bytes that look like two chunks of ordinary events where the first digit of their size is missing."""
    second = delta("x" * (size - len(delta(""))))
    return WORDS[9] + b"\r\n" + chunk(second)[:-2]


CUTS: dict[str, list[bytes]] = {
    "each in a write": [*map(chunk, BODY), END],
    "three in a write": [b"".join(map(chunk, BODY[at : at + 3])) for at in range(0, len(BODY), 3)] + [END],
    "two in a chunk": [chunk(b"".join(BODY[at : at + 2])) for at in range(0, len(BODY), 2)] + [END],
    "an event over two chunks": among(chunk(WORDS[9][:30]), chunk(WORDS[9][30:])),
    "a line of an event before the rest": among(chunk(b": a note\n"), chunk(WORDS[9])),
    "a chunk over three writes": among(chunk(WORDS[9])[:1], chunk(WORDS[9])[1:40], chunk(WORDS[9])[40:]),
    "the next size's first digit at the end": among(
        chunk(WORDS[9]) + chunk(WORDS[10])[:1], chunk(WORDS[10])[1:], instead=2
    ),
    "what looks like chunks behind such a digit": among(
        chunk(WORDS[8]) + chunk(disguised(250))[:1], chunk(disguised(250))[1:], instead=2
    ),
    "a chunk within a chunk": among(
        b"%x\r\n" % len(chunk(WORDS[9])), chunk(WORDS[9]), b"\r\n", chunk(b"\n\n"), instead=1
    ),
    "the end with the last": [*map(chunk, BODY[:-1]), chunk(DONE) + END],
}


@pytest.mark.parametrize("writes", CUTS.values(), ids=CUTS)
async def test_the_same_bytes_and_books_as_the_long_way(writes: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """However an engine cuts its stream, the client's bytes and the record are those of a gateway without the shortcut."""
    async with relaying(slowly(*writes)) as gateway:
        short, _, record = await streamed(gateway)
    monkeypatch.setattr(request, "Passage", None)
    async with relaying(slowly(*writes)) as gateway:
        long, _, expected = await streamed(gateway)

    assert short == long == payload(b"".join(writes)).replace(USAGE, b"")
    assert without_moments(record) == without_moments(expected)
    assert (record.completion_tokens, record.outcome) == (6, "ok")


def payload(body: bytes) -> bytes:
    """Return what a chunked body holds."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


async def test_ordinary_events_take_it() -> None:
    """Several chunks that come in one read stay several chunks, which only the shortcut leaves as they are."""
    many = b"".join(map(chunk, WORDS[1:9]))
    async with relaying(slowly(chunk(ROLE), chunk(WORDS[0]), many, chunk(DONE), END)) as gateway:
        _, parts, _ = await streamed(gateway)

    assert parts == [ROLE + WORDS[0], *WORDS[1:9], DONE]


async def test_events_without_usage_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine never tells its usage, tokens are the events, whichever way they went."""
    writes = [*map(chunk, [ROLE, *WORDS, DONE]), END]
    async with relaying(slowly(*writes)) as gateway:
        _, _, record = await streamed(gateway)
    monkeypatch.setattr(request, "Passage", None)
    async with relaying(slowly(*writes)) as gateway:
        _, _, expected = await streamed(gateway)

    assert (record.completion_tokens, record.usage_source) == (40, "events")
    assert (expected.completion_tokens, expected.usage_source) == (40, "events")


async def test_a_client_that_leaves_in_the_midst_pays_what_it_had() -> None:
    """The events that passed by then are on its bill, and the engine's work is stopped."""
    async with relaying([*slowly(*map(chunk, [ROLE, *WORDS])), "silence"]) as gateway, visitor(gateway.port) as guest:
        await guest.send(post(GREEDY))
        await guest.head()
        await guest.until(WORDS[-1])
        guest.leave()
        record = (await gateway.settled(1))[-1]

    assert (record.outcome, record.completion_tokens) == ("client_gone", 40)


@pytest.mark.parametrize("size", [200, 200_000])
async def test_a_slow_reader_gets_all_in_order(size: int) -> None:
    """While the client does not read, nothing overtakes what waits: the body is the engine's, byte for byte."""
    events = [ROLE, *(delta(f"{n} " + "x" * size) for n in range(4_000_000 // size)), DONE]
    async with relaying([SSE_HEAD, *map(chunk, events), END]) as gateway, visitor(gateway.port, limit=1024) as guest:
        await guest.send(post(GREEDY))
        await guest.head()
        await asyncio.sleep(0.3)
        parts = []
        while part := await guest.chunk():
            parts.append(part)
            if len(parts) % 97 == 0:
                await asyncio.sleep(0.001)

    assert b"".join(parts) == b"".join(events)


async def test_events_that_pass_are_no_silence() -> None:
    """An engine that sends nothing but ordinary events for longer than it may be silent is not cut; one that then is, is."""
    steps = [SSE_HEAD, *(step for event in [ROLE, *WORDS] for step in (chunk(event), 0.02)), SILENCE]
    config = {"limits": {"idle_seconds": 0.4}}
    async with scripted(steps) as engine, serving(config_for({"base": [engine.url]}, **config)) as gateway:
        body, _, record = await streamed(gateway)

    assert b"".join([ROLE, *WORDS]) == body[: -len(body.split(WORDS[-1])[1])]
    assert (record.outcome, record.error, record.completion_tokens) == ("stalled", "stream_stalled", 40)
    assert record.duration > 0.8 + 0.4


async def test_a_stream_that_breaks_off_goes_on_behind_what_passed() -> None:
    """The other engine's answer continues after the last event that took the shortcut."""
    whole = _joined([ROLE, *WORDS, delta("", finish="stop"), USAGE, DONE])
    cut = [*slowly(*map(chunk, [ROLE, *WORDS[:30]])), 0.05, RESET]
    async with (
        scripted(cut) as first,
        scripted([SSE_HEAD, whole, END]) as second,
        serving(config_for({"spec": [first.url], "base": [second.url]})) as gateway,
    ):
        body, _, record = await streamed(gateway, x_draftlane_route="speculative")

    texts = b"".join(_texts(body))
    assert texts == b"".join(_texts(b"".join(WORDS)))
    assert body.endswith(DONE)
    assert (record.outcome, record.completion_tokens) == ("ok", 6)
    assert (record.resumed_from, record.pool) == ("spec", "base")


def _joined(events: Iterable[bytes]) -> bytes:
    return b"".join(map(chunk, events))


def _texts(body: bytes) -> list[bytes]:
    return [part.split(b'"', 1)[0] for part in body.split(b'"content":"')[1:]]
