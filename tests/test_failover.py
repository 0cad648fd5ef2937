"""Failing over before the first token, waiting where that is sooner, and telling the failure that matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest
from fakes import CHAT_EVENTS, DONE, ROLE, SILENCE, SSE_HEAD, chunk, refusal, reply, scripted, sse
from harness import KEY, config_for, serving

from gateway.app import Gateway
from gateway.routing.guards import Guards, Window

HEADERS = {"authorization": f"Bearer {KEY}"}
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Count."}], "temperature": 0}
ANSWER = reply({"id": "c", "choices": [{"index": 0, "message": {"content": "1"}, "finish_reason": "stop"}]})
BUSY = {"error": {"message": "busy", "type": "x", "param": None, "code": 429}}


async def ask(url: str, **fields: Any) -> httpx.Response:
    """Ask the gateway once."""
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(f"{url}/v1/chat/completions", json={**CHAT, **fields}, headers=HEADERS)


async def test_a_role_is_no_token() -> None:
    """An engine that says who speaks and then nothing is failed over at the first-token limit; the client sees one role."""
    async with (
        scripted([SSE_HEAD, chunk(b": ping\n\n"), chunk(ROLE), SILENCE]) as first,
        scripted(sse(*CHAT_EVENTS, DONE)) as second,
    ):
        config = config_for(
            {"spec": [first.url], "plain": [second.url]}, limits={"first_byte_seconds": 0.3, "idle_seconds": 5.0}
        )
        async with serving(config) as gateway:
            answer = await ask(gateway.url, stream=True)

    assert answer.content == b"".join((*CHAT_EVENTS, DONE))
    assert answer.headers["x-draftlane-pool"] == "plain"
    assert len(first.seen) == 1


async def test_an_error_behind_the_role_is_failed_over() -> None:
    """An engine that dies between the role and the first token has not answered yet."""
    died = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
    async with (
        scripted(sse(ROLE, died, DONE)) as first,
        scripted(sse(*CHAT_EVENTS, DONE)) as second,
        serving(config_for({"spec": [first.url], "plain": [second.url]})) as gateway,
    ):
        answer = await ask(gateway.url, stream=True)

    assert answer.content == b"".join((*CHAT_EVENTS, DONE))


async def test_the_only_pool_s_pause_is_waited_for() -> None:
    """With nowhere else to go, a short Retry-After is kept and the call then answered by the same engine."""
    async with (
        scripted([reply(BUSY, 429, {"retry-after": "0.2"})], [ANSWER]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
    ):
        answer = await ask(gateway.url)

    assert answer.status_code == 200
    assert len(engine.seen) == 2


async def test_a_long_pause_is_the_client_s_to_keep() -> None:
    """A Retry-After beyond the limit is handed on, header and all, and the engine is left alone."""
    async with (
        scripted([reply(BUSY, 429, {"retry-after": "17"})]) as engine,
        serving(config_for({"plain": [engine.url]}, limits={"retry_after_seconds": 5})) as gateway,
    ):
        answer = await ask(gateway.url)

    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "17", BUSY)
    assert len(engine.seen) == 1


async def test_a_quicker_pool_is_not_kept_waiting_for() -> None:
    """A pause that is longer than the other pool would take sends the call there."""
    pools = {"spec": {"step_seconds": 0.05}, "plain": {"step_seconds": 0.0501}}
    async with scripted([reply(BUSY, 429, {"retry-after": "4"})]) as first, scripted([ANSWER]) as second:
        config = config_for(
            {"spec": [first.url], "plain": [second.url]}, pools=pools, limits={"retry_after_seconds": 30}
        )
        async with serving(config) as gateway:
            answer = await ask(gateway.url, max_tokens=20)

    assert answer.status_code == 200
    assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_a_refused_prefill_does_not_hide_why_the_first_engine_failed() -> None:
    """When the second pool cannot take the request's shape, the client is told of the first one's failure."""
    unable = refusal("This model does not support assistant message prefill.")
    own = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Once"}]
    down = reply({"error": {"message": "down", "type": "x", "param": None, "code": 503}}, 503)
    async with (
        scripted([down]) as first,
        scripted([unable]) as second,
        serving(config_for({"spec": [first.url], "plain": [second.url]})) as gateway,
    ):
        answer = await ask(gateway.url, messages=own)

    assert answer.status_code == 503
    assert len(second.seen) == 1


async def test_half_a_json_answer_is_not_waited_for_till_the_end() -> None:
    """A JSON answer that begins and stalls is asked for elsewhere after the idle limit, long before the total one."""
    half = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"id"'
    async with scripted([half, SILENCE]) as first, scripted([ANSWER]) as second:
        config = config_for(
            {"spec": [first.url], "plain": [second.url]}, limits={"idle_seconds": 0.3, "total_seconds": 60}
        )
        async with serving(config) as gateway:
            answer = await ask(gateway.url)

    assert answer.status_code == 200
    assert answer.headers["x-draftlane-pool"] == "plain"


@pytest.mark.parametrize(("stream", "end"), [(True, b"data: [DONE]"), (False, b'"finish_reason": "stop"')])
async def test_the_books_have_a_whole_answer_before_its_client_has(*, stream: bool, end: bytes) -> None:
    """The end of an answer, streamed or not, is sent when the call is booked: kill -9 then loses nothing."""
    happened: list[str] = []
    body = json.dumps({**CHAT, "stream": stream}).encode()

    async def receive() -> dict[str, Any]:
        if "asked" in happened:
            await asyncio.Event().wait()
        happened.append("asked")
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        if end in message.get("body", b""):
            happened.append("told")

    async with scripted(sse(*CHAT_EVENTS, DONE) if stream else [ANSWER]) as engine:
        gateway = Gateway(config_for({"plain": [engine.url]}))
        gateway.api.add_sink(lambda _: happened.append("booked"))
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        await gateway.api(scope, receive, send)
        gateway.pipeline.live.pools.close()

    assert happened == ["asked", "booked", "told"]


def test_a_guard_on_dead_replicas_ends_with_their_return() -> None:
    """A pool that was out for want of a live replica serves again at the next look, long before its window ends."""
    guards = Guards()
    dead = guards.window("spec", Window(live_replicas=0))
    still = guards.moment("spec", live_replicas=0, queued=0, slots=1)
    back = guards.moment("spec", live_replicas=1, queued=0, slots=4)
    jammed = guards.moment("spec", live_replicas=1, queued=17, slots=4)
    emptier = guards.moment("spec", live_replicas=1, queued=5, slots=4)
    free = guards.moment("spec", live_replicas=1, queued=4, slots=4)

    assert [found.guard for found in (dead, still, back, jammed, emptier, free)] == [
        "replicas",
        "replicas",
        None,
        "queue",
        "queue",
        None,
    ]
