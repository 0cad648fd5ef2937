"""The relay on real sockets: bytes untouched, each ending told apart, settled once, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from fakes import (
    ANSWER,
    CHAT,
    CHAT_EVENTS,
    CLOSE,
    DONE,
    END,
    RESET,
    SILENCE,
    SSE_HEAD,
    STREAM,
    USAGE,
    Answer,
    Script,
    ScriptedEngine,
    Step,
    Visitor,
    chunk,
    delta,
    post,
    refusal,
    reply,
    scripted,
    sse,
    visitor,
)
from harness import Running, config_for, serving, until

from gateway.breaker import Breaker
from gateway.record import Finished

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS: dict[str, Any] = {
    "first_byte_seconds": 0.3,
    "total_seconds": 30.0,
    "idle_seconds": 0.3,
    "client_idle_seconds": 0.3,
    "connect_seconds": 0.5,
}
WHOLE: Script = sse(*CHAT_EVENTS, USAGE, DONE)
KEPT = b"".join([*CHAT_EVENTS, DONE])
BODIES: dict[str, dict[str, Any]] = {"json": CHAT, "sse": STREAM}
both_modes = pytest.mark.parametrize("mode", ["json", "sse"])


@dataclass(slots=True)
class World:
    """A gateway before a scripted engine."""

    engine: ScriptedEngine
    gateway: Running
    calls: int = 0

    async def ask(self, body: bytes | Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str) -> Answer:
        """Send a call on a connection of its own and read the answer, whole or not."""
        async with self.visit(body, path, **headers) as guest:
            return await guest.answer()

    @asynccontextmanager
    async def visit(
        self, body: bytes | Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str
    ) -> AsyncIterator[Visitor]:
        """Send a call and leave the rest to the caller."""
        self.calls += 1
        async with visitor(self.gateway.port) as guest:
            await guest.send(post(body, path, **headers))
            yield guest

    def reset(self, *scripts: Script) -> None:
        """Forget all that other tests did."""
        self.calls = 0
        self.gateway.finished.clear()
        self.engine.seen.clear()
        self.engine.then(*scripts)
        live = self.gateway.gateway.pipeline.live
        live.upstream._budgets.clear()
        for pool in live.pools:
            pool.enabled = True
            for replica in pool.replicas:
                replica.breaker, replica.cool_until = Breaker(), 0.0
                replica.client.drop_idle()

    async def settled(self) -> Finished:
        """Wait until every call so far has been settled; return the last one's record."""
        return (await self.gateway.settled(self.calls))[-1]

    def at_rest(self) -> bool:
        """Whether no lease, no tenant's place and no running call is left."""
        live = self.gateway.gateway.pipeline.live
        places = [use.running for use in live.tenants._uses.values()]
        return not any([*places, self.gateway.gateway.api.running, *(pool.running for pool in live.pools)])


class Gateways:
    """Gateways that the tests of this module share, one for each set of limits; starting one takes longer than a test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._worlds: dict[str, World] = {}

    @asynccontextmanager
    async def relaying(self, *scripts: Script, **limits: Any) -> AsyncIterator[World]:
        """Give a gateway before an engine with these scripts; in the end every call is settled once and nothing is left."""
        world = await self._world({**LIMITS, **limits})
        world.reset(*scripts)
        before = asyncio.all_tasks()
        yield world
        await until(world.at_rest)
        await until(lambda: not leaked(before | set(world.engine.open)))
        assert len(world.gateway.finished) == world.calls

    async def _world(self, limits: dict[str, Any]) -> World:
        if str(limits) not in self._worlds:
            engine = await self._stack.enter_async_context(scripted([reply(ANSWER)]))
            config = config_for({"base": [engine.url]}, limits=limits)
            gateway = await self._stack.enter_async_context(serving(config))
            self._worlds[str(limits)] = World(engine, gateway)
        return self._worlds[str(limits)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateways() -> AsyncIterator[Gateways]:
    """Serve what the tests need, until the last has ended."""
    async with AsyncExitStack() as stack:
        yield Gateways(stack)


def leaked(known: set[asyncio.Task[Any]]) -> list[str]:
    """Return the coroutines of unknown tasks, without those that the gateway's work beside the calls starts now and then."""
    beside = {"Event.wait", "HealthChecks._check", "Scrape._scrape", "Scrape._read"}
    running = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks() - known]
    return [name for name in running if name not in beside]


