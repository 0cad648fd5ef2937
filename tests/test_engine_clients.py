"""The official SDKs against an embedded engine, directly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from gateway.engine import EngineSettings, serve

WEATHER = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris today?"}]
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}  # Anthropic's SDK has dropped the parameter
COUNT = [{"role": "user", "content": "Count from 1 to 20."}]


@pytest.fixture(params=["baseline", "speculative"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[openai.AsyncOpenAI]:
    """An OpenAI client of a fast engine of either kind."""
    settings = EngineSettings(kind=request.param, speed=200, per_request_metrics=True)
    async with serve(settings) as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as found:
        yield found


async def test_chat(client: openai.AsyncOpenAI):
    """A chat completion has text, a reason for its end and usage."""
    answer = await client.chat.completions.create(model="demo", messages=COUNT, temperature=0)

    choice = answer.choices[0]
    assert choice.message.content == ", ".join(map(str, range(1, 21)))
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 40


async def test_chat_stream(client: openai.AsyncOpenAI):
    """A streamed chat completion starts with the role and ends with the usage that was asked for."""
    stream = await client.chat.completions.create(
        model="demo", messages=COUNT, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ", ".join(map(str, range(1, 21)))
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
    ids=["auto", "required", "named"],
)
async def test_tool_call(client: openai.AsyncOpenAI, choice: object, reason: str):
    """A tool call has the tool's name and arguments under its schema, streamed and whole alike."""
    answer = await client.chat.completions.create(
        model="demo", messages=QUESTION, tools=TOOLS, tool_choice=choice, temperature=0
    )
    stream = await client.chat.completions.create(
        model="demo", messages=QUESTION, tools=TOOLS, tool_choice=choice, temperature=0, stream=True
    )
    pieces = [chunk.choices[0] async for chunk in stream]
    calls = [call for piece in pieces for call in piece.delta.tool_calls or []]

    assert answer.choices[0].finish_reason == reason
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] == "Paris"
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert calls[0].id is not None
    assert calls[0].function.name == "get_weather"
    assert "".join(piece.function.arguments for piece in calls) == call.function.arguments
    assert pieces[-1].finish_reason == reason


async def test_tools_unused(client: openai.AsyncOpenAI):
    """Where no tool has anything to do with the question, and after a tool's result, the answer is text."""
    unrelated = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Sing a lullaby."}], tools=TOOLS, max_tokens=30
    )
    called = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny, 20 degrees"},
    ]
    after = await client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, max_tokens=30)

    for answer in (unrelated, after):
        assert answer.choices[0].message.content
        assert not answer.choices[0].message.tool_calls


