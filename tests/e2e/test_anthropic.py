"""Anthropic's own Python client on /v1/messages, with nothing changed but `base_url`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic.types import MessageParam, ToolParam
from harness import KEY

from e2e.stack import COUNTING, STORY, Stack, stack
from gateway.engine.faults import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT: list[MessageParam] = [{"role": "user", "content": COUNTING}]
TALE: list[MessageParam] = [{"role": "user", "content": STORY}]
ASK: list[MessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
SIXTY = ", ".join(map(str, range(1, 61)))
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}  # the client has no such parameter any more


@pytest_asyncio.fixture(loop_scope="module")
async def client(quiet: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The asynchronous client, which does not try again by itself."""
    async with anthropic.AsyncAnthropic(base_url=quiet.gateway.url, api_key=KEY, max_retries=0) as found:
        yield found


def text_of(message: Any) -> str:
    """Return the text blocks of a message, joined."""
    return "".join(block.text for block in message.content if block.type == "text")


def uses_in(message: Any) -> list[tuple[str, Any]]:
    """Return the tools that a message uses, with their input."""
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


async def test_create(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """A message is complete, goes to the pool that suits it, and the client's x-api-key stays at the gateway."""
    message = await client.messages.create(model="demo", max_tokens=400, messages=COUNT, **GREEDY)
    (settled,) = await quiet.gateway.settled(1)
    (seen,) = quiet.received

    assert (text_of(message), message.stop_reason) == (SIXTY, "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (
        settled.prompt_tokens,
        settled.completion_tokens,
    )
    assert (settled.endpoint, settled.pool, settled.reason) == ("messages", "spec", "predictable")
    assert "x-api-key" not in seen.headers
    assert KEY not in repr(seen.request.headers)
    assert "anthropic-version" in seen.headers


async def test_create_in_a_thread(quiet: Stack) -> None:
    """The synchronous client gets the same."""

    def working() -> str:
        with anthropic.Anthropic(base_url=quiet.gateway.url, api_key=KEY, max_retries=0) as client:
            return text_of(client.messages.create(model="gpt-4o-mini", max_tokens=400, messages=COUNT, **GREEDY))

    assert await asyncio.to_thread(working) == SIXTY


async def test_stream(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """The stream's events come in Anthropic's order and the client's helper assembles them to the whole message."""
    async with client.messages.stream(model="demo", max_tokens=400, messages=COUNT, **GREEDY) as stream:
        names = [event.type async for event in stream]
        final = await stream.get_final_message()
    (settled,) = await quiet.gateway.settled(1)

    assert (text_of(final), final.stop_reason) == (SIXTY, "end_turn")
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (final.usage.input_tokens, final.usage.output_tokens) == (settled.prompt_tokens, settled.completion_tokens)
    assert (settled.outcome, settled.usage_source) == ("ok", "engine")


async def test_a_system_prompt_counts(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """`system` reaches the engine and makes the call one of a template."""
    for system in ("You count aloud.", [{"type": "text", "text": "You count aloud."}]):
        await client.messages.create(model="demo", max_tokens=5, system=system, messages=COUNT)  # type: ignore[arg-type]
    settled = await quiet.gateway.settled(2)

    assert [seen.json()["system"] for seen in quiet.received] == [
        "You count aloud.",
        [{"type": "text", "text": "You count aloud."}],
    ]
    assert len({call.template for call in settled}) == 1
    assert settled[0].template


@pytest.mark.parametrize(("choice", "pool"), [("auto", None), ("any", "base"), ("tool", "base")])
async def test_tools(quiet: Stack, client: anthropic.AsyncAnthropic, choice: str, pool: str | None) -> None:
    """A tool's use comes back whole and in pieces alike; forcing it needs guided decoding, so baseline."""
    wanted: Any = {"type": choice, **({"name": "get_weather"} if choice == "tool" else {})}
    ask: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 200,
        "messages": ASK,
        "tools": [WEATHER],
        "tool_choice": wanted,
        **GREEDY,
    }
    whole = await client.messages.create(**ask)
    async with client.messages.stream(**ask) as stream:
        final = await stream.get_final_message()
    settled = await quiet.gateway.settled(2)

    for message in (whole, final):
        assert message.stop_reason in {"tool_use", "end_turn"}
        assert uses_in(message) == [("get_weather", {"city": "Paris"})]
    if pool is not None:
        assert [(pool, "constraint")] * 2 == [(call.pool, call.reason) for call in settled]


async def test_a_tools_result_is_answered(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """A conversation with a tool's use and its result is understood as such."""
    first = await client.messages.create(model="demo", max_tokens=200, messages=ASK, tools=[WEATHER], **GREEDY)
    (use,) = [block for block in first.content if block.type == "tool_use"]
    said: list[MessageParam] = [
        *ASK,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}]},
    ]
    second = await client.messages.create(model="demo", max_tokens=20, messages=said, tools=[WEATHER], **GREEDY)

    assert text_of(second)
    assert len(quiet.received) == 2


async def test_count_tokens(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """Counting tokens is the engine's business and generates nothing."""
    counted = await client.messages.count_tokens(model="gpt-4o-mini", messages=COUNT)
    message = await client.messages.create(model="demo", max_tokens=1, messages=COUNT)

    assert counted.input_tokens == message.usage.input_tokens
    assert [call.endpoint for call in quiet.gateway.finished if call.endpoint != "other"] == ["messages"]


async def test_limits_and_stops(client: anthropic.AsyncAnthropic) -> None:
    """max_tokens and stop_sequences end a message for their own reasons."""
    short = await client.messages.create(model="demo", max_tokens=5, messages=COUNT, **GREEDY)
    stopped = await client.messages.create(
        model="demo", max_tokens=400, stop_sequences=["12"], messages=COUNT, **GREEDY
    )

    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 5)
    assert ", ".join(map(str, range(1, 12))) in text_of(stopped)
    assert "12" not in text_of(stopped)


async def test_error_classes(quiet: Stack, client: anthropic.AsyncAnthropic) -> None:
    """Refusals become the client's own exceptions, in the error shape that it knows."""
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        await client.with_options(api_key="sk-wrong").messages.create(model="demo", max_tokens=5, messages=COUNT)
    with pytest.raises(anthropic.NotFoundError, match="gpt-99"):
        await client.messages.create(model="gpt-99", max_tokens=5, messages=COUNT)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        await client.messages.create(model="demo", max_tokens=5, messages=[])
    assert quiet.received == []
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        await client.messages.create(model="demo", max_tokens=10_000_000, messages=COUNT, stream=True)

    body: Any = stranger.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


async def test_a_stream_that_breaks_off_raises_in_the_loop() -> None:
    """The client's loop over a stream raises after the last good event; what came is on the bill by its events."""
    async with stack() as it, anthropic.AsyncAnthropic(base_url=it.gateway.url, api_key=KEY, max_retries=0) as client:
        for one in it.engines:
            one.engine.faults.set(Fault(kind="cut", after_events=20), asyncio.get_running_loop().time())
        words = []
        stream = await client.messages.create(model="demo", max_tokens=400, messages=TALE, stream=True, **GREEDY)
        with pytest.raises(anthropic.APIStatusError, match="broke off"):  # noqa: PT012 - where it raises is the point
            async for event in stream:
                words.append(event.type)  # noqa: PERF401 - what came before the error counts
        (settled,) = await it.gateway.settled(1)

    assert words.count("content_block_delta") > 10
    assert (settled.outcome, settled.usage_source) == ("truncated", "events")
    assert settled.completion_tokens >= words.count("content_block_delta")