def told(answer: Answer) -> dict[str, Any]:
    """Return the error event that ends a broken stream; there must be one, at the end, and no end mark."""
    *_, last, nothing = answer.body.split(b"\n\n")
    assert nothing == b""
    assert answer.body.count(b'{"error"') == 1
    assert b"[DONE]" not in answer.body
    assert answer.whole
    found: dict[str, Any] = json.loads(last.rpartition(b"data: ")[2])["error"]
    return found


# Whole answers


async def test_a_whole_reply(gateways: Gateways) -> None:
    """Status, headers and body are the engine's; the gateway's own headers are added."""
    async with gateways.relaying([reply(ANSWER, headers={"x-engine": "1", "server": "uvicorn"})]) as world:
        answer = await world.ask(CHAT)

        assert answer.whole
        assert (answer.status, answer.json) == (200, ANSWER)
        assert [answer.header(name) for name in ("x-engine", "server", "content-type")] == [
            "1",
            "uvicorn",
            "application/json",
        ]
        assert answer.header("x-draftlane-pool") == "base"
        record = await world.settled()
        assert (record.outcome, record.status, record.prompt_tokens, record.completion_tokens) == ("ok", 200, 9, 6)


async def test_a_whole_stream(gateways: Gateways) -> None:
    """Events pass untouched; usage is asked of the engine for the books, and its extra event does not reach the client."""
    async with gateways.relaying(WHOLE) as world:
        answer = await world.ask(STREAM)

        assert answer.whole
        assert answer.body == KEPT
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        assert world.engine.seen[0].json == {**STREAM, "stream_options": {"include_usage": True}}
        record = await world.settled()
        assert (record.outcome, record.usage_source, record.completion_tokens) == ("ok", "engine", 6)


async def test_a_client_that_asks_for_usage_gets_it(gateways: Gateways) -> None:
    """Its body is forwarded byte for byte, and so is the stream."""
    body = json.dumps({**STREAM, "stream_options": {"include_usage": True}}, indent=1).encode()
    async with gateways.relaying(WHOLE) as world:
        answer = await world.ask(body)

        assert world.engine.seen[0].body == body
        assert answer.body == b"".join([*CHAT_EVENTS, USAGE, DONE])
        await world.settled()


async def test_an_event_is_forwarded_as_soon_as_it_arrives(gateways: Gateways) -> None:
    """The client has each event while the engine is still silent about the next."""
    held: Script = [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), 0.05, chunk(CHAT_EVENTS[2]), SILENCE]
    async with gateways.relaying(held, idle_seconds=30.0) as world:
        async with world.visit(STREAM) as guest:
            await guest.head()
            assert await guest.until(CHAT_EVENTS[1]) == b"".join(CHAT_EVENTS[:2])
            assert await guest.until(CHAT_EVENTS[2]) == CHAT_EVENTS[2]
            guest.leave()
        await world.settled()


@pytest.mark.parametrize("script", [sse(*CHAT_EVENTS), [SSE_HEAD + b"".join(map(chunk, CHAT_EVENTS)), 0.01, END]])
async def test_a_missing_end_mark_is_no_failure(gateways: Gateways, script: Script) -> None:
    """A stream that ended well after a finish reason is whole, at once and without an end mark of the gateway's."""
    async with gateways.relaying(script) as world:
        answer = await world.ask(STREAM)

        assert answer.whole
        assert answer.body == b"".join(CHAT_EVENTS)
        assert (await world.settled()).outcome == "ok"


async def test_malformed_events_pass(gateways: Gateways) -> None:
    """The gateway does not judge events: a broken one goes through, and the connection serves the next call."""
    events = [CHAT_EVENTS[0], b"data: {broken\n\n", b"nonsense\n\n", *CHAT_EVENTS[1:], DONE]
    async with gateways.relaying(sse(*events), [reply(ANSWER)]) as world:
        assert (await world.ask(STREAM)).body == b"".join(events)
        assert (await world.ask(CHAT)).json == ANSWER
        await world.settled()

        assert world.engine.seen[0].connection == world.engine.seen[1].connection


