"""Engines that fail in every way the embedded one can: a complete answer or a clean, bounded error, never half a success."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from harness import Running, config_for, serving

from e2e.stack import KEYED, SPEED, TLS, Stack, chat, stack
from gateway import engine
from gateway.attempts import ATTEMPTS_PER_REPLICA, MAX_ATTEMPTS
from gateway.engine import EngineSettings
from gateway.engine.faults import NAMED, Fault

CHAT = "/v1/chat/completions"
# No silence may hold a call for longer than these allow; a sound answer takes a twentieth of a second.
LIMITS = {"first_byte_seconds": 0.5, "idle_seconds": 0.5, "total_seconds": 1.0}
MARKS = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and what a client must see: `whole`, `error`, or either where the words of the fault allow both."""

    fault: Fault
    json_first: str  # the fault on the pool that is tried first, the other one healthy
    sse_first: str
    json_both: str
    sse_both: str

    @property
    def name(self) -> str:
        """The fault in words."""
        options = {name: getattr(self.fault, name) for name in ("count", "seconds", "retry_after", "after_events")}
        return " ".join(
            [self.fault.kind, *(f"{name} {value:g}" for name, value in options.items() if value is not None)]
        )


def before(**fault: Any) -> Case:
    """A fault that shows before the first token: the other pool answers in its place."""
    return Case(Fault(**fault), "whole", "whole", "error", "error")


def during(**fault: Any) -> Case:
    """A fault in the middle: a JSON answer is asked for again, a stream that has begun goes on from the other engine."""
    return Case(Fault(**fault), "whole", "whole", "error", "error")


SUDDEN = [
    before(kind="429"),
    before(kind="429", retry_after=1),
    before(kind="500"),
    before(kind="502"),
    before(kind="503"),
    before(kind="503", retry_after=1),
    before(kind="401"),
    before(kind="reset"),
    before(kind="context_length"),
    Case(Fault(kind="content_filter"), "error", "error", "error", "error"),
    Case(Fault(kind="404"), "error", "error", "error", "error"),
    Case(Fault(kind="422"), "error", "error", "error", "error"),
    before(kind="cut"),  # behind the event that tells the role
    during(kind="cut", after_events=4),
    during(kind="reset", after_events=4),
    Case(Fault(kind="slow", seconds=0.01), "whole", "whole", "whole", "whole"),
    Case(Fault(kind="no_done"), "whole", "whole", "whole", "whole"),
    Case(Fault(kind="500", count=1), "whole", "whole", "whole", "whole"),
    Case(Fault(kind="reset", count=1), "whole", "whole", "whole", "whole"),
    Case(Fault(kind="prefill"), "whole", "whole", "whole", "whole"),
]
LASTING = [
    before(kind="silent"),
    before(kind="slow", seconds=30),
    before(kind="stall"),  # behind the event that tells the role
    during(kind="stall", after_events=4),
]


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the JSON data of a stream's events, without the end mark."""
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_of(answer: httpx.Response) -> tuple[str, str]:
    """Return what a client of chat makes of an answer: ("whole", its text) or ("error", the message)."""
    if answer.status_code >= 400:
        return "error", answer.json()["error"]["message"]
    if not answer.headers["content-type"].startswith("text/event-stream"):
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] in {"stop", "length"}
        return "whole", choice["message"]["content"]
    events = events_of(answer.text)
    errors = [event["error"] for event in events if "error" in event]
    if errors:
        assert ([errors[-1]], False) == (
            [event.get("error") for event in events if "error" in event],
            "[DONE]" in answer.text,
        )
        assert answer.text.endswith("}\n\n")
        return "error", errors[0]["message"]
    finished = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert finished[-1] in {"stop", "length"}
    return "whole", "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@asynccontextmanager
async def all_at_once(
    cases: list[Case], place: str, limits: dict[str, float]
) -> AsyncIterator[tuple[Running, list[tuple[engine.Running, engine.Running]]]]:
    """Serve each case as a model of its own on a pair of engines, of which the first, or both, show its fault."""
    now = asyncio.get_running_loop().time()
    async with AsyncExitStack() as opened:
        pairs: list[tuple[engine.Running, engine.Running]] = []
        urls: dict[str, list[str]] = {}
        pools: dict[str, dict[str, Any]] = {}
        for index, case in enumerate(cases):
            first = await opened.enter_async_context(engine.serve(EngineSettings(kind="speculative", speed=SPEED)))
            second = await opened.enter_async_context(engine.serve(EngineSettings(kind="baseline", speed=SPEED)))
            pairs.append((first, second))
            for one in (first, second) if place == "both" else (first,):
                one.engine.faults.set(case.fault, now)
            urls |= {f"spec-{index}": [first.url], f"base-{index}": [second.url]}
            served = {"model": f"case-{index}", "served_model": "demo"}
            pools |= {f"spec-{index}": {**served, "max_model_len": 4096}, f"base-{index}": served}
        models = [{"name": f"case-{index}"} for index in range(len(cases))]
        config = config_for(urls, pools=pools, model=models, limits=limits)
        yield await opened.enter_async_context(serving(config)), pairs


