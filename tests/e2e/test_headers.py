"""What crosses the gateway and what does not: credentials, hop-by-hop headers, request ids, encodings, connections."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes import post, visitor
from harness import KEY, until

from e2e.stack import KEYED, Stack, chat, stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
STOPPED = {
    "api-key": "secret-1",
    "x-api-key": "secret-2",
    "x-goog-api-key": "secret-3",
    "x-auth-token": "secret-4",
    "cookie": "session=secret-5",
    "proxy-authorization": "Basic secret-6",
    "keep-alive": "timeout=5",
    "proxy-connection": "keep-alive",
    "te": "trailers",
    "trailer": "x-checksum",
    "upgrade": "h2c",
    "x-listed": "named by Connection",
    "x-draftlane-route": "baseline",
    "x-draftlane-anything": "own",
    "X-Draftlane-Cased": "own",
    "forwarded": "for=203.0.113.9",
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-host": "front.example.com",
    "x-real-ip": "203.0.113.9",
    "via": "1.1 front",
    "expect": "100-continue",
    "accept-encoding": "gzip, br",
}
PASSED = {
    "content-type": "application/json",
    "accept": "application/json",
    "user-agent": "OpenAI/Python 3.0",
    "openai-organization": "org-1",
    "anthropic-version": "2023-06-01",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-custom": "as it came",
}
ENDINGS = [("spec", "speculative"), ("base", "baseline")]


async def test_nothing_of_a_clients_credentials_or_connection_reaches_an_engine(quiet: Stack) -> None:
    """Keys, cookies, hop-by-hop, own and proxies' headers stop at the gateway; all others pass as they came."""
    answer = await quiet.client.post(
        CHAT, json=chat(), headers={**STOPPED, **PASSED, "connection": "keep-alive, X-Listed"}
    )
    assert answer.status_code == 200
    (seen,) = quiet.received

    assert not {name.lower() for name in STOPPED} & seen.headers.keys()
    assert PASSED.items() <= seen.headers.items()
    assert "authorization" not in seen.headers
    assert "secret" not in repr(seen.request.headers)
    assert KEY not in repr(seen.request.headers)


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_the_pools_own_key_is_put_in_the_clients_place(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    """Whichever header brings the client's key, the engine gets the pool's key and only that."""
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")
    pools = {"spec": {"key_env": "ENGINE_KEY"}, "base": {"key_env": "ENGINE_KEY"}}
    async with stack(engines={"api_key": "sk-engine"}, pools=pools) as it, visitor(it.gateway.port) as client:
        own = {header.replace("-", "_"): f"Bearer {KEY}" if header == "authorization" else KEY}
        await client.send(post(chat(), **{"authorization": "", **own}))

        assert (await client.answer()).status == 200
        (seen,) = it.received
        assert [value.decode() for name, value in seen.request.headers if name == b"authorization"] == [
            "Bearer sk-engine"
        ]
        assert KEY not in repr(seen.request.headers)


async def test_an_engines_hop_by_hop_headers_stop_at_the_gateway(quiet: Stack) -> None:
    """The answer carries the gateway's own framing and what the gateway decided, once each."""
    answer = await quiet.client.post(CHAT, json=chat())

    names = [name.lower() for name, _ in answer.headers.raw]
    assert len(names) == len(set(names))
    assert not {b"connection", b"keep-alive", b"transfer-encoding"} & set(names)
    assert {b"x-draftlane-pool", b"x-draftlane-score", b"x-draftlane-threshold", b"x-draftlane-reason"} <= set(names)


@pytest.mark.parametrize(("pool", "route"), ENDINGS)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_the_headers_say_where_the_call_went(quiet: Stack, pool: str, route: str, *, stream: bool) -> None:
    """The pool in the header is the one whose engine saw the call, and score and threshold are numbers in [0, 1]."""
    answer = await quiet.client.post(CHAT, json=chat(stream=stream), headers={"x-draftlane-route": route})

    assert (pool, "header") == (answer.headers["x-draftlane-pool"], answer.headers["x-draftlane-reason"])
    assert 0 <= float(answer.headers["x-draftlane-score"]) <= 1
    assert 0 <= float(answer.headers["x-draftlane-threshold"]) <= 1
    engine = quiet.speculative if pool == "spec" else quiet.baseline
    assert len(engine.engine.record) == 1
    assert len(quiet.received) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("trace-1.2:3/4+5=6@7", True),
        ("x" * 128, True),
        (None, False),
        ("", False),
        ("x" * 129, False),
        ("two words", False),
        ("<script>", False),
    ],
)
async def test_a_request_id_goes_in_through_and_out(quiet: Stack, given: str | None, *, kept: bool) -> None:
    """A plain short id is kept; any other, or none, is replaced; engine, log and client get the same one."""
    answer = await quiet.client.post(CHAT, json=chat(), headers={} if given is None else {"x-request-id": given})
    (settled,) = await quiet.gateway.settled(1)
    (seen,) = quiet.received

    found = answer.headers["x-request-id"]
    assert (found == given) is kept
    assert (found, found) == (seen.headers["x-request-id"], settled.request_id)
    assert [name for name, _ in seen.request.headers].count(b"x-request-id") == 1


