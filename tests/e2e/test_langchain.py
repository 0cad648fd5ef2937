"""LangChain's ChatOpenAI, which many applications speak through, with nothing changed but `base_url`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from harness import KEY
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from e2e.stack import COUNTING, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIXTY = ", ".join(map(str, range(1, 61)))


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


_open: list[tuple[httpx.Client, httpx.AsyncClient]] = []


@pytest.fixture(autouse=True)
async def closing() -> AsyncIterator[None]:
    """Close the connections of a test's models: those that LangChain opens by itself stay open to the end of the process."""
    yield
    while _open:
        waiting, asynchronous = _open.pop()
        waiting.close()
        await asynchronous.aclose()


def model_at(it: Stack, *, usage: bool = False) -> ChatOpenAI:
    """Return LangChain's model in front of the gateway."""
    _open.append((httpx.Client(timeout=60), httpx.AsyncClient(timeout=60)))
    return ChatOpenAI(
        model="gpt-4o-mini",
        http_client=_open[-1][0],
        http_async_client=_open[-1][1],
        base_url=it.url,
        api_key=SecretStr(KEY),
        temperature=0,
        max_retries=0,
        stream_usage=usage,
    )


async def test_invoke(quiet: Stack) -> None:
    """A call gets its text and its token counts, on the calling thread and on the loop."""
    chat = model_at(quiet)
    asynchronous = await chat.ainvoke([SystemMessage("Count."), HumanMessage(COUNTING)])
    synchronous = await asyncio.to_thread(chat.invoke, COUNTING)

    assert [asynchronous.content, synchronous.content] == [SIXTY, SIXTY]
    assert asynchronous.usage_metadata is not None
    assert asynchronous.usage_metadata["output_tokens"] == quiet.gateway.finished[0].completion_tokens
    assert [call.pool for call in await quiet.gateway.settled(2)] == ["spec", "spec"]


@pytest.mark.parametrize("usage", [False, True], ids=["plain", "with usage"])
async def test_stream(quiet: Stack, *, usage: bool) -> None:
    """A stream's pieces make the text; token counts come where they are asked for, and only there."""
    pieces = [piece async for piece in model_at(quiet, usage=usage).astream(COUNTING)]

    assert "".join(str(piece.content) for piece in pieces) == SIXTY
    assert usage == any(piece.usage_metadata for piece in pieces)
    assert (await quiet.gateway.settled(1))[0].usage_source == "engine"


async def test_tools(quiet: Stack) -> None:
    """A bound tool is called, streamed or not, and its result is answered."""
    chat = model_at(quiet).bind_tools([get_weather])
    question = HumanMessage("What is the weather in Paris?")
    asked = await chat.ainvoke([question])
    total = AIMessageChunk(content="")
    async for piece in chat.astream([question]):
        assert isinstance(piece, AIMessageChunk)
        total += piece
    answer = await chat.ainvoke([question, asked, ToolMessage("18 degrees", tool_call_id=asked.tool_calls[0]["id"])])

    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("get_weather", {"city": "Paris"})]
    assert [(call["name"], call["args"]) for call in total.tool_calls] == [("get_weather", {"city": "Paris"})]
    assert answer.content
    assert len(quiet.received) == 3


async def test_structured_output(quiet: Stack) -> None:
    """An answer under a schema is parsed into the caller's own type; baseline made it."""
    person = await model_at(quiet).with_structured_output(Person).ainvoke("Describe Ada, 36.")

    assert isinstance(person, Person)
    assert [call.pool for call in await quiet.gateway.settled(1)] == ["base"]
