"""Calls through the gateway to real engines: both pools, all endpoints, and what may go to one pool only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import Anthropic

from e2e.lab.stand import COPYING, COUNTING, SECONDS, STORY, Engine, Front, begun, chat, until
from gateway.measure.lab.front import KEY
from gateway.measure.lab.place import SERVED

pytestmark = pytest.mark.timeout(SECONDS)
POOLS = pytest.mark.parametrize("pool", ["speculative", "baseline"])
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BOOK: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "book",
        "schema": {
            "type": "object",
            "properties": {"title": {"type": "string", "maxLength": 40}, "year": {"type": "integer", "maximum": 2100}},
            "required": ["title", "year"],
            "additionalProperties": False,
        },
    },
}


@POOLS
def test_answers_in_one_piece_come_from_both_pools(front: Front, pool: str) -> None:
    """The official client gets a whole answer from the pool it asked for, with the engine's own usage."""
    answer = front.openai.chat.completions.with_raw_response.create(
        **chat(COUNTING), extra_headers={"x-draftlane-route": pool}
    )
    told = answer.parse()

    assert answer.headers["x-draftlane-pool"] == pool
    assert "104, 105, 106" in (told.choices[0].message.content or "")
    assert told.usage is not None
    assert told.usage.completion_tokens == 48


@POOLS
def test_streams_come_from_both_pools(front: Front, pool: str) -> None:
    """A stream adds up to what the same call says in one piece, and the usage event comes only where it was asked for."""
    route = {"x-draftlane-route": pool}
    whole = front.ask(chat(COUNTING), pool).json()["choices"][0]["message"]["content"]
    plain = list(front.openai.chat.completions.create(**chat(COUNTING), stream=True, extra_headers=route))
    told = list(
        front.openai.chat.completions.create(
            **chat(COUNTING), stream=True, stream_options={"include_usage": True}, extra_headers=route
        )
    )

    assert "".join(event.choices[0].delta.content or "" for event in plain) == whole
    assert all(event.choices and event.usage is None for event in plain)
    assert told[-1].usage is not None
    assert told[-1].usage.completion_tokens == 48


@POOLS
def test_the_other_endpoints_reach_both_pools(front: Front, pool: str) -> None:
    """Completions, responses and messages work with their official clients, streamed and whole."""
    client, ours = front.openai, f"other-endpoints-{pool}"
    route = {"x-draftlane-route": pool, "x-request-id": ours}
    anthropic = Anthropic(base_url=front.url, api_key=KEY, max_retries=0, timeout=60, default_headers=route)
    front.ending.callback(anthropic.close)
    completion = client.completions.create(
        model=SERVED, prompt="1, 2, 3, 4, 5,", max_tokens=12, temperature=0, extra_headers=route
    )
    response = client.responses.create(
        model=SERVED, input=COUNTING, max_output_tokens=24, temperature=0, extra_headers=route
    )
    with anthropic.messages.stream(
        model=SERVED,
        max_tokens=24,
        messages=[{"role": "user", "content": COUNTING}],
        extra_body={"temperature": 0},
    ) as stream:
        message = "".join(stream.text_stream)

    assert completion.choices[0].text.startswith(" 6, 7, 8")
    assert "103, 104" in response.output_text
    assert "103, 104" in message
    lines = until(
        lambda: len(found := [line for line in front.lines() if line["request_id"] == ours]) == 3 and found,
        10,
        "three lines about calls",
    )
    assert {line["pool"] for line in lines} == {pool}


@pytest.mark.parametrize("field", [{"min_p": 0.2}, {"logit_bias": {"1000": 5}}], ids=["min_p", "logit_bias"])
def test_what_speculation_refuses_goes_to_baseline(front: Front, speculative: Engine, field: dict[str, Any]) -> None:
    """The speculative engine really refuses these parameters; the gateway sends such calls to baseline, whatever is asked."""
    body = chat(COPYING, **{**field, "temperature": 0.7})  # at 0 vLLM drops min_p, which means nothing there
    answer = front.ask(body, "speculative")

    assert speculative.ask(body).status_code == 400
    assert (answer.status_code, answer.headers["x-draftlane-pool"]) == (200, "baseline")
    assert front.settled(answer)["reason"] == "constraint"


def test_values_without_effect_are_no_constraint(front: Front) -> None:
    """`min_p: 0` and an empty `logit_bias` mean nothing, and the speculative engine takes them."""
    answer = front.ask(chat(COPYING, min_p=0, logit_bias={}), "speculative")

    assert (answer.status_code, answer.headers["x-draftlane-pool"]) == (200, "speculative")


def test_structured_output_comes_from_baseline(front: Front) -> None:
    """A call with a JSON schema goes to baseline and its answer keeps to the schema."""
    answer = front.ask(chat("Name a book.", response_format=BOOK, max_tokens=64))
    told = json.loads(answer.json()["choices"][0]["message"]["content"])

    assert (answer.headers["x-draftlane-pool"], front.settled(answer)["reason"]) == ("baseline", "constraint")
    assert sorted(told) == ["title", "year"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_a_tool_that_must_be_called_is_called(front: Front, baseline: Engine, *, stream: bool) -> None:
    """A named tool is called through baseline, with the arguments that the engine gives, streamed or not."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = chat("What is the weather in Paris?", tools=[WEATHER], tool_choice=named, max_tokens=64)
    own = baseline.ask(body).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    answer = front.openai.chat.completions.with_raw_response.create(**body, stream=stream)
    if stream:
        calls = [call for event in answer.parse() for call in event.choices[0].delta.tool_calls or ()]
    else:
        calls = answer.parse().choices[0].message.tool_calls or []

    assert answer.headers["x-draftlane-pool"] == "baseline"
    assert "".join(call.function.name or "" for call in calls) == own["name"] == "get_weather"
    assert "".join(call.function.arguments or "" for call in calls) == own["arguments"]


def test_offered_tools_are_no_constraint(front: Front) -> None:
    """Tools that the model may leave alone go to either pool."""
    answer = front.ask(chat(STORY, tools=[WEATHER]), "speculative")

    assert (answer.status_code, answer.headers["x-draftlane-pool"]) == (200, "speculative")


def test_an_engine_s_refusal_reaches_the_client_as_it_is(front: Front, baseline: Engine) -> None:
    """What vLLM says about a bad request comes through with its status, word for word."""
    body = chat(STORY, top_p=7)
    answer, own = front.ask(body, "baseline"), baseline.ask(body)

    assert (answer.status_code, answer.json()["error"]["message"]) == (400, own.json()["error"]["message"])


def test_parameters_of_vllm_alone_pass_through(front: Front) -> None:
    """What OpenAI does not know reaches the engine: an answer that was begun goes on, and its token ids come back."""
    answer = front.ask(begun("Count from 1 to 80.", "1, 2, 3, 4, 5, 6, 7,", return_token_ids=True)).json()
    (choice,) = answer["choices"]

    assert choice["message"]["content"].startswith(" 8, 9, 10")
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"]