async def test_errors_carry_the_request_id_too(quiet: Stack) -> None:
    """A refused call can be found by its id."""
    answer = await quiet.client.post(CHAT, json=chat(model="none"), headers={"x-request-id": "call-7"})

    assert (answer.status_code, answer.headers["x-request-id"]) == (404, "call-7")


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
async def test_a_packed_body_reaches_the_engine_unpacked(quiet: Stack, encoding: str, packed: Any) -> None:
    """What the client wrote before packing is what the engine reads, and no encoding is announced to it."""
    body = json.dumps(chat(padding="x" * 5000)).encode()
    answer = await quiet.client.post(CHAT, content=packed(body), headers={"content-encoding": encoding})
    (seen,) = quiet.received

    assert (200, body) == (answer.status_code, seen.body)
    assert "content-encoding" not in seen.headers
    assert str(len(body)) == seen.headers["content-length"]


async def test_a_chunked_upload_reaches_the_engine_whole(quiet: Stack) -> None:
    """Chunks of the client's choosing arrive as one body with its length."""
    body = json.dumps(chat(padding="é" * 3000), ensure_ascii=False).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 701):
            yield body[at : at + 701]

    answer = await quiet.client.post(CHAT, content=pieces())
    (seen,) = quiet.received

    assert (200, body) == (answer.status_code, seen.body)
    assert (str(len(body)), None) == (seen.headers["content-length"], seen.headers.get("transfer-encoding"))


async def test_unknown_fields_and_odd_spelling_survive(quiet: Stack) -> None:
    """The engine reads the very bytes of the client: blanks, escapes, field order, numbers, fields nobody knows."""
    body = (
        b'\n{ "x_unknown" : {"deep":[1,2.50,1e3,{"k":null}]},'
        b'\t"messages":[ {"role" :"user","content":"Gr\\u00fc\\u00dfe\\/\xc3\xa9"} ],'
        b'"temperature":0.0,"max_tokens" :3, "chat_template_kwargs":{"enable_thinking":false},"model" : "demo" }\r\n'
    )
    answer = await quiet.client.post(CHAT, content=body)
    (seen,) = quiet.received

    assert answer.status_code == 200
    assert body == seen.body


@pytest.mark.parametrize("name", ["gpt-4o-mini", "gpt-4o\\u002dmini"], ids=["plain", "escaped"])
async def test_an_alias_is_replaced_and_nothing_else(quiet: Stack, name: str) -> None:
    """The model's name is spliced in where the alias stood; the bytes around it stay, a second "model" inside them too."""
    body = '{"messages":[{"role":"user","content":"my \\"model\\": gpt-4o-mini"}] , "model": "%s","max_tokens":2}'
    answer = await quiet.client.post(CHAT, content=(body % name).encode())
    (seen,) = quiet.received

    assert answer.status_code == 200
    assert (body % "demo").encode() == seen.body


async def test_a_large_body_arrives_intact(quiet: Stack) -> None:
    """Ten megabytes cross the gateway unchanged."""
    body = json.dumps(chat(padding="x" * 10_000_000)).encode()
    answer = await quiet.client.post(CHAT, content=body)
    (seen,) = quiet.received

    assert answer.status_code == 200
    assert (len(body), hashlib.sha256(body).hexdigest()) == (seen.size, seen.sha256)