@pytest.mark.parametrize(
    ("path", "body", "stream"),
    [
        (
            "/v1/completions",
            {"model": "demo", "prompt": "x", "stream": True},
            b'data: {"choices":[{"text":"a"}]}\n\n' + DONE,
        ),
        (
            "/v1/responses",
            {"model": "demo", "input": "x", "stream": True},
            b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
        ),
        (
            "/v1/messages",
            {"model": "demo", "max_tokens": 5, "messages": CHAT["messages"], "stream": True},
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ),
    ],
)
async def test_each_endpoint_is_asked_for_itself(
    gateways: Gateways, path: str, body: dict[str, Any], stream: bytes
) -> None:
    """The engine is asked at the path that the client chose, and the stream's own end is known."""
    async with gateways.relaying(sse(stream)) as world:
        answer = await world.ask(body, path)

        assert answer.body == stream
        assert world.engine.seen[0].target == path
        record = await world.settled()
        assert (record.outcome, record.endpoint) == ("ok", path.rpartition("/")[2])


async def test_other_paths_pass_through(gateways: Gateways) -> None:
    """What is not scored reaches the engine with its method, query and body, and the reply comes back as it is."""
    scripts: list[Script] = [[reply(b"[1]")], [reply(b"", 204)], [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"]]
    async with gateways.relaying(*scripts) as world:
        answer = await world.ask(b'{"model":"demo","input":"x","a":1.50}', "/v1/embeddings?x=%20y&z")
        assert (answer.status, answer.body) == (200, b"[1]")
        seen = world.engine.seen[0]
        assert (seen.target, seen.body) == ("/v1/embeddings?x=%20y&z", b'{"model":"demo","input":"x","a":1.50}')
        for method in ("DELETE", "HEAD"):
            world.calls += 1
            async with visitor(world.gateway.port) as guest:
                await guest.send(
                    f"{method} /v1/files/1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-test\r\n\r\n".encode()
                )
                answer = await guest.answer(bodiless=True)
            assert answer.status == {"DELETE": 204, "HEAD": 200}[method]
            assert world.engine.seen[-1].method == method
        assert answer.header("content-length") == "9"
        assert (await world.settled()).endpoint == "other"


# Byte equality

SHORT = (
    'data: {"choices":[{"delta":{"content":"世🎉"},"finish_reason":"stop"}]}\n\n'.encode(),
    b'data:{"choices":[],"usage":{"completion_tokens":2}}\n\n',
    DONE,
)
EQUAL: dict[str, list[Step]] = {
    "json": [reply('{"choices":[{"message":{"content":"世🎉"}}],\n "a":1.50}'.encode(), headers={"x-a": "b"})],
    "sse": [SSE_HEAD + b"".join(map(chunk, SHORT)) + END],
    "crlf": [SSE_HEAD + b"".join(chunk(event.replace(b"\n", b"\r\n")) for event in SHORT) + END],
}


@pytest.mark.parametrize("name", EQUAL)
async def test_direct_and_relayed_answers_are_equal_wherever_reads_cut(gateways: Gateways, name: str) -> None:
    """A client before the gateway gets what a client of the engine gets, cut at every byte of the engine's response."""
    (whole,) = EQUAL[name]
    assert isinstance(whole, bytes)
    cuts: list[Script] = [[whole[:at], 0.0, 0.0, 0.0, whole[at:]] for at in range(1, len(whole))]
    body = {**(CHAT if name == "json" else STREAM), "stream_options": {"include_usage": True}}
    async with scripted([whole]) as engine, visitor(engine.port) as guest:
        await guest.send(post(body))
        direct = await guest.answer()
    async with gateways.relaying(*cuts) as world, visitor(world.gateway.port) as guest:
        for _ in cuts:
            await guest.send(post(body))
            relayed = await guest.answer()
            world.calls += 1
            assert (relayed.status, relayed.body, relayed.whole) == (direct.status, direct.body, True)
            own = {name for name, _ in relayed.headers if name.startswith("x-draftlane-")} | {"x-request-id"}
            assert [header for header in relayed.headers if header[0] not in own] == direct.headers
        assert {record.outcome for record in await world.gateway.settled(len(cuts))} == {"ok"}


# Refusals


@both_modes
@pytest.mark.parametrize("status", [400, 404, 422])
async def test_an_engine_s_own_refusal_is_untouched(gateways: Gateways, mode: str, status: int) -> None:
    """Its status, headers and body go to the client as they came."""
    body = b'{ "object" : "error", "message":"n must be 1", "code": %d}\n' % status
    async with gateways.relaying([reply(body, status, {"x-why": "n"})]) as world:
        answer = await world.ask(BODIES[mode])

        assert (answer.status, answer.body, answer.header("x-why"), answer.whole) == (status, body, "n", True)
        record = await world.settled()
        assert (record.outcome, record.status, record.completion_tokens) == ("engine_error", status, 0)


REFUSED: list[tuple[bytes, dict[str, str], int, str | None]] = [
    (b"{", {}, 400, None),
    (b'{"model":"demo"}', {}, 400, "messages"),
    (b'{"model":"demo","messages":[],"x":1}', {}, 400, "messages"),
    (b'{"model":5}', {}, 400, "model"),
    (json.dumps({**CHAT, "model": "gpt-9"}).encode(), {}, 404, "model"),
    (json.dumps(CHAT).encode(), {"authorization": "Bearer wrong"}, 401, None),
    (json.dumps(CHAT).encode(), {"authorization": ""}, 401, None),
    (json.dumps(CHAT).encode(), {"x_draftlane_route": "fastest"}, 400, "x-draftlane-route"),
    (json.dumps(CHAT).encode(), {"content_encoding": "br"}, 400, "content-encoding"),
    (json.dumps(CHAT).encode(), {"content_encoding": "gzip"}, 400, "content-encoding"),
    (b'{"x":"' + b"x" * 3000 + b'"}', {}, 413, None),
]


@pytest.mark.parametrize(("body", "headers", "status", "param"), REFUSED)
async def test_a_refusal_reaches_no_engine(
    gateways: Gateways, body: bytes, headers: dict[str, str], status: int, param: str | None
) -> None:
    """Bad input gets an OpenAI error that names the field, with the request id, and the connection serves on."""
    async with gateways.relaying([reply(ANSWER)], max_body_bytes=2000) as world, world.visit(body, **headers) as guest:
        answer = await guest.answer()
        assert (answer.status, answer.error["param"]) == (status, param)
        assert answer.error["message"]
        assert answer.header("x-request-id")
        assert world.engine.seen == []
        record = await world.settled()
        assert (record.outcome, record.status, record.cost_usd) == ("rejected", status, 0.0)

        world.calls += 1
        await guest.send(post(CHAT))
        assert (await guest.answer()).json == ANSWER


@both_modes
@pytest.mark.parametrize(
    ("fault", "status", "outcome"),
    [
        ([RESET], 502, "upstream_failed"),
        ([b"garbage\r\n\r\n"], 502, "upstream_failed"),
        ([SILENCE], 504, "upstream_timeout"),
    ],
    ids=["reset", "garbage", "silence"],
)
async def test_no_engine_that_answers(gateways: Gateways, mode: str, fault: Script, status: int, outcome: str) -> None:
    """Before the first byte a failure is an error with a status, whatever was asked for."""
    async with gateways.relaying(fault, total_seconds=0.4) as world:
        answer = await world.ask(BODIES[mode])

        assert (answer.status, answer.whole) == (status, True)
        assert answer.error["code"]
        assert answer.header("content-type") == "application/json"
        record = await world.settled()
        assert (record.outcome, record.status, record.cost_usd) == (outcome, status, 0.0)


async def test_no_live_replica(gateways: Gateways) -> None:
    """A model whose engines are all known to be down is refused at once, with when to come back."""
    async with gateways.relaying([reply(ANSWER)]) as world:
        for pool in world.gateway.gateway.pipeline.live.pools:
            pool.enabled = False
        answer = await world.ask(CHAT)

        assert answer.status == 503
        assert answer.header("retry-after")
        assert (await world.settled()).outcome == "unavailable"


# Answers that break


BROKEN: dict[str, Script] = {
    "reset": [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), 0.02, RESET],
    "closed": [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), CLOSE],
    "ended early": sse(*CHAT_EVENTS[:3]),
    "half an event": [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), chunk(CHAT_EVENTS[3][:40]), CLOSE],
    "bad framing": [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), 0.02, b"zz\r\n"],
    "after the finish": [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), chunk(delta("", finish="stop")), 0.02, RESET],
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_off(gateways: Gateways, script: Script) -> None:
    """The client keeps the whole events it has, then gets one error event and no end mark: never a truncated success."""
    async with gateways.relaying(script) as world:
        answer = await world.ask(STREAM)

        assert answer.status == 200
        assert answer.body.startswith(b"".join(CHAT_EVENTS[:3]))
        assert told(answer)["code"] == "stream_truncated"
        record = await world.settled()
        assert (record.outcome, record.error, record.status) == ("truncated", "stream_truncated", 200)
        assert record.usage_source == "events"
        assert record.completion_tokens >= 2
        assert record.cost_usd > 0


