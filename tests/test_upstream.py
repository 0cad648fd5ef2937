"""Opening replies: what is tried again, where, how often, and what the engines see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import (
    ANSWER,
    CHAT_EVENTS,
    CLOSE,
    DONE,
    RESET,
    SILENCE,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    chunk,
    delta,
    refusal,
    reply,
    scripted,
    sse,
)
from harness import config_for, until

from gateway.attempts import BUDGET_FLOOR, BUDGET_SHARE, MAX_ATTEMPTS, Attempt, Outgoing, Stream
from gateway.breaker import FAILURES_TO_OPEN
from gateway.errors import BadGateway, Unavailable, UpstreamTimeout
from gateway.pools import Pools
from gateway.upstream import FIRST_BACKOFF, LATECOMERS, Upstream

JSON: Script = [reply(ANSWER)]
SSE: Script = sse(*CHAT_EVENTS, DONE)
GOOD = {"json": JSON, "sse": SSE}
both_modes = pytest.mark.parametrize("mode", ["json", "sse"])
LIMITS = {"first_byte_seconds": 0.15, "total_seconds": 0.15, "connect_seconds": 0.5, "idle_seconds": 5.0}
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
UNSUPPORTED = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


@dataclass(slots=True)
class Fleet:
    """Pools of scripted engines, and an upstream before them."""

    upstream: Upstream
    pools: Pools
    engines: dict[str, list[ScriptedEngine]]

    def asked(self) -> dict[str, int]:
        """Requests that each pool's engines have seen, together."""
        return {name: sum(len(engine.seen) for engine in engines) for name, engines in self.engines.items()}

    def running(self) -> int:
        """Leases that are out."""
        return sum(pool.running for pool in self.pools)

    async def open(self, mode: str = "json", pools: Sequence[str] | None = None, **changes: Any) -> Stream:
        """Open a chat call's reply from these pools, all of them in order unless told."""
        out: dict[str, Any] = {
            "method": b"POST",
            "target": b"/v1/chat/completions",
            "headers": [(b"x-request-id", b"req-1")],
            "body_for": lambda model: json.dumps({"model": model}).encode(),
            "stream": mode == "sse",
        }
        sent = changes.pop("sent", lambda _: None)
        return await self.upstream.open(pools or list(self.engines), Outgoing(**{**out, **changes}), sent)


@asynccontextmanager
async def fleet(
    engines: Mapping[str, Sequence[Sequence[Script]]],
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    **limits: Any,
) -> AsyncIterator[Fleet]:
    """Serve engines by pool, each with its scripts."""
    async with AsyncExitStack() as stack:
        running = {
            name: [await stack.enter_async_context(scripted(*scripts)) for scripts in replicas]
            for name, replicas in engines.items()
        }
        config = config_for(
            {name: [engine.url for engine in found] for name, found in running.items()},
            pools=pools,
            limits={**LIMITS, **limits},
        )
        state = Pools(config, {})
        try:
            yield Fleet(Upstream(state, config.limits, chance=lambda: 0.0), state, running)
        finally:
            state.close()
            await asyncio.sleep(0)


async def body_of(stream: Stream) -> bytes:
    """Read a reply to its end."""
    parts = []
    while data := await stream.reply.read():
        parts.append(data)
    return b"".join(parts)


async def answered(stream: Stream) -> bool:
    """Whether this is the whole good answer; the lease goes back."""
    body = await body_of(stream)
    stream.close()
    return body in {b"".join([*CHAT_EVENTS, DONE]), json.dumps(ANSWER).encode()}


# The plain way


