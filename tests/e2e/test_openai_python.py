"""OpenAI's own Python client, synchronous and asynchronous, with nothing changed but `base_url`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import openai
import pytest
import pytest_asyncio
from harness import KEY
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from e2e.stack import COUNTING, STORY, Stack, stack
from gateway.config import key_digest
from gateway.engine.faults import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

T = TypeVar("T")
COUNT: list[ChatCompletionMessageParam] = [{"role": "user", "content": COUNTING}]
TALE: list[ChatCompletionMessageParam] = [{"role": "user", "content": STORY}]
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
SIXTY = ", ".join(map(str, range(1, 61)))
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {what} of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name, what in (("get_weather", "weather"), ("get_time", "time"))
]
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}


@pytest_asyncio.fixture(loop_scope="module")
async def client(quiet: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client, which does not try again by itself."""
    async with openai.AsyncOpenAI(base_url=quiet.url, api_key=KEY, max_retries=0) as found:
        yield found


async def in_thread(it: Stack, work: Callable[[openai.OpenAI], T]) -> T:
    """Let the synchronous client work in a thread, while this loop serves it."""

    def working() -> T:
        with openai.OpenAI(base_url=it.url, api_key=KEY, max_retries=0) as client:
            return work(client)

    return await asyncio.to_thread(working)