async def check(cases: list[Case], mode: str, place: str, limits: dict[str, float]) -> None:
    """Let every case happen; each client gets the very answer of a sound engine or one error, as the case says."""
    body = chat(stream=mode == "sse", max_tokens=30)
    async with (
        all_at_once(cases, place, limits) as (gateway, pairs),
        engine.serve(EngineSettings(speed=SPEED)) as sound,
        httpx.AsyncClient(headers=KEYED, timeout=20, verify=TLS) as client,
    ):
        right = text_of(await client.post(sound.url + CHAT, json=body))
        calls = [client.post(gateway.url + CHAT, json={**body, "model": f"case-{i}"}) for i in range(len(cases))]
        answers = [text_of(answer) for answer in await asyncio.gather(*calls)]
        settled = {call.model: call for call in await gateway.settled(len(cases))}

    wanted = {case.name: getattr(case, f"{mode}_{place}") for case in cases}
    assert wanted == {case.name: kind for case, (kind, _) in zip(cases, answers, strict=True)}
    assert {right} >= {answer for answer in answers if answer[0] == "whole"}
    for index, (case, pair) in enumerate(zip(cases, pairs, strict=True)):
        call, asked = settled[f"case-{index}"], [len(one.engine.record) for one in pair]
        assert (wanted[case.name] == "whole") == (call.outcome == "ok"), case.name
        assert max(asked) <= ATTEMPTS_PER_REPLICA, case.name
        assert sum(asked) <= MAX_ATTEMPTS, case.name
        assert [one.engine.batch.running for one in pair] == [0, 0], case.name


def test_every_fault_of_the_engine_has_its_case() -> None:
    """A fault that the engine learns to inject is one that the gateway is tried with; two have tests of their own below."""
    own = {"malformed", "flap"}

    assert {case.fault.kind for case in [*SUDDEN, *LASTING] if not case.fault.kind.isdigit()} == NAMED - own


@pytest.mark.parametrize("place", ["first", "both"])
@pytest.mark.parametrize("mode", ["json", "sse"])
async def test_a_fault_never_passes_for_a_success(mode: str, place: str) -> None:
    """Whatever fails, on the first pool or on both, the client gets a sound engine's answer or one error."""
    await check(SUDDEN, mode, place, {})


async def test_a_silence_never_lasts_and_never_passes_for_a_success() -> None:
    """An engine that is silent from the start or in the middle holds a call no longer than the limits allow."""
    async with asyncio.TaskGroup() as group:
        for mode in ("json", "sse"):
            for place in ("first", "both"):
                group.create_task(check(LASTING, mode, place, LIMITS))