async def test_a_stream_that_stalls(gateways: Gateways) -> None:
    """Past the idle limit the stream ends with an error event, and the engine sees that nobody waits."""
    async with gateways.relaying([SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), SILENCE]) as world:
        answer = await world.ask(STREAM)

        assert answer.body.startswith(b"".join(CHAT_EVENTS[:3]))
        assert told(answer)["code"] == "stream_stalled"
        assert "sent nothing for" in told(answer)["message"]  # not: took too long
        assert (await world.settled()).outcome == "stalled"
        await until(lambda: world.engine.seen[0].left)


async def test_a_stream_that_takes_too_long(gateways: Gateways) -> None:
    """A stream that never falls silent is ended by the total limit."""
    steps: list[Step] = [SSE_HEAD]
    for _ in range(100):
        steps += [chunk(delta("a")), 0.02]
    async with gateways.relaying(steps, total_seconds=0.4) as world:
        answer = await world.ask(STREAM)

        assert told(answer)["code"] == "stream_stalled"
        assert (await world.settled()).outcome == "stalled"
        await until(lambda: world.engine.seen[0].left)


async def test_an_event_without_end(gateways: Gateways) -> None:
    """An engine that writes an event over the limit is cut; the client gets the events before it and an error."""
    endless: Script = [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), 0.01, chunk(b"data: " + b"x" * 5000), SILENCE]
    async with gateways.relaying(endless, max_event_bytes=2048) as world:
        answer = await world.ask(STREAM)

        assert answer.body.startswith(b"".join(CHAT_EVENTS[:2]))
        assert told(answer)["code"] == "event_too_large"
        assert (await world.settled()).outcome == "truncated"
        await until(lambda: world.engine.seen[0].left)


