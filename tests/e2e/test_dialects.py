"""The four endpoints as vLLM speaks them: what each stream shows of its steps, and how each tells its own failure."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fakes import DONE, ROLE, STREAM, delta, scripted, sse
from harness import config_for, serving

from e2e.stack import KEYED, TLS, chat, stack

CHAT = "/v1/chat/completions"
COUNT = "Count from 1 to 20."
COUNTING: dict[str, dict[str, Any]] = {
    CHAT: chat(COUNT, max_tokens=90),
    "/v1/completions": {"model": "demo", "prompt": COUNT, "max_tokens": 90, "temperature": 0},
    "/v1/responses": {"model": "demo", "input": COUNT, "temperature": 0},
    "/v1/messages": chat(COUNT, max_tokens=90),
}


@pytest.mark.parametrize("path", COUNTING)
async def test_the_baseline_reads_one_token_per_step_on_every_endpoint(path: str) -> None:
    """The control of every estimate of acceptance: counted by events, an engine without a draft shows exactly 1."""
    async with stack(engines={"per_request_metrics": False}) as it:
        body = {**COUNTING[path], "stream": True}
        await it.client.post(path, json=body, headers={"x-draftlane-route": "baseline"})
        (settled,) = await it.gateway.settled(1)

    assert (settled.outcome, settled.source, settled.biased, settled.acceptance) == ("ok", "events", "", 1.0)


@pytest.mark.parametrize("path", COUNTING)
async def test_the_engine_is_asked_for_no_more_events_than_the_client_asked_for(path: str) -> None:
    """Usage wished for by the gateway alone is added to the request only where the client cannot see it come back."""
    async with stack() as it:
        wish = {"stream_options": {"continuous_usage_stats": True}} if "completions" in path else {}
        answer = await it.client.post(path, json={**COUNTING[path], **wish, "stream": True})
        (seen,) = it.received
        (settled,) = await it.gateway.settled(1)

    if "completions" in path:
        assert seen.json()["stream_options"] == {"include_usage": True, "continuous_usage_stats": False}
        assert '"usage":{' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert "stream_options" not in seen.json()
    assert settled.usage_source == "engine"


STARTED = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}\n\n'
)
DELTA = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"one"}}\n\n'
)
OWN_FAILURES: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    CHAT: (
        (ROLE, delta("one")),
        b'data: {"error": {"message": "died", "type": "InternalServerError", "code": 500}}\n\n',
    ),
    "/v1/messages": (
        (STARTED, DELTA),
        b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"died"}}\n\n',
    ),
    "/v1/responses": (
        (b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"one"}\n\n',),
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"message":"died"}}}\n\n',
    ),
}


@pytest.mark.parametrize("path", OWN_FAILURES)
async def test_an_engines_own_error_in_a_stream_is_the_only_one_and_the_end(path: str) -> None:
    """VLLM tells a failure by an event and, in chat, still says [DONE]: the event passes as it came, the end mark does not."""
    words, told = OWN_FAILURES[path]
    body = {**STREAM, "input": "hi", "max_tokens": 9}
    async with scripted(sse(*words, told, DONE)) as failing, serving(config_for({"base": [failing.url]})) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, headers=KEYED, verify=TLS) as client:
            answer = await client.post(path, json=body)
        (settled,) = await gateway.settled(1)

    assert answer.content == b"".join(words) + told
    assert (settled.outcome, settled.error, settled.usage_source) == ("truncated", "stream_error", "events")
    assert settled.completion_tokens == 1
