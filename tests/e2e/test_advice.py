"""Advice for other gateways: who may ask, what is answered, and that no engine, limit or chance is touched."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from harness import ADMIN_KEY, KEY, serving
from httpx import AsyncClient, Response

from e2e.stack import COUNTING, KEYED, STORY, TLS, Stack, chat, stack
from gateway.advice import MAX_REQUESTS
from gateway.config import Config, key_digest

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTE = "/draftlane/route"
HEADERS = ("pool", "kind", "model", "reason", "score", "threshold")


async def ask(stack: Stack, *requests: dict[str, Any], **headers: str) -> Response:
    """Send a batch."""
    return await stack.client.post(ROUTE, json={"requests": list(requests)}, headers=headers)


async def test_a_batch_is_answered_in_its_order_and_reaches_no_engine(quiet: Stack) -> None:
    """Each request gets its pool, the order after it and the numbers, and the engines see nothing of it."""
    answer = await ask(quiet, {"body": chat(COUNTING)}, {"body": chat(STORY)}, {"body": chat(min_p=0.1)})
    told = answer.json()

    assert answer.status_code == 200
    assert [(row["index"], row["pool"], row["reason"]) for row in told["data"]] == [
        (0, "spec", "predictable"),
        (1, "base", "unpredictable"),
        (2, "base", "constraint"),
    ]
    assert told["data"][0]["order"] == ["spec", "base"]
    assert told["data"][2]["order"] == ["base"]
    assert quiet.received == []
    assert quiet.gateway.finished == []


async def test_advice_says_what_the_call_itself_would_do(quiet: Stack) -> None:
    """Pool, reason, score and threshold equal those of the same call sent through the gateway."""
    for prompt in (COUNTING, STORY):
        answer = await quiet.client.post(f"{ROUTE}/v1/chat/completions", json=chat(prompt))
        served = await quiet.client.post("/v1/chat/completions", json=chat(prompt))

        for name in ("pool", "reason", "score", "threshold"):
            assert served.headers[f"x-draftlane-{name}"] == answer.headers[f"x-draftlane-{name}"], name
    await quiet.gateway.settled(2)


async def test_one_request_is_answered_in_headers_and_body_alike(quiet: Stack) -> None:
    """A proxy that reads headers alone learns the pool, its kind and the name that its engines know."""
    answer = await quiet.client.post(f"{ROUTE}/v1/chat/completions", json=chat(model="gpt-4o-mini"))
    told = answer.json()

    assert answer.status_code == 200
    assert all(f"x-draftlane-{name}" in answer.headers for name in HEADERS)
    assert (answer.headers["x-draftlane-pool"], told["model"]) == (told["pool"], "demo")
    assert answer.headers["x-draftlane-model"] == told["served_model"] == "demo"
    assert {option["pool"] for option in told["options"]} == {"spec", "base"}
    assert told["options"][0]["time_seconds"] > 0.0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "demo", "prompt": COUNTING}),
        ("/v1/responses", {"model": "demo", "input": COUNTING}),
        ("/v1/messages", {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": COUNTING}]}),
    ],
)
async def test_every_scored_endpoint_has_advice(quiet: Stack, path: str, body: dict[str, Any]) -> None:
    """The path tells the endpoint; in a batch the field that holds the prompt does, or the request says it."""
    answer = await quiet.client.post(ROUTE + path, json=body)
    batch = await ask(quiet, {"body": body}, {"body": body, "endpoint": path.rsplit("/", 1)[1]})

    assert answer.status_code == 200
    assert [row.get("pool") for row in batch.json()["data"]] == [answer.json()["pool"]] * 2


async def test_wrong_requests_of_a_batch_have_their_own_errors(quiet: Stack) -> None:
    """What one request gets as an error stands in its place; the others are answered."""
    answer = await ask(
        quiet, {"body": chat(model="nope")}, {"body": {"model": "demo"}}, {"body": chat(), "route": "speculative"}
    )
    rows = answer.json()["data"]

    assert [row.get("status") for row in rows] == [404, 400, None]
    assert rows[0]["error"]["code"] == "model_not_found"
    assert (rows[2]["pool"], rows[2]["reason"]) == ("spec", "header")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"requests": []}', 400),
        (b'{"requests": [{}]}', 400),
        (b'{"requests": [{"body": {}, "rout": "auto"}]}', 400),
        (b'{"requests": [{"body": {}, "route": "fast"}]}', 400),
        (json.dumps({"requests": [{"body": {}}] * (MAX_REQUESTS + 1)}).encode(), 400),
        (b" " * (20 * 1024 * 1024 + 1), 413),
        (b"[" * 100_000, 400),
    ],
    ids=["cut", "list", "none", "no-body", "misspelt", "no-route", "too-many", "too-large", "deep"],
)
async def test_a_wrong_batch_is_an_openai_error(quiet: Stack, body: bytes, status: int) -> None:
    """A batch that cannot be read is refused as a whole, in words."""
    answer = await quiet.client.post(ROUTE, content=body)

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


async def test_only_tenants_may_ask(quiet: Stack) -> None:
    """Without a key, with a wrong one and with the operators' it is 401, as for a call."""
    for key in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {ADMIN_KEY}"}):
        async with AsyncClient(base_url=quiet.gateway.url, headers=key, verify=TLS) as stranger:
            for path in (ROUTE, f"{ROUTE}/v1/chat/completions"):
                assert (await stranger.post(path, json=chat())).status_code == 401