async def fail(it: Stack, fault: Fault, *, both: bool = True) -> None:
    """Put a fault in force on both engines, or on that of the pool alone that a counting prompt goes to first."""
    now = asyncio.get_running_loop().time()
    for one in it.engines if both else (it.speculative,):
        one.engine.faults.set(fault, now)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_malformed_answer_is_an_error_of_the_client_library_or_of_the_gateway(*, stream: bool) -> None:
    """Half a JSON document is asked for again and then refused; a broken event in a stream passes as it came."""
    async with stack(limits=LIMITS) as it:
        await fail(it, Fault(kind="malformed"))
        answer = await it.client.post(CHAT, json=chat(stream=stream))
        await it.at_rest()

    if stream:
        with pytest.raises(ValueError, match="Expecting value"):
            events_of(answer.text)
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("kind", ["cut", "reset", "stall", "no_done"])
@pytest.mark.parametrize("path", MARKS)
async def test_typed_streams_end_in_a_typed_error(path: str, kind: str) -> None:
    """A stream of responses or messages that breaks off ends with one `error` event and without its end mark."""
    body = {"model": "demo", "temperature": 0, "stream": True}
    body |= {"input": "Count to 60."} if path == "/v1/responses" else {"max_tokens": 60, "messages": chat()["messages"]}
    async with stack(limits=LIMITS) as it:
        await fail(it, Fault(kind=kind, after_events=None if kind == "no_done" else 6))
        answer = await it.client.post(path, json=body)
        await it.at_rest()
        (settled,) = await it.gateway.settled(1)

    names = [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
    assert names[-1:] == ["error"]
    assert (names.count("error"), names.count(MARKS[path])) == (1, 0)
    last = events_of(answer.text)[-1]
    assert ("error", settled.error) == (last["type"], last["error"]["code"])
    if path == "/v1/responses":
        assert last["message"] == last["error"]["message"]
        numbers = [event["sequence_number"] for event in events_of(answer.text)]
        assert list(range(len(numbers))) == numbers
    assert (settled.outcome == "stalled") == (kind == "stall")


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_an_engines_own_4xx_passes_untouched(status: int) -> None:
    """What the engine says about the client's request reaches the client byte for byte, and no other engine is asked."""
    async with stack() as it:
        await fail(it, Fault(kind=str(status)))
        relayed = await it.client.post(CHAT, json=chat())
        async with httpx.AsyncClient(base_url=it.speculative.url) as direct:
            own = await direct.post(CHAT, json=chat())
        await it.at_rest()

    assert (status, own.content) == (relayed.status_code, relayed.content)
    assert [call.outcome for call in it.gateway.finished] == ["engine_error"]
    assert len(it.baseline.engine.record) == 0


async def test_a_json_answer_does_not_wait_for_a_silent_engine_until_its_time_is_over() -> None:
    """Of an answer that comes whole the engine is given up once its tokens should have come twice, and not asked again."""
    async with stack(limits={"first_byte_seconds": 0.3, "total_seconds": 3600}) as it:
        await fail(it, Fault(kind="silent"), both=False)
        answer = await it.client.post(CHAT, json=chat())
        (settled,) = await it.gateway.settled(1)
        await it.at_rest()

    assert (answer.status_code, answer.headers["x-draftlane-pool"]) == (200, "base")
    assert (settled.outcome, settled.attempts) == ("ok", 2)
    assert len(it.speculative.engine.record) == 1


async def test_a_rate_limited_pool_tells_when_to_come_back() -> None:
    """When every engine says 429, the client gets the engine's own words and its Retry-After."""
    async with stack() as it:
        await fail(it, Fault(kind="429", retry_after=7))
        answer = await it.client.post(CHAT, json=chat())

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert "Injected" in answer.json()["error"]["message"]


async def test_an_engine_that_says_when_to_come_back_is_left_alone_until_then() -> None:
    """After a 503 with Retry-After calls go to the other pool without asking the tired one again."""
    async with stack() as it:
        await fail(it, Fault(kind="503", retry_after=5), both=False)
        answers = [await it.client.post(CHAT, json=chat()) for _ in range(4)]

    assert {"base"} == {answer.headers["x-draftlane-pool"] for answer in answers}
    assert len(it.speculative.engine.record) == 1


async def test_a_dead_engine_is_left_out_and_found_again() -> None:
    """Resets open the breaker, so that later calls do not pay for them; when the engine is well again it gets calls again."""
    async with stack() as it:
        await fail(it, Fault(kind="reset"), both=False)
        for _ in range(12):
            assert (await it.client.post(CHAT, json=chat())).status_code == 200
        assert len(it.speculative.engine.record) < 12
        it.speculative.engine.faults.clear()
        replica = it.gateway.gateway.pipeline.live.pools["spec"].replicas[0]
        assert replica.state(time.monotonic()) == "open"

        async with asyncio.timeout(20):  # the breaker's wait, and the guard's next look
            while (await it.client.post(CHAT, json=chat())).headers["x-draftlane-pool"] != "spec":
                await asyncio.sleep(0.05)
        assert replica.state(time.monotonic()) == "live"


async def test_a_flapping_engine_costs_no_call() -> None:
    """While one engine goes down and up every few moments, each call gets its answer."""
    async with stack() as it:
        await fail(it, Fault(kind="flap", seconds=0.05), both=False)
        for _ in range(30):
            answer = await it.client.post(CHAT, json=chat(max_tokens=20))
            assert answer.status_code == 200
            await asyncio.sleep(0.01)
        await it.at_rest()

    assert {call.outcome for call in it.gateway.finished} == {"ok"}
    assert len(it.speculative.engine.record) > 0


async def test_when_nobody_listens_the_client_is_told_at_once() -> None:
    """Engines that are gone are a 502, and a 503 with Retry-After once the gateway has given up on them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with serving(config_for({"base": [url]})) as gateway, httpx.AsyncClient(headers=KEYED) as client:
        answers = [await client.post(gateway.url + CHAT, json=chat()) for _ in range(6)]

    assert {502, 503} >= {answer.status_code for answer in answers}
    assert (answers[-1].status_code, answers[-1].json()["error"]["code"]) == (503, "no_replica")
    assert int(answers[-1].headers["retry-after"]) >= 1


async def test_a_model_whose_pools_are_switched_off_is_a_503() -> None:
    """Pools that the operator has switched off are not asked."""
    async with stack(pools={"spec": {"disabled": True}, "base": {"disabled": True}}) as it:
        answer = await it.client.post(CHAT, json=chat())

    assert (answer.status_code, answer.json()["error"]["code"], it.received) == (503, "no_replica", [])