async def test_connections_are_kept_on_both_sides(quiet: Stack) -> None:
    """Calls in a row, streamed or not, share one connection to the gateway and one from it to the engine."""
    async with visitor(quiet.gateway.port) as client:
        for stream in (False, True, False, True):
            await client.send(post(chat(stream=stream), x_draftlane_route="baseline"))
            answer = await client.answer()

            assert (answer.status, answer.whole) == (200, True)
    assert len({seen.request.connection for seen in quiet.received}) == 1
    assert len(quiet.received) == 4


async def test_requests_sent_ahead_are_answered_in_order(quiet: Stack) -> None:
    """Two requests in one write get two answers, the first one's first."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(
            post(chat(max_tokens=2), x_request_id="first") + post(chat(max_tokens=2), x_request_id="second")
        )

        assert [(await client.answer()).header("x-request-id") for _ in range(2)] == ["first", "second"]


async def test_a_client_that_waits_for_100_continue_gets_it(quiet: Stack) -> None:
    """`Expect: 100-continue` is answered before the body is sent, and only when the body is wanted."""
    async with visitor(quiet.gateway.port) as client:
        head, _, body = post(chat(max_tokens=2), expect="100-continue").partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert b"HTTP/1.1 100 " in await client.head()
        await client.send(body)
        assert (await client.answer()).status == 200

        head, _, _ = post(chat(), expect="100-continue", authorization="").partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert (await client.answer()).status == 401


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_connection_that_is_not_kept_ends_after_its_answer(quiet: Stack, version: str) -> None:
    """HTTP/1.0, and `Connection: close`, end with the connection."""
    async with visitor(quiet.gateway.port) as client:
        request = post(chat(max_tokens=2), connection="close" if version == "1.1" else "")
        await client.send(request.replace(b"HTTP/1.1", b"HTTP/" + version.encode(), 1))

        assert (await client.answer()).status == 200
        assert await client.ended()


async def test_a_stream_for_an_old_client_ends_with_its_connection(quiet: Stack) -> None:
    """HTTP/1.0 knows no chunks: events come bare, and the end of the connection is the end."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(post(chat(max_tokens=3, stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = await client.answer()

    assert (answer.status, answer.header("transfer-encoding"), answer.header("connection")) == (200, None, "close")
    assert answer.body.startswith(b"data: {")
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_wish_for_another_protocol_is_passed_over(quiet: Stack, method: str) -> None:
    """Java's client offers HTTP/2 with its first request, body and all; it is served as the HTTP/1.1 request that it is."""
    wish = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAAAAIAAAAB"}
    request = post(chat(max_tokens=3), **wish)
    if method == "GET":
        request = post(b"", "/v1/models", content_length="", **wish).replace(b"POST", b"GET", 1)
    async with visitor(quiet.gateway.port) as client:
        for _ in range(2):
            await client.send(request)
            answer = await client.answer()

            assert (answer.status, answer.whole) == (200, True)
    assert not {"upgrade", "http2-settings"} & {name for seen in quiet.received for name in seen.headers}


async def test_a_line_break_after_the_body_disturbs_nothing() -> None:
    """Old clients send one; it is no second request, even when the answer takes longer than a head may."""
    async with stack(speed=5, limits={"header_seconds": 0.1}) as it, visitor(it.gateway.port) as client:
        for _ in range(2):
            await client.send(post(chat(max_tokens=30), x_draftlane_route="baseline") + b"\r\n")
            answer = await client.answer()

            assert (answer.status, answer.whole) == (200, True)


async def test_other_paths_pass_with_their_query_and_body(quiet: Stack) -> None:
    """A /v1 path that is not scored reaches a baseline engine with the same hygiene, its query and its bytes."""
    answer = await quiet.client.post(
        "/v1/messages/count_tokens?beta=true",
        json={"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "one two three"}]},
        headers={"cookie": "a=b", **KEYED},
    )

    assert (answer.status_code, answer.headers["x-draftlane-pool"]) == (200, "base")
    assert answer.json()["input_tokens"] > 0
    await until(lambda: quiet.gateway.finished)
    assert [call.endpoint for call in quiet.gateway.finished] == ["other"]