async def test_structured_output(client: openai.AsyncOpenAI):
    """A JSON schema is kept to: types, enumerations, bounds, nesting, references."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
            "home": {"$ref": "#/$defs/place"},
            "mood": {"enum": ["glad", "sad"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "home", "mood", "note"],
        "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    }
    answer = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Describe a person called Alice Smith, 200 years old."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        temperature=1.0,
    )
    plain = await client.chat.completions.create(
        model="demo", messages=COUNT, response_format={"type": "json_object"}, temperature=1.0
    )

    value = json.loads(answer.choices[0].message.content)
    assert value["name"] == "Alice Smith"
    assert 0 <= value["age"] <= 120
    assert 2 <= len(value["tags"]) <= 3
    assert isinstance(value["home"]["city"], str)
    assert value["mood"] in ("glad", "sad")
    assert isinstance(json.loads(plain.choices[0].message.content), dict)


async def test_logprobs_and_n(client: openai.AsyncOpenAI):
    """Log-probabilities come one per token with the alternatives asked for, and `n` choices differ when sampled."""
    answer = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story."}],
        logprobs=True,
        top_logprobs=3,
        n=2,
        temperature=1.0,
        max_tokens=20,
    )

    first, second = answer.choices
    assert first.message.content != second.message.content
    assert answer.usage.completion_tokens == 40
    for choice in (first, second):
        content = choice.logprobs.content
        assert len(content) == 20
        assert "".join(one.token for one in content) == choice.message.content
        assert all(one.logprob < 0 and len(one.top_logprobs) == 3 for one in content)


async def test_completions(client: openai.AsyncOpenAI):
    """Text completions take several prompts, echo them, and give log-probabilities."""
    answer = await client.completions.create(
        model="demo", prompt=["Count from 1 to 5", "Count from 6 to 9"], temperature=0, echo=True, logprobs=1
    )
    stream = await client.completions.create(model="demo", prompt="Count from 1 to 5", temperature=0, stream=True)

    assert [choice.text for choice in answer.choices] == [
        "Count from 1 to 51, 2, 3, 4, 5",
        "Count from 6 to 96, 7, 8, 9",
    ]
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens).startswith("1, 2, 3, 4, 5")
    assert logprobs.text_offset[0] == len("Count from 1 to 5")
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "1, 2, 3, 4, 5"


async def test_responses(client: openai.AsyncOpenAI):
    """A response comes whole, and as typed events that end in the same response."""
    whole = await client.responses.create(model="demo", input="Count from 1 to 9.", temperature=0)
    async with client.responses.stream(model="demo", input="Count from 1 to 9.", temperature=0) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()

    assert whole.output_text == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert whole.status == "completed"
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events if event.type != "response.output_text.delta"] == sorted(
        event.sequence_number for event in events if event.type != "response.output_text.delta"
    )


async def test_responses_call_tools(client: openai.AsyncOpenAI):
    """A response may be the call of a function, whole and streamed."""
    tools = [{"type": "function", **WEATHER}]
    question = "What is the weather in Paris today?"
    whole = await client.responses.create(model="demo", input=question, tools=tools, temperature=0)
    async with client.responses.stream(model="demo", input=question, tools=tools, temperature=0) as stream:
        final = await stream.get_final_response()

    for response in (whole, final):
        assert response.output[0].type == "function_call"
        assert response.output[0].name == "get_weather"
        assert json.loads(response.output[0].arguments)["city"] == "Paris"


async def test_models(client: openai.AsyncOpenAI):
    """The served model is listed."""
    assert [model.id async for model in client.models.list()] == ["demo"]


async def test_errors(client: openai.AsyncOpenAI):
    """The statuses of vLLM become the error classes of the SDK."""
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        await client.chat.completions.create(model="other", messages=COUNT)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.chat.completions.create(model="demo", messages=COUNT, max_tokens=10**6)


async def test_anthropic_messages():
    """The Anthropic SDK gets messages whole and streamed, tool use, and token counts."""
    tools = [{"name": "get_weather", "description": "Weather of a city.", "input_schema": WEATHER["parameters"]}]
    async with (
        serve(EngineSettings(speed=200)) as running,
        anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client,
    ):
        whole = await client.messages.create(model="demo", max_tokens=100, messages=COUNT, **GREEDY)
        async with client.messages.stream(model="demo", max_tokens=100, messages=COUNT, **GREEDY) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        used = await client.messages.create(model="demo", max_tokens=100, messages=QUESTION, tools=tools, **GREEDY)
        async with client.messages.stream(
            model="demo", max_tokens=100, messages=QUESTION, tools=tools, **GREEDY
        ) as stream:
            streamed = await stream.get_final_message()
        count = await client.messages.count_tokens(model="demo", messages=COUNT)
        cut = await client.messages.create(model="demo", max_tokens=3, messages=COUNT, **GREEDY)

    assert whole.content[0].text == text == ", ".join(map(str, range(1, 21)))
    assert whole.stop_reason == final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens == 40
    assert count.input_tokens == whole.usage.input_tokens
    assert cut.stop_reason == "max_tokens"
    for message in (used, streamed):
        assert message.stop_reason == "tool_use"
        assert message.content[0].name == "get_weather"
        assert message.content[0].input["city"] == "Paris"
