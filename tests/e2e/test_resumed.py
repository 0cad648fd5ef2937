"""A stream that breaks off goes on from another engine by default: what its client has, and who is billed for what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fakes import (
    CHAT_EVENTS,
    CLOSE,
    DONE,
    END,
    ROLE,
    SILENCE,
    SSE_HEAD,
    STREAM,
    USAGE,
    Script,
    ScriptedEngine,
    chunk,
    delta,
    event,
    scripted,
    sse,
)
from harness import ADMIN_KEY, Running, config_for, serving

from e2e.stack import COUNTING, KEYED, TLS, chat, stack
from gateway.engine.faults import Fault
from gateway.ledger.totals import Totals, entry_of

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {**STREAM, "temperature": 0}
BROKEN: Script = [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), CLOSE]
WHOLE: Script = sse(*CHAT_EVENTS, USAGE, DONE)
TEXT = "Grüße an 世界 🎉"


def dying(failure: bytes) -> Script:
    """Return a stream that ends as vLLM ends one: with an event that tells the failure, and the end mark all the same."""
    return [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), 0.05, chunk(failure), chunk(DONE), END]


def text_of(body: str) -> str:
    """Return the text that a client that reads data lines alone has got."""
    lines = [line[6:] for line in body.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
    return "".join(
        choice["delta"].get("content") or "" for line in lines for choice in json.loads(line).get("choices", [])
    )


@asynccontextmanager
async def two(
    first: Script, second: Script, **limits: float
) -> AsyncIterator[tuple[Running, ScriptedEngine, ScriptedEngine]]:
    """Serve a gateway before two scripted engines, of which the first is asked first."""
    async with scripted(first) as one, scripted(second) as other:
        config = config_for(
            {"spec": [one.url], "base": [other.url]}, limits={"idle_seconds": 0.4, "first_byte_seconds": 0.4, **limits}
        )
        async with serving(config) as gateway:
            yield gateway, one, other


async def ask(gateway: Running, body: dict[str, Any]) -> httpx.Response:
    """Make one call, which goes to the speculative pool first."""
    headers = {**KEYED, "x-draftlane-route": "speculative"}
    async with httpx.AsyncClient(timeout=10, verify=TLS) as client:
        return await client.post(gateway.url + CHAT, json=body, headers=headers)


async def test_the_pool_that_answered_is_told_and_billed_and_no_other() -> None:
    """Of a resumed stream receipt, log line, ledger and stream name the pool that made the answer, which alone is paid."""
    async with stack() as it:
        whole = await it.client.post(CHAT, json=chat(stream=True))
        right = text_of(whole.text)
        await it.at_rest()
        it.forget()
        it.speculative.engine.faults.set(Fault(kind="cut", after_events=4), asyncio.get_running_loop().time())
        answer = await it.client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
        (settled,) = await it.gateway.settled(1)
        receipt = await it.client.get(
            f"/draftlane/receipts/{settled.request_id}", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        await it.at_rest()
        (made,) = it.baseline.engine.record
        page = it.gateway.gateway.render_metrics("")[0].decode()

    assert text_of(answer.text) == right
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["x-draftlane-pool"] == "spec"  # it was sent before anybody could know
    assert answer.text.count(": x-draftlane-pool: base\n\n") == 1
    assert (settled.pool, settled.resumed_from, settled.outcome, settled.attempts) == ("base", "spec", "ok", 2)
    assert (receipt.json()["pool"], receipt.json()["resumed_from"]) == ("base", "spec")
    usage = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    assert settled.completion_tokens == usage["completion_tokens"] == made.tokens
    assert 0 < settled.slot_seconds < settled.duration
    totals = Totals()
    totals.add(entry_of(settled))
    (row,) = totals.rows()
    assert (row.pool, row.measures["completion_tokens"]) == ("base", made.tokens)
    assert 'draftlane_resumed_streams_total{pool="base",from="spec"} 1' in page


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.7}, {"temperature": None}, {"n": 2}, {"logprobs": True}, {"tools": [{"type": "function"}]}],
    ids=["sampled", "engine's default", "several", "logprobs", "tools"],
)
async def test_an_answer_that_another_engine_need_not_give_is_not_gone_on_with(fields: dict[str, Any]) -> None:
    """Sampled answers, several at once, log probabilities and calls of tools break off cleanly; nobody else is asked."""
    async with two(BROKEN, WHOLE) as (gateway, _, other):
        answer = await ask(gateway, {name: value for name, value in {**ASKED, **fields}.items() if value is not None})
        (settled,) = await gateway.settled(1)

    assert '"stream_truncated"' in answer.text
    assert "[DONE]" not in answer.text
    assert (settled.pool, settled.outcome, settled.resumed_from, settled.completion_tokens > 0) == (
        "spec",
        "truncated",
        "",
        True,
    )
    assert not other.seen


@pytest.mark.parametrize(
    "second",
    [
        sse(ROLE, delta("Grüße"), delta(" von"), delta(" mir", finish="stop"), USAGE, DONE),
        sse(ROLE, delta("Grüße", finish="stop"), USAGE, DONE),
        [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), SILENCE],
        [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), CLOSE],
    ],
    ids=["another answer", "a shorter one", "silence", "broken too"],
)
async def test_where_no_engine_says_the_same_the_first_one_is_billed(second: Script) -> None:
    """The client has the broken answer and one error in time, and pays for what it has, not for the vain attempt."""
    async with two([SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), 0.1, chunk(CHAT_EVENTS[2]), CLOSE], second) as (
        gateway,
        _,
        other,
    ):
        answer = await ask(gateway, ASKED)
        (settled,) = await gateway.settled(1)

    assert text_of(answer.text) == "Grüße an"
    assert answer.text.count('data: {"error"') == 1
    assert "[DONE]" not in answer.text
    assert "x-draftlane-pool" not in answer.text
    assert len(other.seen) == 1
    assert (settled.pool, settled.outcome, settled.resumed_from) == ("spec", "truncated", "")
    assert settled.usage_source == "events"
    assert 0.1 < settled.slot_seconds < 0.3


async def test_an_error_of_the_engine_in_its_stream_is_made_good() -> None:
    """An engine that dies tells so in its stream; the client hears of it only if nobody can go on."""
    died = event(error={"message": "EngineCore died", "type": "InternalServerError", "code": 500})
    async with two(dying(died), WHOLE) as (gateway, _, _):
        answer = await ask(gateway, ASKED)
    async with two(dying(died), [CLOSE]) as (gateway, _, _):
        broken = await ask(gateway, ASKED)
        (settled,) = await gateway.settled(1)

    assert text_of(answer.text) == TEXT
    assert "EngineCore" not in answer.text
    assert text_of(broken.text) == "Grüße an"
    assert broken.text.endswith(died.decode())
    assert (settled.outcome, settled.error) == ("truncated", "stream_error")


async def test_an_error_that_blames_the_request_is_passed_on() -> None:
    """What another engine would refuse too is not asked of it."""
    refused = event(error={"message": "too long", "type": "BadRequestError", "code": 400})
    async with two(dying(refused), WHOLE) as (gateway, _, other):
        answer = await ask(gateway, ASKED)

    assert answer.text.endswith(refused.decode())
    assert not other.seen


async def test_an_answer_that_took_longer_than_silence_may_last_is_not_asked_for_again() -> None:
    """The client would wait as long again without a word."""
    slow: Script = [
        SSE_HEAD,
        *map(chunk, CHAT_EVENTS[:2]),
        0.3,
        chunk(CHAT_EVENTS[2]),
        0.3,
        chunk(CHAT_EVENTS[3]),
        CLOSE,
    ]
    async with two(slow, WHOLE) as (gateway, _, other):
        answer = await ask(gateway, ASKED)

    assert '"stream_truncated"' in answer.text
    assert not other.seen


async def test_it_can_be_switched_off() -> None:
    """With routing.resume_streams = false a stream that breaks off ends with an error."""
    async with stack(routing={"resume_streams": False}) as it:
        it.speculative.engine.faults.set(Fault(kind="cut", after_events=4), asyncio.get_running_loop().time())
        answer = await it.client.post(CHAT, json=chat(COUNTING, stream=True))
        await it.at_rest()

    assert '"stream_truncated"' in answer.text
    assert len(it.baseline.engine.record) == 0
