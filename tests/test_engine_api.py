"""The embedded engine's endpoints as raw JSON: shapes, limits, errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from engines import ask, chat, engine, events, stream, text_of
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.tokenizer import TOKENIZER, Decoder

COUNT = "Count from 1 to 30."
NUMBERS = ", ".join(map(str, range(1, 31)))
STORY = "Tell me a story about a lighthouse."


@given(st.text())
def test_tokens_round_trip(text: str):
    """Every text comes back from its tokens, whole and piece by piece."""
    ids = TOKENIZER.encode(text)
    decoder = Decoder(TOKENIZER)

    assert TOKENIZER.decode(ids) == text
    assert "".join(decoder.feed(one) for one in ids) == text


@given(st.text(), st.text())
def test_special_tokens_cannot_be_written(before: str, after: str):
    """Text that spells a special token does not become one."""
    assert TOKENIZER.specials.isdisjoint(TOKENIZER.encode(f"{before}<|im_end|>{after}"))


async def test_shape_of_a_chat_completion():
    """A chat completion has vLLM's fields, in vLLM's order."""
    async with engine() as (_, client):
        answer = await ask(client, COUNT)

    assert list(answer)[:6] == ["id", "object", "created", "model", "choices", "service_tier"]
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["system_fingerprint"].startswith("vllm-")
    assert list(answer["choices"][0]) == ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"]
    assert "metrics" not in answer


async def test_framing_of_a_stream():
    """A stream is `data:` events with an empty line after each: the role first, one per step, the reason with the last."""
    async with engine() as (_, client):
        response = await client.post("/v1/chat/completions", json=chat(COUNT, stream=True))

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events(response.text)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(found) == NUMBERS
    reasons = [event["choices"][0]["finish_reason"] for event in found]
    assert reasons == [None] * (len(found) - 1) + ["stop"]
    assert "stop_reason" in found[-1]["choices"][0]
    assert len({event["id"] for event in found}) == 1


async def test_baseline_streams_a_token_per_event():
    """Without a draft every event carries exactly one token."""
    async with engine() as (_, client):
        found = await stream(client, COUNT, return_token_ids=True)

    assert found[0]["prompt_token_ids"]
    assert [len(event["choices"][0]["token_ids"]) for event in found[1:]] == [1] * (len(found) - 1)
    ids = [token for event in found[1:] for token in event["choices"][0]["token_ids"]]
    assert TOKENIZER.decode(ids) == NUMBERS


async def test_usage_options():
    """Usage comes in a chunk of its own, or with every chunk as it stands."""
    async with engine(kind="speculative") as (_, client):
        last = await stream(client, COUNT, stream_options={"include_usage": True})
        each = await stream(client, COUNT, stream_options={"include_usage": True, "continuous_usage_stats": True})

    assert all("usage" not in event for event in last[:-1])
    assert last[-1]["choices"] == []
    counts = [event["usage"]["completion_tokens"] for event in each]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == last[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("kind", ["baseline", "speculative"])
async def test_stop_strings(kind: str):
    """A stop string ends the text before it, wherever tokens and events begin and end, and never shows in part."""
    async with engine(kind=kind) as (_, client):
        answer = await ask(client, COUNT, stop=["5, 16, 1", "never"])
        kept = await ask(client, COUNT, stop="16", include_stop_str_in_output=True)
        found = await stream(client, COUNT, stop=["5, 16, 1", "never"])

    expected = NUMBERS.partition("5, 16, 1")[0]
    assert answer["choices"][0]["message"]["content"] == text_of(found) == expected
    assert answer["choices"][0]["stop_reason"] == "5, 16, 1"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert kept["choices"][0]["message"]["content"] == NUMBERS.partition("17")[0].removesuffix(", ")


async def test_lengths():
    """Output ends at max_tokens, not before min_tokens, and not at its natural end when that is to be ignored."""
    async with engine(kind="speculative") as (_, client):
        cut = await ask(client, COUNT, max_tokens=7)
        new = await ask(client, COUNT, max_completion_tokens=8, max_tokens=3)
        long = await ask(client, "Count from 1 to 3.", min_tokens=50)
        endless = await ask(client, "Count from 1 to 3.", ignore_eos=True, max_tokens=60)
        stopped = await ask(client, COUNT, stop_token_ids=TOKENIZER.encode(" 7"))

    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 7)
    assert new["usage"]["completion_tokens"] == 8
    assert long["usage"]["completion_tokens"] >= 50
    assert (endless["choices"][0]["finish_reason"], endless["usage"]["completion_tokens"]) == ("length", 60)
    assert stopped["choices"][0]["message"]["content"] == "1, 2, 3, 4, 5, 6,"
    assert stopped["choices"][0]["stop_reason"] == TOKENIZER.encode(" 7")[0]


async def test_half_a_character_is_held_back():
    """An answer that ends inside a character shows the whole ones only."""
    async with engine() as (_, client):
        answer = await ask(client, 'Repeat "𝄞𝄞" 3 times.', max_tokens=6)
        found = await stream(client, 'Repeat "𝄞𝄞" 3 times.')

    assert answer["choices"][0]["message"]["content"] == "𝄞"
    assert text_of(found) == "\n".join(["𝄞𝄞"] * 3)


async def test_seeds():
    """Sampling is repeatable with a seed, differs without, and greedy answers depend on the engine's seed alone."""
    async with engine() as (_, client), engine(seed=1) as (_, other):
        seeded = [await ask(client, STORY, temperature=1, seed=5, max_tokens=40) for _ in range(2)]
        free = [await ask(client, STORY, temperature=1, max_tokens=40) for _ in range(2)]
        greedy = [await ask(one, STORY, max_tokens=40) for one in (client, client, other)]

    texts = [[one["choices"][0]["message"]["content"] for one in group] for group in (seeded, free, greedy)]
    assert texts[0][0] == texts[0][1]
    assert texts[1][0] != texts[1][1]
    assert texts[2][0] == texts[2][1] != texts[2][2]