async def test_an_engine_s_own_error_event(gateways: Gateways) -> None:
    """What an engine says of its failure is passed on and nothing is added, but the end mark behind it is not."""
    error = b'data: {"error": {"message": "EngineDeadError", "code": 500}}\n\n'
    async with gateways.relaying(sse(*CHAT_EVENTS[:3], error, DONE)) as world:
        answer = await world.ask(STREAM)

        assert answer.body == b"".join(CHAT_EVENTS[:3]) + error
        assert told(answer)["message"] == "EngineDeadError"
        assert (await world.settled()).outcome == "truncated"


TYPED: list[tuple[str, dict[str, Any], bytes, int | None]] = [
    (
        "/v1/responses",
        {"model": "demo", "input": "x"},
        b'event: response.output_text.delta\ndata: {"delta":"a","sequence_number":4}\n\n',
        5,
    ),
    (
        "/v1/messages",
        {"model": "demo", "max_tokens": 5, "messages": CHAT["messages"]},
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n',
        None,
    ),
]


@pytest.mark.parametrize(("path", "body", "first", "number"), TYPED, ids=["responses", "messages"])
async def test_typed_streams_break_in_their_own_words(
    gateways: Gateways, path: str, body: dict[str, Any], first: bytes, number: int | None
) -> None:
    """Clients of typed streams look for an event of the name "error"; responses go on counting."""
    async with gateways.relaying([SSE_HEAD, chunk(first), 0.02, CLOSE]) as world:
        answer = await world.ask({**body, "stream": True}, path)

        assert answer.body.startswith(first + b"event: error\ndata: {")
        event = json.loads(answer.body.rpartition(b"data: ")[2])
        assert (event["type"], event["error"]["code"]) == ("error", "stream_truncated")
        assert event.get("sequence_number") == number
        assert (await world.settled()).outcome == "truncated"