async def test_other_paths_and_encodings(quiet: Stack) -> None:
    """A path that is not scored is 404, another method 405, a gzip'd body is unpacked, a wrong route names the header."""
    assert (await quiet.client.post(f"{ROUTE}/v1/embeddings", json=chat())).status_code == 404
    assert (await quiet.client.get(ROUTE)).status_code == 405
    packed = gzip.compress(json.dumps(chat()).encode())
    zipped = await quiet.client.post(
        f"{ROUTE}/v1/chat/completions", content=packed, headers={"content-encoding": "gzip"}
    )
    wrong = await quiet.client.post(
        f"{ROUTE}/v1/chat/completions", json=chat(), headers={"x-draftlane-route": "fastest"}
    )

    assert zipped.json()["pool"] == "spec"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-draftlane-route")


async def test_the_tenants_rules_hold_and_its_limits_are_left_alone() -> None:
    """Models and policy are the tenant's; a batch takes nothing of its requests per minute, and never explores."""
    tenant = {
        "name": "small",
        "key_sha256": [key_digest(KEY)],
        "requests_per_minute": 1,
        "policy": "baseline",
        "allow_route_header": False,
    }
    always = {"explore_near": 1.0, "explore_far": 1.0}
    async with stack(tenant=[tenant], routing=always) as serving_all:
        forbidden = await ask(serving_all, {"body": chat(), "route": "speculative"})
        many = await ask(serving_all, *[{"body": chat()}] * MAX_REQUESTS)

        assert forbidden.json()["data"][0]["status"] == 403
        assert {(row["pool"], row["reason"]) for row in many.json()["data"]} == {("base", "policy")}
        assert (await serving_all.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_advice_never_explores() -> None:
    """Where every call would explore, advice still names the better pool: nobody would learn from its outcome."""
    async with stack(routing={"explore_near": 1.0, "explore_far": 1.0}) as exploring:
        rows = (await ask(exploring, *[{"body": chat(COUNTING)}] * 20)).json()["data"]

        assert {row["reason"] for row in rows} == {"predictable"}


async def test_nobody_there_is_a_503_that_says_so() -> None:
    """When no pool has a live replica the advice is the call's own 503."""
    async with stack(pools={"spec": {"disabled": True}, "base": {"disabled": True}}) as dead:
        answer = await dead.client.post(f"{ROUTE}/v1/chat/completions", json=chat())

        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_replica"


async def test_tenants_ask_on_their_own_port() -> None:
    """With a port for operators, advice stays with the clients and state with the operators."""
    async with stack() as behind:
        config = behind.gateway.gateway.pipeline.live.config
        server = config.server.model_copy(update={"admin_port": 1})
        async with serving(Config.model_construct(**{**dict(config), "server": server})) as divided:
            divided.gateway.api._admin_port = 1
            async with AsyncClient(base_url=divided.url, headers=KEYED, verify=TLS) as client:
                assert (await client.post(f"{ROUTE}/v1/chat/completions", json=chat())).status_code == 200
                assert (await client.get("/draftlane/state")).status_code == 404