async def test_stream_interval():
    """A larger stream interval merges steps into fewer events, without losing a token."""
    async with engine(stream_interval=5) as (_, client):
        found = await stream(client, COUNT, return_token_ids=True)

    sizes = [len(event["choices"][0]["token_ids"]) for event in found[1:]]
    assert sizes[0] == 1
    assert set(sizes[1:-1]) == {5}
    assert text_of(found) == NUMBERS


async def test_logit_bias_on_the_baseline():
    """A token may be forbidden or forced; a speculative engine refuses both, and min_p, with 400."""
    seven = TOKENIZER.encode(" 7")[0]
    async with engine() as (_, client), engine(kind="speculative") as (_, speculative):
        without = await ask(client, COUNT, logit_bias={str(seven): -100})
        forced = await ask(client, COUNT, logit_bias={str(seven): 100}, max_tokens=3)
        refused = [
            await speculative.post("/v1/chat/completions", json=chat(COUNT, **fields))
            for fields in ({"min_p": 0.1}, {"logit_bias": {"5": 1}}, {"min_p": 0, "logit_bias": {}})
        ]

    assert without["choices"][0]["message"]["content"] == NUMBERS.replace(" 7,", ",")
    assert forced["choices"][0]["message"]["content"] == " 7 7 7"
    assert [response.status_code for response in refused] == [400, 400, 200]
    assert refused[0].json()["error"] == {
        "message": "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }


async def test_greedy_only_ignores_sampling():
    """A sampler compiled greedy answers as at temperature 0, whatever is asked."""
    async with engine(kind="speculative", greedy_only=True) as (_, client):
        greedy = await ask(client, STORY, max_tokens=30)
        hot = await ask(client, STORY, max_tokens=30, temperature=1.5, min_p=0.5)

    assert hot["choices"][0]["message"] == greedy["choices"][0]["message"]


async def test_other_endpoints():
    """Tokens, models, version and health answer in vLLM's shapes."""
    async with engine(kind="speculative", max_model_len=2048) as (_, client):
        tokens = (await client.post("/tokenize", json={"model": "demo", "prompt": "Hello world"})).json()
        text = (await client.post("/detokenize", json={"model": "demo", "tokens": tokens["tokens"]})).json()
        rendered = (await client.post("/tokenize", json=chat("Hello world"))).json()
        models = (await client.get("/v1/models")).json()
        version = (await client.get("/version")).json()
        health = await client.get("/health")

    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 2048
    assert text == {"prompt": "Hello world"}
    assert rendered["count"] > tokens["count"]
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("demo", 2048)]
    assert "embedded" in version["version"]
    assert (health.status_code, health.content) == (200, b"")


async def test_request_ids():
    """A request id that comes with a request is the answer's, after the endpoint's prefix."""
    async with engine() as (_, client):
        response = await client.post("/v1/chat/completions", json=chat(COUNT), headers={"x-request-id": "abc"})

    assert response.json()["id"] == "chatcmpl-abc"


async def test_responses_are_not_stored():
    """A response that another one is to follow is not found."""
    body = {"model": "demo", "input": COUNT, "previous_response_id": "resp_1"}
    async with engine() as (_, client):
        response = await client.post("/v1/responses", json=body)

    assert response.status_code == 404


async def test_unknown_fields_are_ignored():
    """Fields that nobody knows change nothing."""
    async with engine() as (_, client):
        plain = await ask(client, COUNT)
        more = await ask(
            client, COUNT, chat_template_kwargs={"enable_thinking": False}, guided_json=None, some_field=[1]
        )

    assert plain["choices"] == more["choices"]


async def test_streams_equal_whole_answers():
    """Every endpoint says the same whether it streams or not."""

    async def pieces(client: httpx.AsyncClient, path: str, body: dict[str, Any], *keys: str) -> str:
        response = await client.post(path, json={**body, "stream": True})
        found = []
        for event in response.text.split("\n\n"):
            value = event.rpartition("data: ")[2]
            if value and value != "[DONE]":
                piece = json.loads(value)
                for key in keys:
                    piece = piece.get(key) if isinstance(piece, dict) else piece[0].get(key) if piece else None
                found.append(piece or "")
        return "".join(one for one in found if isinstance(one, str))

    async with engine(kind="speculative") as (_, client):
        body = {"model": "demo", "temperature": 0, "max_tokens": 40}
        whole = await client.post("/v1/completions", json={**body, "prompt": STORY})
        streamed = await pieces(client, "/v1/completions", {**body, "prompt": STORY}, "choices", "text")
        turn = {**body, "messages": [{"role": "user", "content": STORY}]}
        message = await client.post("/v1/messages", json=turn)
        told = await pieces(client, "/v1/messages", turn, "delta", "text")

    assert whole.json()["choices"][0]["text"] == streamed
    assert message.json()["content"][0]["text"] == told