async def test_chat(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """A chat completion is complete, with usage, and goes to the pool that suits it."""
    answer = await client.chat.completions.create(model="demo", messages=COUNT, temperature=0)
    (settled,) = await quiet.gateway.settled(1)

    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (SIXTY, "stop")
    assert answer.usage is not None
    assert (settled.prompt_tokens, settled.completion_tokens) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    assert (settled.pool, settled.reason) == ("spec", "predictable")


async def test_chat_in_a_thread(quiet: Stack) -> None:
    """The synchronous client gets the same answer, for an alias of the model too."""
    answer = await in_thread(
        quiet, lambda client: client.chat.completions.create(model="gpt-4o-mini", messages=COUNT, temperature=0)
    )

    assert answer.choices[0].message.content == SIXTY
    assert [seen.json()["model"] for seen in quiet.received] == ["demo"]


async def test_stream(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """A stream has the role first, text in pieces, one reason for its end and no usage that nobody asked for."""
    stream = await client.chat.completions.create(model="demo", messages=COUNT, temperature=0, stream=True)
    chunks = [chunk async for chunk in stream]
    (settled,) = await quiet.gateway.settled(1)

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SIXTY
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert {None} == {chunk.usage for chunk in chunks}
    assert (settled.usage_source, settled.completion_tokens > 60) == ("engine", True)


async def test_stream_with_usage(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """Who asks for usage gets it in one last chunk without choices, as the engine counted it."""
    stream = await client.chat.completions.create(
        model="demo", messages=COUNT, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    (settled,) = await quiet.gateway.settled(1)

    assert chunks[-1].choices == []
    assert [chunks[-1]] == [chunk for chunk in chunks if chunk.usage]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == settled.completion_tokens


async def test_stream_in_a_thread(quiet: Stack) -> None:
    """The synchronous client streams, and may stop in the middle: the engine stops too."""

    def first_words(client: openai.OpenAI) -> str:
        with client.chat.completions.create(
            model="demo", messages=TALE, temperature=0, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
        ) as stream:
            return "".join(chunk.choices[0].delta.content or "" for chunk, _ in zip(stream, range(10), strict=False))

    assert await in_thread(quiet, first_words)
    await quiet.at_rest()
    (settled,) = await quiet.gateway.settled(1)
    assert (settled.outcome, quiet.received[0].finished) == ("client_gone", False)


async def test_the_stream_helper_assembles_the_answer(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """The client's own accumulator, which is strict about chunks, arrives at the whole completion."""
    async with client.chat.completions.stream(model="demo", messages=COUNT, temperature=0) as stream:
        final = await stream.get_final_completion()

    assert final.choices[0].message.content == SIXTY
    assert [call.pool for call in await quiet.gateway.settled(1)] == ["spec"]


@pytest.mark.parametrize(
    ("choice", "name", "pool"),
    [("auto", "get_weather", "spec"), ("required", "get_weather", "base"), (TIME, "get_time", "base")],
    ids=["auto", "required", "named"],
)
async def test_tools(quiet: Stack, client: openai.AsyncOpenAI, choice: Any, name: str, pool: str) -> None:
    """A call of a tool comes back whole and in pieces alike; forcing one needs guided decoding, so baseline."""
    ask: dict[str, Any] = {"model": "demo", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    whole = await client.chat.completions.create(**ask)
    pieces = [chunk.choices[0].delta async for chunk in await client.chat.completions.create(**ask, stream=True)]
    settled = await quiet.gateway.settled(2)

    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (name, {"city": "Paris"}) == (call.function.name, json.loads(call.function.arguments))
    parts = [part.function for piece in pieces for part in piece.tool_calls or () if part.function]
    assert [name] == [part.name for part in parts if part.name]
    assert json.loads("".join(part.arguments or "" for part in parts)) == {"city": "Paris"}
    if pool == "base":
        assert [(one.pool, one.reason) for one in settled] == [("base", "constraint")] * 2


async def test_a_tools_result_is_answered(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """A conversation with a call and its result is understood as such."""
    first = await client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS, temperature=0)
    (call,) = first.choices[0].message.tool_calls or []
    said: list[Any] = [*ASK, first.choices[0].message.model_dump(exclude_none=True)]
    said.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
    second = await client.chat.completions.create(
        model="demo", messages=said, tools=TOOLS, temperature=0, max_tokens=20
    )

    assert second.choices[0].message.content
    assert not second.choices[0].message.tool_calls
    assert len(quiet.received) == 2


async def test_logprobs(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """Log probabilities come as asked, in chat and in completions."""
    chat = await client.chat.completions.create(
        model="demo", messages=COUNT, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0
    )
    text = await client.completions.create(model="demo", prompt="Count to 9.", max_tokens=3, logprobs=2, temperature=0)

    assert chat.choices[0].logprobs is not None
    assert [len(token.top_logprobs) for token in chat.choices[0].logprobs.content or ()] == [2, 2, 2]
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.token_logprobs or ()) == 3
    assert len(quiet.received) == 2


async def test_several_choices(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """`n` choices come whole and interleaved, each to its end; they teach nothing about acceptance."""
    whole = await client.chat.completions.create(model="demo", messages=COUNT, n=3, max_tokens=20)
    stream = await client.chat.completions.create(model="demo", messages=COUNT, n=3, max_tokens=20, stream=True)
    chunks = [chunk async for chunk in stream]

    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    ended = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert {0, 1, 2} == set(ended)
    assert [call.outcome for call in await quiet.gateway.settled(2)] == ["ok", "ok"]
    assert {"several", ""} >= {call.biased for call in quiet.gateway.finished}


async def test_completions(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """Text completions come whole and in pieces, for one prompt and for several."""
    ask: dict[str, Any] = {"model": "demo", "prompt": COUNTING, "temperature": 0, "max_tokens": 200}
    whole = await client.completions.create(**ask)
    pieces = [chunk.choices[0].text async for chunk in await client.completions.create(**ask, stream=True)]
    both = await client.completions.create(**{**ask, "prompt": [COUNTING, "Count to 9."], "max_tokens": 5})

    assert SIXTY in whole.choices[0].text
    assert "".join(pieces) == whole.choices[0].text
    assert len(both.choices) == 2
    assert [call.endpoint for call in await quiet.gateway.settled(3)] == ["completions"] * 3


async def test_responses(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """A response comes whole and as typed events that the client's own helper assembles to the same."""
    ask: dict[str, Any] = {"model": "demo", "input": COUNTING, "temperature": 0, "instructions": "Digits only."}
    whole = await client.responses.create(**ask)
    events = [event async for event in await client.responses.create(**ask, stream=True)]
    async with client.responses.stream(**ask) as stream:
        final = await stream.get_final_response()

    assert (whole.output_text, whole.status) == (SIXTY, "completed")
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert list(range(len(events))) == [event.sequence_number for event in events]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SIXTY
    assert final.output_text == SIXTY
    settled = await quiet.gateway.settled(3)
    assert [(call.endpoint, call.outcome, call.usage_source) for call in settled] == [("responses", "ok", "engine")] * 3
    assert whole.usage is not None
    assert {whole.usage.output_tokens} == {call.completion_tokens for call in settled}


async def test_a_response_that_is_cut_by_its_limit_is_whole(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """An answer that ends at max_output_tokens says so and is no failure."""
    ask: dict[str, Any] = {"model": "demo", "input": STORY, "max_output_tokens": 16}
    whole = await client.responses.create(**ask)
    events = [event async for event in await client.responses.create(**ask, stream=True)]

    assert whole.status == "incomplete"
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert [call.outcome for call in await quiet.gateway.settled(2)] == ["ok", "ok"]


async def test_responses_call_functions(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """A function's call comes back from responses whole and in events."""
    function: Any = {"type": "function", "strict": False, **TOOLS[0]["function"]}
    ask: dict[str, Any] = {
        "model": "demo",
        "input": "What is the weather in Paris?",
        "tools": [function],
        "temperature": 0,
    }
    whole = await client.responses.create(**ask)
    events = [event async for event in await client.responses.create(**ask, stream=True)]

    assert [item.type for item in whole.output] == ["function_call"]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == {"city": "Paris"}
    assert [call.biased for call in await quiet.gateway.settled(2) if call.stream] == ["parser"]


async def test_structured_output(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """An answer under a JSON schema is such JSON, made by the pool that can."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    }
    answer = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Describe Ada, 36."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        temperature=0,
    )

    assert {"name", "age"} == set(json.loads(answer.choices[0].message.content or ""))
    assert [(call.pool, call.reason) for call in await quiet.gateway.settled(1)] == [("base", "constraint")]


async def test_models(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """Models are listed with their aliases and found one by one; another name is not."""
    listed = [model.id async for model in await client.models.list()]
    found = await client.models.retrieve("gpt-4o-mini")

    assert (listed, found.id) == (["demo", "gpt-4o-mini"], "gpt-4o-mini")
    assert [model.id for model in await in_thread(quiet, lambda one: list(one.models.list()))] == listed
    with pytest.raises(openai.NotFoundError, match="gpt-99"):
        await client.models.retrieve("gpt-99")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_raw_responses_show_the_decision(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    """Whoever looks at the raw response finds pool, score, threshold and reason, and the request's id."""
    raw = await client.chat.completions.with_raw_response.create(
        model="demo", messages=COUNT, temperature=0, stream=stream, extra_headers={"x-request-id": "mine-1"}
    )

    assert (raw.headers["x-draftlane-pool"], raw.headers["x-draftlane-reason"]) == ("spec", "predictable")
    assert float(raw.headers["x-draftlane-score"]) > float(raw.headers["x-draftlane-threshold"])
    assert raw.headers["x-request-id"] == "mine-1"
    parsed = raw.parse()
    if isinstance(parsed, openai.AsyncStream):
        assert [chunk async for chunk in parsed]
    else:
        assert parsed._request_id == "mine-1"


async def test_a_route_may_be_asked_for(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """x-draftlane-route sends a counting prompt to baseline and a story to the speculative pool."""
    for messages, route in ((COUNT, "baseline"), (TALE, "speculative")):
        await client.chat.completions.create(
            model="demo", messages=messages, max_tokens=4, extra_headers={"x-draftlane-route": route}
        )

    assert [(call.pool, call.reason) for call in await quiet.gateway.settled(2)] == [
        ("base", "header"),
        ("spec", "header"),
    ]


async def test_vllms_own_fields_reach_the_engine(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """What is in `extra_body` arrives as it was given, and does what it says."""
    extra = {
        "ignore_eos": True,
        "min_tokens": 9,
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    answer = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], max_tokens=30, extra_body=extra
    )
    (seen,) = quiet.received

    assert extra.items() <= seen.json().items()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30
    assert len((answer.choices[0].model_extra or {})["token_ids"]) == 30


async def test_error_classes_of_the_gateway(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """What the gateway refuses becomes the client's own exceptions, with code and field."""
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="demo", messages=COUNT, extra_body={"n": "two"})
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="gpt-99", messages=COUNT)
    with pytest.raises(openai.AuthenticationError) as stranger:
        await client.with_options(api_key="sk-wrong").chat.completions.create(model="demo", messages=COUNT)

    assert (bad.value.param, bad.value.code) == ("n", "invalid_type")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
    assert stranger.value.code == "invalid_api_key"
    assert unknown.value.request_id
    assert quiet.received == []


async def test_error_classes_of_the_engine(quiet: Stack, client: openai.AsyncOpenAI) -> None:
    """What the engine refuses becomes the same exceptions, in the engine's words."""
    with pytest.raises(openai.BadRequestError, match="context length"):
        await client.chat.completions.create(model="demo", messages=COUNT, max_tokens=10_000_000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model="demo", messages=COUNT, temperature=-1)

    assert {"engine_error"} == {call.outcome for call in await quiet.gateway.settled(2)}


def break_both(it: Stack, **fault: Any) -> None:
    """Put a fault in force on both engines."""
    for one in it.engines:
        one.engine.faults.set(Fault(**fault), asyncio.get_running_loop().time())


async def test_rate_limits_are_told_as_openai_does() -> None:
    """Past its limit a tenant gets RateLimitError, with what is left and when to come back in the headers."""
    tenant = [{"name": "tester", "key_sha256": [key_digest(KEY)], "requests_per_minute": 2}]
    async with stack(tenant=tenant) as it, openai.AsyncOpenAI(base_url=it.url, api_key=KEY, max_retries=0) as client:
        first = await client.chat.completions.with_raw_response.create(model="demo", messages=COUNT, max_tokens=1)
        await client.chat.completions.create(model="demo", messages=COUNT, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(model="demo", messages=COUNT, max_tokens=1)

    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert limited.value.code == "rate_limit_exceeded"
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 62


async def test_an_engine_that_fails_is_an_internal_server_error() -> None:
    """When every engine answers 500, the client raises InternalServerError with the engine's words."""
    async with stack() as it, openai.AsyncOpenAI(base_url=it.url, api_key=KEY, max_retries=0) as client:
        break_both(it, kind="500")
        with pytest.raises(openai.InternalServerError, match="Injected fault 500"):
            await client.chat.completions.create(model="demo", messages=COUNT)


@pytest.mark.parametrize("kind", ["cut", "reset", "stall"])
async def test_a_stream_that_breaks_off_raises_in_the_loop(kind: str) -> None:
    """The client's loop over a stream raises APIError after the last good chunk; it never just ends."""
    limits = {"idle_seconds": 0.3}
    async with stack(limits=limits) as it, openai.AsyncOpenAI(base_url=it.url, api_key=KEY, max_retries=0) as client:
        break_both(it, kind=kind, after_events=5)
        words = []
        stream = await client.chat.completions.create(model="demo", messages=COUNT, temperature=0, stream=True)
        with pytest.raises(openai.APIError) as broken:  # noqa: PT012 - where in the loop it raises is the point
            async for chunk in stream:
                words.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - what came before the error counts
        responses = await client.responses.create(model="demo", input=COUNTING, stream=True)
        with pytest.raises(openai.APIError, match="engine"):
            assert [event async for event in responses]
        await it.at_rest()

    assert ("1" in "".join(words), "stream_stalled" if kind == "stall" else "stream_truncated") == (
        True,
        broken.value.code,
    )


async def test_the_clients_timeout_ends_the_engines_work() -> None:
    """A client that gives up by its own timeout frees the engine at once."""
    async with stack(speed=1) as it, openai.AsyncOpenAI(base_url=it.url, api_key=KEY, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="demo", messages=TALE, max_tokens=4000, timeout=0.3)
        await it.at_rest()

        assert [call.outcome for call in it.gateway.finished] == ["client_gone"]
        assert it.received[0].gone is not None


async def test_the_clients_retries_find_an_engine_that_is_well_again() -> None:
    """After a 500 the client asks once more by itself, and is answered."""
    async with stack() as it, openai.AsyncOpenAI(base_url=it.url, api_key=KEY, max_retries=1) as client:
        break_both(it, kind="500", count=2)
        answer = await client.chat.completions.create(model="demo", messages=COUNT, temperature=0)
        await it.at_rest()

    assert answer.choices[0].message.content == SIXTY
    assert [call.outcome for call in it.gateway.finished] == ["engine_error", "ok"]