async def test_of_several_choices_one_end_is_not_enough(gateways: Gateways) -> None:
    """With n = 2 a finish reason without an end mark says nothing of the other choice."""
    async with gateways.relaying(sse(*CHAT_EVENTS)) as world:
        answer = await world.ask({**STREAM, "n": 2})

        assert told(answer)["code"] == "stream_truncated"
        await world.settled()


@pytest.mark.parametrize("end", [RESET, CLOSE, SILENCE])
async def test_a_large_reply_that_breaks_off_is_cut(gateways: Gateways, end: Step) -> None:
    """What is too large to be held back has begun, so its client must see that it is not whole."""
    large = reply(b'{"x":"' + b"x" * 60_000 + b'"}')
    async with gateways.relaying([large[:30_000], 0.02, end], buffer_bytes=8192) as world:
        answer = await world.ask(CHAT)

        assert answer.status == 200
        assert not answer.whole
        record = await world.settled()
        assert record.outcome == ("stalled" if end == SILENCE else "truncated")


# Clients that leave or stall


@both_modes
async def test_a_client_that_leaves_before_the_first_byte(gateways: Gateways, mode: str) -> None:
    """The engine is told at once, for streams and others alike; the slot's time is on the client's bill."""
    async with gateways.relaying([SILENCE], first_byte_seconds=30.0) as world:
        async with world.visit(BODIES[mode]) as guest:
            await until(lambda: world.engine.seen)
            await asyncio.sleep(0.02)
            guest.leave()
            await until(lambda: world.engine.seen[0].left, 2.0)
        record = await world.settled()

        assert (record.outcome, record.status) == ("client_gone", 499)
        assert record.slot_seconds > 0


async def test_a_client_that_leaves_after_the_first_byte(gateways: Gateways) -> None:
    """The engine stops generating, and what it has generated is counted."""
    async with gateways.relaying([SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), SILENCE], idle_seconds=30.0) as world:
        async with world.visit(STREAM) as guest:
            await guest.head()
            await guest.until(CHAT_EVENTS[2])
            guest.leave()
            await until(lambda: world.engine.seen[0].left, 2.0)
        record = await world.settled()

        assert (record.outcome, record.status) == ("client_gone", 200)
        assert (record.completion_tokens, record.usage_source) == (2, "events")


@pytest.mark.parametrize("end", ["client", "engine"])
async def test_usage_so_far_is_what_a_cut_stream_used(gateways: Gateways, end: str) -> None:
    """An engine that tells its usage with every event has told it for a stream that either side breaks off."""
    so_far = [
        delta(text, usage={"prompt_tokens": 9, "completion_tokens": 3 * count}) for count, text in enumerate("ab", 1)
    ]
    last: Step = SILENCE if end == "client" else RESET
    async with gateways.relaying([SSE_HEAD, *map(chunk, so_far), 0.05, last], idle_seconds=30.0) as world:
        async with world.visit({**STREAM, "stream_options": {"include_usage": True}}) as guest:
            await guest.head()
            await guest.until(so_far[1])
            if end == "engine":
                await guest.chunk()
            guest.leave()
        record = await world.settled()

        assert record.outcome == ("client_gone" if end == "client" else "truncated")
        assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (9, 6, "engine")


async def test_a_client_that_leaves_after_the_end_mark_was_served(gateways: Gateways) -> None:
    """Clients may close as soon as they read [DONE]; the engine's last frame, still to come, changes nothing."""
    async with gateways.relaying(
        [SSE_HEAD, *map(chunk, [*CHAT_EVENTS, USAGE, DONE]), SILENCE], idle_seconds=30.0
    ) as world:
        async with world.visit(STREAM) as guest:
            await guest.head()
            await guest.until(DONE)
            guest.leave()
        record = await world.settled()

        assert (record.outcome, record.status) == ("ok", 200)
        assert (record.completion_tokens, record.usage_source) == (6, "engine")


