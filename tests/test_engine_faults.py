"""What can be made to go wrong with an embedded engine, as a client sees it and as the record tells it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from engines import chat, engine, events, until

from gateway.engine.faults import Faults, of

COUNT = "Count from 1 to 30."
NUMBERS = ", ".join(map(str, range(1, 31)))


async def post(client: httpx.AsyncClient, fault: str = "", **fields: Any) -> httpx.Response:
    """Send a chat request to the model with that fault in its name."""
    body = chat(COUNT, **fields)
    body["model"] = f"demo@fault={fault}" if fault else "demo"
    return await client.post("/v1/chat/completions", json=body)


async def broken(client: httpx.AsyncClient, fault: str, **fields: Any) -> tuple[bytes, type[Exception] | None]:
    """Return what arrives of an answer, and how the connection ended."""
    body = {**chat(COUNT, **fields), "model": f"demo@fault={fault}"}
    received = b""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for chunk in response.aiter_raw():
                received += chunk
    except httpx.TransportError as error:
        return received, type(error)
    return received, None


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize(
    ("fault", "status", "retry_after"),
    [("429", 429, None), ("429,retry_after=3", 429, "3"), ("500", 500, None), ("503,retry_after=1.5", 503, "1.5")],
)
async def test_statuses(fault: str, status: int, retry_after: str | None, stream: bool):  # noqa: FBT001 - a parameter
    """A status fault answers with an error object, and with Retry-After when told to."""
    async with engine() as (running, client):
        response = await post(client, fault, stream=stream)

    assert response.status_code == response.json()["error"]["code"] == status
    assert response.headers.get("retry-after") == retry_after
    assert running.record[0].fault == str(status)
    assert running.record[0].status == status


async def test_once():
    """A fault with a count happens so many times, and then no more: by name and by admin call."""
    async with engine() as (_, client):
        named = [(await post(client, "500,count=1")).status_code for _ in range(3)]
        await client.post("/engine/faults", json={"fault": "429", "count": 2, "retry_after": 1})
        called = [(await post(client)).status_code for _ in range(3)]
        left = (await client.get("/engine/faults")).json()["faults"][0]["left"]

    assert named == [500, 200, 200]
    assert called == [429, 429, 200]
    assert left == 0


def test_for_a_while():
    """A fault with seconds ends by itself."""
    faults = Faults()
    faults.set(of({"fault": "503", "seconds": 10}), now=100)
    faults.set(of({"fault": "slow", "seconds": 0.5}), now=100)

    kinds = [fault.kind if (fault := faults.take("demo", now)) else None for now in (100, 109, 110, 1000)]
    assert kinds == ["503", "503", "slow", "slow"]


def test_up_and_down():
    """A flapping engine is down for its seconds, then up for as long, and so on."""
    faults = Faults()
    faults.set(of({"fault": "flap", "seconds": 5}), now=100)

    assert [faults.down(now) for now in (100, 104, 105, 109, 110, 115)] == [True, True, False, False, True, False]
    assert faults.take("demo", 100) is None


async def test_lifting():
    """Faults can be lifted."""
    async with engine() as (_, client):
        await client.post("/engine/faults", json={"fault": "503"})
        set_ = await post(client)
        await client.delete("/engine/faults")
        lifted = await post(client)

    assert (set_.status_code, lifted.status_code) == (503, 200)


async def test_refusals_of_the_content():
    """The 400s about context length, content filter and a last message of the assistant's own carry their codes."""
    own = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2,"}]
    async with engine() as (_, client):
        context, content = await post(client, "context_length"), await post(client, "content_filter")
        refused = await client.post("/v1/chat/completions", json={"model": "demo@fault=prefill", "messages": own})
        taken = await post(client, "prefill")

    assert (context.status_code, context.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (content.status_code, content.json()["error"]["code"]) == (400, "content_filter")
    assert refused.status_code == 400
    assert taken.status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_reset_before_the_headers(stream: bool):  # noqa: FBT001 - a parameter
    """The connection is reset and not a byte was answered."""
    async with engine() as (running, client):
        received, error = await broken(client, "reset", stream=stream)
        await until(lambda: running.record[0].gone)

    assert (received, error) == (b"", httpx.ReadError)
    assert running.record[0].status is None


async def test_silence():
    """The request is read and never answered; the record tells when the client gave up."""
    async with engine() as (running, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post(
                "/v1/chat/completions",
                json={**chat(COUNT), "model": "demo@fault=silent"},
                timeout=httpx.Timeout(5, read=0.1),
            )
        await until(lambda: running.record[0].gone)

    assert running.batch.running == 0


async def test_a_slow_first_token():
    """The first token comes late, the answer is whole."""
    async with engine() as (_, client):
        loop = asyncio.get_running_loop()
        start = loop.time()
        response = await post(client, "slow,seconds=0.3", stream=True)

    assert loop.time() - start >= 0.3
    assert len(events(response.text)) > 10


@pytest.mark.parametrize(("fault", "error"), [("cut", httpx.RemoteProtocolError), ("reset", httpx.ReadError)])
async def test_a_stream_that_breaks(fault: str, error: type[Exception]):
    """The stream breaks after the events it was told, without an end mark, and the sequence is dropped."""
    async with engine() as (running, client):
        received, kind = await broken(client, f"{fault},after_events=4", stream=True)
        await until(lambda: running.record[0].gone)
        await until(lambda: running.batch.running == 0)

    assert kind is error
    assert b"[DONE]" not in received
    if fault == "cut":
        assert received.count(b"\n\n") == 4
    assert running.record[0].events == 4
    assert not running.record[0].finished


async def test_a_json_body_that_breaks():
    """Half of a body arrives where the whole was announced."""
    async with engine() as (_, client):
        received, kind = await broken(client, "cut")

    assert kind is httpx.RemoteProtocolError
    assert received
    with pytest.raises(json.JSONDecodeError):
        json.loads(received)


async def test_a_stalled_stream():
    """The stream stops after the events it was told; the sequence keeps its slot until the client leaves."""
    async with engine(slots=1) as (running, client):
        body = {**chat(COUNT, stream=True), "model": "demo@fault=stall,after_events=3"}
        received = b""
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.aiter_raw()
            while received.count(b"\n\n") < 3:
                received += await anext(pieces)
            for _ in range(20):
                await asyncio.sleep(0)
            held = running.batch.running, running.record[0].events
        await until(lambda: running.record[0].gone)
        after = await post(client)

    assert held == (1, 3)
    assert b"[DONE]" not in received
    assert after.status_code == 200


async def test_a_stalled_body():
    """Half of a JSON body arrives and nothing more; the connection stays open until the client leaves."""
    async with engine() as (running, client):
        body = {**chat(COUNT), "model": "demo@fault=stall"}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            first = await anext(response.aiter_raw())
            announced = int(response.headers["content-length"])
            gone = running.record[0].gone
        await until(lambda: running.record[0].gone)

    assert 0 < len(first) < announced
    assert gone is None


async def test_a_malformed_event():
    """One event is no JSON; the stream goes on to its proper end, as does the connection."""
    async with engine() as (running, client):
        response = await post(client, "malformed,after_events=2", stream=True)
        whole = await post(client, "malformed")
        after = await post(client)

    good = bad = 0
    for event in response.text.split("\n\n")[:-2]:
        try:
            json.loads(event.removeprefix("data: "))
            good += 1
        except json.JSONDecodeError:
            bad += 1
    assert bad == 1
    assert good > 10
    assert response.text.endswith("data: [DONE]\n\n")
    with pytest.raises(json.JSONDecodeError):
        whole.json()
    assert after.status_code == 200
    assert len({entry.request.connection for entry in running.record}) == 1


async def test_no_end_mark():
    """The stream ends properly framed, all of its text there, without [DONE]."""
    async with engine() as (_, client):
        response = await post(client, "no_done", stream=True)

    assert "[DONE]" not in response.text
    pieces = [json.loads(event[6:])["choices"][0]["delta"] for event in response.text.split("\n\n")[:-1]]
    assert "".join(piece.get("content", "") for piece in pieces) == NUMBERS


async def test_flapping():
    """While a flapping engine is down, everything is refused, health too, but for its own admin calls."""
    async with engine() as (running, client):
        running.fault("flap", seconds=1000)
        statuses = [(await client.get("/health")).status_code, (await post(client)).status_code]
        await client.delete("/engine/faults")
        health = await client.get("/health")

    assert statuses == [503, 503]
    assert health.status_code == 200


@pytest.mark.parametrize(
    "body",
    [{"fault": "nothing"}, {"fault": "200"}, {"fault": "429", "count": -1}, {"fault": "429", "often": 1}, {"count": 1}],
)
async def test_faults_that_are_none(body: dict[str, object]):
    """An admin call or a suffix that makes no sense is refused and names why."""
    async with engine() as (_, client):
        refused = await client.post("/engine/faults", json=body)
        suffix = await post(client, "nothing")
        option = await post(client, "cut,often=1")

    assert [one.status_code for one in (refused, suffix, option)] == [400, 400, 400]
    assert "often" in option.json()["error"]["message"]


async def test_the_record():
    """The record has headers, body and digest of what arrived, newest kept, and can be cleared."""
    async with engine(record_limit=2) as (running, client):
        for number in range(3):
            await client.post("/v1/chat/completions", json=chat(COUNT, max_tokens=2), headers={"x-number": str(number)})
        await client.get("/health")
        shown = (await client.get("/engine/record")).json()
        cleared = (await client.delete("/engine/record")).json()
        large = await client.post("/v1/chat/completions", content=b" " * 2_000_000)

    assert (shown["total"], shown["probes"]) == (3, 2)
    assert [dict(one["headers"])["x-number"] for one in shown["requests"]] == ["1", "2"]
    assert [one["attempt"] for one in shown["requests"]] == [2, 3]
    assert all(json.loads(one["body"])["max_tokens"] == 2 for one in shown["requests"])
    assert all(one["finished"] and one["status"] == 200 and one["tokens"] == 2 for one in shown["requests"])
    assert cleared["requests"] == []
    assert large.status_code == 400
    assert (running.record[0].size, running.record[0].body) == (2_000_000, b"")
    assert len(running.record[0].sha256) == 64