@both_modes
async def test_the_first_good_answer_is_opened(mode: str) -> None:
    """One request, to the first pool; the lease is out until the stream is closed, and closing twice counts once."""
    async with fleet({"spec": [[GOOD[mode]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)
        assert (stream.pool.name, stream.replica.name, stream.attempts, stream.running) == ("spec", "spec-0", 1, 1)
        assert world.running() == 1
        assert stream.sent_at <= stream.first_byte_at + 0.002
        assert await answered(stream)
        stream.close()

        assert world.asked() == {"spec": 1, "base": 0}
        assert world.running() == 0


async def test_each_pool_gets_its_own_model_name_and_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body carries the pool's served model, and the pool's key goes along, never another's."""
    monkeypatch.setenv("SPEC_KEY", "sk-spec")
    settings = {"spec": {"served_model": "org/m", "key_env": "SPEC_KEY"}}
    async with fleet({"spec": [[[refusal("busy", 500)]]], "base": [[JSON]]}, settings) as world:
        world.pools.apply(config_of(world, settings), {"SPEC_KEY": "sk-spec"})
        (await world.open()).close()
        spec, base = world.engines["spec"][0].seen[0], world.engines["base"][0].seen[0]

        assert (spec.json["model"], spec.header("authorization")) == ("org/m", "Bearer sk-spec")
        assert (base.json["model"], base.header("authorization")) == ("demo", None)


def config_of(world: Fleet, pools: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the configuration of a fleet again."""
    return config_for({name: [engine.url for engine in found] for name, found in world.engines.items()}, pools=pools)


async def test_who_keeps_books_hears_of_each_request() -> None:
    """Every request that goes out is told with its place and number, before its answer is known."""
    heard: list[Attempt] = []
    async with fleet({"spec": [[[RESET]]], "base": [[JSON]]}) as world:
        (await world.open(sent=heard.append)).close()

        assert [(attempt.replica.name, attempt.attempts) for attempt in heard] == [
            ("spec-0", 1),
            ("spec-0", 2),
            ("base-0", 3),
        ]


# The engine's trouble


@both_modes
async def test_a_500_is_tried_once_more(mode: str) -> None:
    """A replica that failed once answers the second request; the client sees nothing of it."""
    async with fleet({"spec": [[[refusal("oops", 500)], GOOD[mode]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)

        assert (stream.pool.name, stream.attempts) == ("spec", 2)
        assert await answered(stream)
        assert world.asked() == {"spec": 2, "base": 0}
        assert world.running() == 0


@both_modes
async def test_another_replica_is_asked_before_the_same_one_again(mode: str) -> None:
    """Where the pool has a second replica, the failed one is left alone."""
    async with fleet({"spec": [[[refusal("oops", 500)]], [GOOD[mode]]]}) as world:
        assert await answered(await world.open(mode))

        assert [len(engine.seen) for engine in world.engines["spec"]] == [1, 1]


@both_modes
async def test_a_persistent_503_goes_to_the_next_pool(mode: str) -> None:
    """An engine that says it is unavailable is not asked again, now or by the next calls, and the other pool answers."""
    async with fleet({"spec": [[[refusal("loading", 503)]]], "base": [[GOOD[mode]]]}) as world:
        for _ in range(5):
            stream = await world.open(mode)
            assert stream.pool.name == "base"
            assert await answered(stream)

        assert world.asked() == {"spec": 1, "base": 5}


@both_modes
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_keeps_requests_away(mode: str, status: int) -> None:
    """An engine that asks for time is left alone for as long as it says, and no longer."""
    busy = reply({"error": {"message": "busy"}}, status, {"retry-after": "7"})
    async with fleet({"spec": [[[busy], GOOD[mode]]], "base": [[GOOD[mode]]]}) as world:
        replica = world.pools["spec"].replicas[0]
        began = asyncio.get_running_loop().time()
        stream = await world.open(mode)
        assert stream.pool.name == "base"
        assert await answered(stream)
        until_then = replica.cool_until - began
        assert 7.0 <= until_then < 9.0
        assert await answered(await world.open(mode))
        assert world.asked() == {"spec": 1, "base": 2}

        replica.cool_until = 0.0
        stream = await world.open(mode)
        assert stream.pool.name == "spec"
        stream.close()


async def test_too_many_requests_says_nothing_of_health() -> None:
    """A 429 never opens the breaker, however often it comes."""
    async with fleet({"spec": [[[refusal("busy", 429)]]]}) as world:
        replica = world.pools["spec"].replicas[0]
        for _ in range(FAILURES_TO_OPEN + 2):
            replica.cool_until = 0.0
            (await world.open()).close()

        assert replica.breaker.state == "closed"


async def test_the_only_engine_s_refusal_is_the_client_s_answer() -> None:
    """Where nothing else can be asked, the engine's own 429 goes to the client with its headers and body."""
    busy = reply({"error": {"message": "busy"}}, 429, {"retry-after": "7", "x-engine": "1"})
    async with fleet({"spec": [[[busy]]]}) as world:
        stream = await world.open()
        assert stream.reply.status == 429
        assert (b"retry-after", b"7") in stream.reply.headers
        assert json.loads(await body_of(stream)) == {"error": {"message": "busy"}}
        stream.close()

        assert world.running() == 0


@both_modes
@pytest.mark.parametrize("fault", [[RESET], [CLOSE], [b"garbage\r\n\r\n"], [b"HTTP/1.1 200 OK\r\ncont", RESET]])
async def test_a_connection_that_breaks_before_the_first_byte(mode: str, fault: Script) -> None:
    """The replica is asked once more, then the next pool answers; the breaker has counted both."""
    async with fleet({"spec": [[fault]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)

        assert (stream.pool.name, stream.attempts) == ("base", 3)
        assert await answered(stream)
        assert world.asked() == {"spec": 2, "base": 1}
        assert repr(world.pools["spec"].replicas[0].breaker) == "<Breaker closed failures=2>"
        assert world.running() == 0


async def test_a_reply_that_breaks_off_is_asked_for_again() -> None:
    """A reply that is not streamed is given out when it is whole, so half of one can be repeated unseen."""
    half: Script = [reply(ANSWER)[:-20], RESET]
    async with fleet({"spec": [[half, JSON]]}) as world:
        stream = await world.open()

        assert stream.attempts == 2
        assert await answered(stream)


async def test_a_reply_that_is_no_json_is_asked_for_again() -> None:
    """An answer that ends in the middle of its own text, though its frame is whole, is no success."""
    async with fleet({"spec": [[[reply(json.dumps(ANSWER).encode()[:-20])], JSON]]}) as world:
        stream = await world.open()

        assert stream.attempts == 2
        assert await answered(stream)


async def test_a_dead_engine_is_left_alone() -> None:
    """Once its breaker is open, calls go straight to the other pool."""
    async with fleet({"spec": [[[RESET]]], "base": [[JSON]]}) as world:
        for _ in range(6):
            assert await answered(await world.open())

        assert world.asked() == {"spec": FAILURES_TO_OPEN, "base": 6}
        assert world.pools["spec"].replicas[0].breaker.state == "open"


# Silence


@both_modes
async def test_a_silent_engine_is_not_asked_again_but_failed_over(mode: str) -> None:
    """Silence is met once per call; the engine sees that nobody waits any longer."""
    async with fleet({"spec": [[[SILENCE]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)

        assert (stream.pool.name, stream.attempts) == ("base", 2)
        assert await answered(stream)
        assert world.asked() == {"spec": 1, "base": 1}
        await until(lambda: world.engines["spec"][0].seen[0].left)


@pytest.mark.parametrize(("tokens", "asked"), [(10.0, 1), (1000.0, 1), (None, 0)])
async def test_a_whole_answer_is_waited_for_as_long_as_its_tokens_take(tokens: float | None, asked: int) -> None:
    """An engine that is silent for longer is failed over long before the call's time is over; an unknown answer has it all."""
    pools = {"spec": {"step_seconds": 0.0001}, "base": {"step_seconds": 0.0001}}
    slow: Script = [0.6, reply(ANSWER)]
    async with fleet({"spec": [[slow]], "base": [[GOOD["json"]]]}, pools, total_seconds=60.0) as world:
        began = asyncio.get_running_loop().time()
        stream = await world.open("json", most_tokens=tokens)
        took = asyncio.get_running_loop().time() - began

        assert await answered(stream)
        assert world.asked() == {"spec": 1, "base": asked}
        assert took >= 0.15 + (0.0 if tokens is None else 0.0002 * tokens)


async def test_the_last_engine_has_all_the_time_that_is_left() -> None:
    """Nobody is given up in favour of nobody: pools that are down do not shorten an answer's time."""
    pools = {"spec": {"step_seconds": 0.0001}, "base": {"step_seconds": 0.0001}}
    slow: Script = [0.4, reply(ANSWER)]
    async with fleet({"spec": [[slow]], "base": [[[SILENCE]]]}, pools, total_seconds=60.0) as world:
        for _ in range(FAILURES_TO_OPEN):
            world.pools["base"].replicas[0].breaker.failure(asyncio.get_running_loop().time(), 0.0)
        assert await answered(await world.open("json", most_tokens=10.0))
        assert world.asked() == {"spec": 1, "base": 0}


async def test_a_slow_first_token_fails_over() -> None:
    """Headers are no first byte: a stream that sends nothing after them is given up within the limit."""
    async with fleet({"spec": [[[SSE_HEAD, SILENCE]]], "base": [[SSE]]}) as world:
        stream = await world.open("sse")

        assert stream.pool.name == "base"
        assert await answered(stream)
        await until(lambda: world.engines["spec"][0].seen[0].left)


@both_modes
async def test_silence_everywhere_is_a_timeout(mode: str) -> None:
    """Each replica is asked once, and the client is told that the engine was silent."""
    async with fleet({"spec": [[[SILENCE]]], "base": [[[SILENCE]]]}) as world:
        with pytest.raises(UpstreamTimeout, match=r"0\.15 s") as caught:
            await world.open(mode)

        assert caught.value.status == 504
        assert world.asked() == {"spec": 1, "base": 1}
        assert world.running() == 0


async def test_one_silent_replica_does_not_stall_the_others() -> None:
    """Calls at once to a pool with a silent replica all get an answer from the other one."""
    async with fleet({"spec": [[[SILENCE]], [JSON]]}) as world:
        streams = await asyncio.gather(*(world.open() for _ in range(6)))

        assert [await answered(stream) for stream in streams] == [True] * 6
        assert len(world.engines["spec"][0].seen) <= 6


# The client's own mistakes, and what only one kind of pool can serve


@both_modes
@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 422, 501])
async def test_a_client_s_mistake_passes_at_once(mode: str, status: int) -> None:
    """The engine's own refusal is the answer: nothing is tried again and nothing counts against the engine."""
    async with fleet({"spec": [[[refusal("temperature must be positive", status)]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)
        assert (stream.reply.status, stream.attempts) == (status, 1)
        assert json.loads(await body_of(stream))["error"]["message"] == "temperature must be positive"
        stream.close()

        assert world.asked() == {"spec": 1, "base": 0}
        assert repr(world.pools["spec"].replicas[0].breaker) == "<Breaker closed failures=0>"


@both_modes
async def test_what_speculation_does_not_support_goes_to_baseline_once(mode: str) -> None:
    """A speculative engine that refuses a parameter is no verdict on the request: baseline is asked, one time."""
    async with fleet({"spec": [[[refusal(UNSUPPORTED)]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)

        assert (stream.pool.name, stream.attempts) == ("base", 2)
        assert await answered(stream)
        assert world.asked() == {"spec": 1, "base": 1}


async def test_what_baseline_refuses_too_is_the_answer() -> None:
    """The second refusal ends it."""
    async with fleet({"spec": [[[refusal(UNSUPPORTED)]]], "base": [[[refusal("min_p is unsupported")]]]}) as world:
        stream = await world.open()

        assert (stream.reply.status, stream.pool.name) == (400, "base")
        assert b"min_p is unsupported" in await body_of(stream)
        stream.close()
        assert world.asked() == {"spec": 1, "base": 1}
        assert world.running() == 0


@both_modes
@pytest.mark.parametrize(
    ("lengths", "asked"),
    [
        ({"spec": 4096, "base": 8192}, {"spec": 1, "base": 1}),
        ({"spec": 4096, "base": None}, {"spec": 1, "base": 1}),
        ({"spec": 4096, "base": 4096}, {"spec": 1, "base": 0}),
        ({"spec": 4096, "base": 2048}, {"spec": 1, "base": 0}),
        ({"spec": None, "base": None}, {"spec": 1, "base": 0}),
        ({"spec": None, "base": 8192}, {"spec": 1, "base": 0}),
    ],
)
async def test_too_long_a_context_goes_to_a_longer_pool_only(
    mode: str, lengths: dict[str, int | None], asked: dict[str, int]
) -> None:
    """The same length would refuse again; where no pool is known to be longer, the engine's refusal is the answer."""
    settings = {name: {"max_model_len": length} for name, length in lengths.items() if length is not None}
    async with fleet({"spec": [[[refusal(TOO_LONG)]]], "base": [[GOOD[mode]]]}, settings) as world:
        stream = await world.open(mode)
        if asked["base"]:
            assert await answered(stream)
        else:
            assert stream.reply.status == 400
            assert TOO_LONG in (await body_of(stream)).decode()
            stream.close()

        assert world.asked() == asked
        assert world.running() == 0


@both_modes
async def test_a_filtered_prompt_is_never_tried_elsewhere(mode: str) -> None:
    """A content filter's refusal is final."""
    filtered = refusal("The prompt was filtered", code="content_filter")
    async with fleet({"spec": [[[filtered]]], "base": [[GOOD[mode]]]}) as world:
        stream = await world.open(mode)
        assert stream.reply.status == 400
        stream.close()

        assert world.asked() == {"spec": 1, "base": 0}


async def test_a_wrong_pool_credential_goes_to_the_next_pool() -> None:
    """A 401 of an engine is the operator's mistake; its other replicas share the key, another pool does not."""
    wrong = [refusal("Unauthorized", 401)]
    async with fleet({"spec": [[wrong], [wrong]], "base": [[JSON]]}) as world:
        assert await answered(await world.open())

        assert world.asked() == {"spec": 1, "base": 1}


async def test_an_error_as_a_stream_s_first_event_fails_over() -> None:
    """An engine that dies after its headers says so in a 200's first event, before the client has seen anything."""
    dying = sse(
        b'data: {"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}}\n\n', DONE
    )
    async with fleet({"spec": [[dying]], "base": [[SSE]]}) as world:
        stream = await world.open("sse")

        assert stream.pool.name == "base"
        assert await answered(stream)
        assert world.asked() == {"spec": 2, "base": 1}


async def test_an_earlier_refusal_is_better_than_none() -> None:
    """When the last pool breaks, the client gets the refusal that an engine did give, whole."""
    async with fleet({"spec": [[[refusal("oops", 500)]]], "base": [[[RESET]]]}) as world:
        stream = await world.open()

        assert (stream.reply.status, stream.pool.name) == (500, "spec")
        assert b"oops" in await body_of(stream)
        stream.close()
        assert world.running() == 0


# Bounds


async def test_a_call_makes_no_more_than_its_share_of_requests() -> None:
    """However many replicas and pools there are, a call that fails everywhere asks MAX_ATTEMPTS times, none thrice."""
    async with fleet({"spec": [[[RESET]]] * 3, "base": [[[RESET]]] * 3}) as world:
        with pytest.raises(BadGateway, match="connection") as caught:
            await world.open()

        assert caught.value.status == 502
        assert sum(world.asked().values()) == MAX_ATTEMPTS
        assert world.running() == 0


@pytest.mark.parametrize("fault", [[RESET], [CLOSE], [refusal("oops", 500)]])
async def test_an_engine_is_asked_twice_at_most(fault: Script) -> None:
    """An idle connection that proves stale counts like any other request."""
    async with fleet({"base": [[JSON, fault]]}) as world:
        assert await answered(await world.open())
        with_error = await asyncio.gather(world.open(), return_exceptions=True)

        assert world.asked() == {"base": 3}
        for found in with_error:
            if isinstance(found, Stream):
                found.close()
        assert world.running() == 0


@pytest.mark.parametrize("fault", [[RESET], [CLOSE]])
async def test_a_stale_connection_after_a_failure_is_no_third_request(fault: Script) -> None:
    """When the second request finds the connection of the first one stale, the engine is not asked a third time."""
    async with fleet({"base": [[[refusal("oops", 500)], fault, JSON]]}) as world:
        stream = await world.open()  # the engine's own refusal, as nothing did better
        status = stream.reply.status
        stream.close()

        assert (status, world.asked()) == (500, {"base": 2})


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_stale_connection_is_replaced_at_once(idempotent: bool) -> None:  # noqa: FBT001
    """A server that had closed the idle connection never saw the request, so even one that may not repeat is sent again."""
    async with fleet({"base": [[JSON, [CLOSE], JSON]]}) as world:
        assert await answered(await world.open())
        stream = await world.open(idempotent=idempotent)

        assert stream.attempts == 2
        assert await answered(stream)
        assert repr(world.pools["base"].replicas[0].breaker) == "<Breaker closed failures=0>"


@pytest.mark.parametrize("chance", [0.0, 1.0])
async def test_a_second_request_waits_a_moment_of_chance(chance: float) -> None:
    """Half to one and a half times the first pause pass before an engine is asked once more, so that many do not at once."""
    async with fleet({"base": [[[refusal("oops", 500)], JSON]]}) as world:
        went: list[float] = []
        world.upstream = Upstream(world.pools, world.upstream._limits, chance=lambda: chance)
        stream = await world.open(sent=lambda attempt: went.append(attempt.sent_at))

        assert await answered(stream)
        assert went[1] - went[0] >= FIRST_BACKOFF * (0.5 + chance)


async def test_those_who_wait_for_a_pause_to_end_do_not_come_all_at_once() -> None:
    """A pause that an engine asks for is kept, and up to a tenth of it more, by chance."""
    busy = reply({"error": {"message": "busy"}}, 429, {"retry-after": "0.4"})
    async with fleet({"base": [[[busy], JSON]]}) as world:
        went: list[float] = []
        world.upstream = Upstream(world.pools, world.upstream._limits, chance=lambda: 1.0)
        stream = await world.open(sent=lambda attempt: went.append(attempt.sent_at))

        assert await answered(stream)
        assert went[1] - went[0] >= 0.4 * (1 + LATECOMERS / 2)  # what it took to read the refusal is part of the pause


async def test_retries_have_a_budget() -> None:
    """An engine that fails every first request is not asked twice as often as it has calls."""
    calls = 25
    alternating = [[refusal("oops", 500)], JSON] * calls
    async with fleet({"base": [alternating]}) as world:
        statuses = []
        for _ in range(calls):
            stream = await world.open()
            statuses.append(stream.reply.status)
            stream.close()

        retries = world.asked()["base"] - calls
        assert BUDGET_FLOOR <= retries <= BUDGET_FLOOR + BUDGET_SHARE * calls
        assert 500 in statuses
        assert statuses.count(200) >= retries


async def test_a_large_reply_is_given_out_before_it_is_whole() -> None:
    """The bound of a stream's buffer holds for replies too: beyond it, they are relayed as they come."""
    large = b'{"x":"' + b"x" * 50_000 + b'"}'
    async with fleet({"base": [[[reply(large)[:30_000], 0.05, reply(large)[30_000:]]]]}, buffer_bytes=8192) as world:
        stream = await world.open()

        assert not stream.reply.complete
        assert await body_of(stream) == large
        stream.close()


async def test_nothing_to_ask_is_unavailable() -> None:
    """Replicas that are down or cooling, and pools that a reload has removed, are not asked."""
    async with fleet({"spec": [[JSON]], "base": [[JSON]]}) as world:
        world.pools["spec"].replicas[0].healthy = False
        assert (await world.open(pools=["gone", "spec", "base"])).pool.name == "base"
        world.pools["base"].replicas[0].cool_until = asyncio.get_running_loop().time() + 60
        with pytest.raises(Unavailable) as caught:
            await world.open(pools=["gone", "spec", "base"])

        assert (caught.value.status, caught.value.retry_after) == (503, 1.0)
        assert world.asked() == {"spec": 0, "base": 1}


async def test_what_may_not_repeat_is_not_repeated_on_a_replica() -> None:
    """A request of another path that broke may have been carried out, so its replica is not asked again."""
    async with fleet({"base": [[[RESET], JSON]]}) as world:
        with pytest.raises(BadGateway):
            await world.open(idempotent=False)

        assert world.asked() == {"base": 1}


# Giving up


@pytest.mark.parametrize(
    "script",
    [
        [SILENCE],
        [b"HTTP/1.1 200 OK\r\ncontent-le", SILENCE],
        [SSE_HEAD, SILENCE],
        [b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"half an err"), SILENCE],
        [SSE_HEAD + chunk(b'data: {"error":{"message":"EngineDeadError"}}\n\n'), SILENCE],
    ],
    ids=["before the head", "in the head", "before the body", "in an error's body", "behind an error's event"],
)
async def test_giving_up_frees_the_replica(script: Script) -> None:
    """A caller that is cancelled leaves no lease and no connection, wherever the reply stood."""
    async with fleet({"base": [[script]]}, first_byte_seconds=30.0) as world:
        opening = asyncio.create_task(world.open("sse"))
        await until(
            lambda: world.engines["base"][0].seen and world.engines["base"][0].seen[0].written == len_of(script)
        )
        await asyncio.sleep(0.02)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

        assert world.running() == 0
        await until(lambda: world.engines["base"][0].seen[0].left)
        assert "open=0" in repr(world.pools["base"].replicas[0].client)


def len_of(script: Script) -> int:
    """Return how many bytes a script writes."""
    return sum(len(step) for step in script if isinstance(step, bytes))


async def test_an_error_without_end_is_silence() -> None:
    """An error whose body stops coming is given up within the idle limit, and something better is tried."""
    endless: Script = [b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"half"), SILENCE]
    async with fleet({"spec": [[endless]], "base": [[SSE]]}, first_byte_seconds=5.0, idle_seconds=0.1) as world:
        stream = await world.open("sse")

        assert (stream.pool.name, world.asked()) == ("base", {"spec": 1, "base": 1})
        assert await answered(stream)
        await until(lambda: world.engines["spec"][0].seen[0].left)


async def test_closing_a_stream_cuts_the_engine_s_work() -> None:
    """Who closes an unfinished stream frees the replica and tells the engine."""
    async with fleet({"base": [[[SSE_HEAD, chunk(delta("a")), SILENCE]]]}) as world:
        stream = await world.open("sse")
        stream.close()

        assert world.running() == 0
        await until(lambda: world.engines["base"][0].seen[0].left)