async def test_a_client_that_leaves_in_its_own_request(gateways: Gateways) -> None:
    """Half a body reaches no engine and is no error of anybody's."""
    async with gateways.relaying([reply(ANSWER)]) as world:
        world.calls += 1
        async with visitor(world.gateway.port) as guest:
            await guest.send(post(CHAT)[:-10])
            await until(lambda: world.gateway.gateway.api.running)
            guest.leave()
        record = await world.settled()

        assert (record.outcome, record.status) == ("client_gone", 499)
        assert world.engine.seen == []


async def test_a_client_that_stops_reading_is_cut(gateways: Gateways) -> None:
    """The engine is held back at the bound, the client is cut past its idle limit, and the engine is told."""
    flood: list[Step] = [SSE_HEAD, *[chunk(delta("x" * 1000)) * 64] * 512]  # 70 MB, far beyond all buffers
    async with gateways.relaying(flood, buffer_bytes=65536) as world:
        async with world.visit(STREAM) as guest:
            await until(lambda: world.engine.seen and world.engine.seen[0].left, 10.0)
            record = await world.settled()
            await guest.ended()
        assert record.outcome == "client_stalled"
        assert world.engine.seen[0].written < 32 << 20


async def test_a_slow_reader_gets_everything_and_teaches_nothing(gateways: Gateways) -> None:
    """A client that reads again in time loses no byte; what its engine seemed to do meanwhile is not learned from."""
    text = [delta("x" * 1000) for _ in range(64 * 128)]
    events = [*text, delta("", finish="stop"), USAGE, DONE]
    flood: list[Step] = [SSE_HEAD, *(chunk(b"".join(events[at : at + 64])) for at in range(0, len(events), 64)), END]
    async with gateways.relaying(flood, buffer_bytes=65536, client_idle_seconds=30.0, idle_seconds=30.0) as world:
        async with world.visit(STREAM) as guest:
            reply_of = world.gateway.gateway.pipeline.live
            await until(lambda: any(pool.running for pool in reply_of.pools))
            await asyncio.sleep(0.3)
            answer = await guest.answer()
        assert answer.whole
        assert answer.body == b"".join([*text, delta("", finish="stop"), DONE])
        record = await world.settled()

        assert (record.outcome, record.biased) == ("ok", "lagging")


async def test_a_shutdown_cuts_what_still_runs() -> None:
    """A call that outlasts the drain is settled too; its client sees an unfinished response and its engine the abort."""
    async with scripted([SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), SILENCE]) as engine:
        config = config_for({"base": [engine.url]}, limits={**LIMITS, "idle_seconds": 30.0})
        async with serving(config) as gateway:
            guest = Visitor(*await asyncio.open_connection("127.0.0.1", gateway.port))
            await guest.send(post(STREAM))
            await guest.head()
        answer = await guest.reader.read()
        guest.leave()

        assert CHAT_EVENTS[1] in answer
        assert not answer.endswith(END)
        (record,) = gateway.finished
        assert (record.outcome, record.error) == ("internal", "shutdown")
        await until(lambda: engine.seen[0].left)


# Failover, as the client sees it


@both_modes
async def test_the_pool_that_answered_is_reported(mode: str) -> None:
    """After a failover the header and the record name the pool that answered, and the failed attempt costs nothing."""
    good: Script = WHOLE if mode == "sse" else [reply(ANSWER)]
    async with scripted([refusal("oops", 500)]) as bad, scripted(good) as engine:
        config = config_for({"base-a": [bad.url], "base-b": [engine.url]}, limits=LIMITS)
        async with serving(config) as gateway, visitor(gateway.port) as guest:
            await guest.send(post(BODIES[mode]))
            answer = await guest.answer()
            (record,) = await gateway.settled(1)

        assert answer.whole
        assert answer.header("x-draftlane-pool") == record.pool
        assert answer.body == (KEPT if mode == "sse" else json.dumps(ANSWER).encode())
        assert record.slot_seconds < record.duration
        assert (record.pool, record.attempts) in {("base-b", 3), ("base-b", 1)}
