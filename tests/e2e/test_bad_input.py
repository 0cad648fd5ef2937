"""Hostile and mistaken input: a quick 4xx OpenAI error that names the field, no engine touched, nothing left behind."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes import Answer, Visitor, post, visitor

from e2e.stack import COUNTING, KEYED, Stack, chat, stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
ENDPOINTS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")
USER = {"role": "user", "content": "hi"}
LIMIT = 20 * 1024 * 1024  # limits.max_body_bytes
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "demo", "messages": [USER]},
    "/v1/completions": {"model": "demo", "prompt": "hi"},
    "/v1/responses": {"model": "demo", "input": "hi"},
    "/v1/messages": {"model": "demo", "messages": [USER], "max_tokens": 9},
}
WRONG: list[tuple[str, str, Any, str]] = [
    (CHAT, "model", 1, "model"),
    (CHAT, "model", None, "model"),
    (CHAT, "model", "", "model"),
    (CHAT, "model", ["demo"], "model"),
    (CHAT, "messages", None, "messages"),
    (CHAT, "messages", [], "messages"),
    (CHAT, "messages", "hi", "messages"),
    (CHAT, "messages", {"role": "user"}, "messages"),
    (CHAT, "messages", [1], "messages[0]"),
    (CHAT, "messages", [USER, None], "messages[1]"),
    (CHAT, "messages", [{"content": "hi"}], "messages[0].role"),
    (CHAT, "messages", [USER, {"role": 1, "content": "hi"}], "messages[1].role"),
    (CHAT, "messages", [{"role": "user", "content": 1}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": {"text": "hi"}}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": "hi"}, 1]}], "messages[0].content[1]"),
    (CHAT, "stream", "yes", "stream"),
    (CHAT, "stream", 1, "stream"),
    (CHAT, "stream_options", "usage", "stream_options"),
    (CHAT, "stream_options", [], "stream_options"),
    (CHAT, "temperature", "hot", "temperature"),
    (CHAT, "top_p", {}, "top_p"),
    (CHAT, "min_p", [], "min_p"),
    (CHAT, "top_k", "all", "top_k"),
    (CHAT, "n", "two", "n"),
    (CHAT, "max_tokens", "many", "max_tokens"),
    (CHAT, "max_completion_tokens", True, "max_completion_tokens"),
    (CHAT, "stop", 1, "stop"),
    (CHAT, "stop", ["a", 1], "stop[1]"),
    (CHAT, "tools", {}, "tools"),
    (CHAT, "tools", ["search"], "tools[0]"),
    (CHAT, "tool_choice", 1, "tool_choice"),
    (CHAT, "response_format", "json", "response_format"),
    (CHAT, "logit_bias", [1], "logit_bias"),
    (CHAT, "logprobs", "yes", "logprobs"),
    (CHAT, "top_logprobs", "five", "top_logprobs"),
    (CHAT, "presence_penalty", "some", "presence_penalty"),
    ("/v1/completions", "prompt", None, "prompt"),
    ("/v1/completions", "prompt", 1, "prompt"),
    ("/v1/completions", "model", 1, "model"),
    ("/v1/completions", "best_of", "all", "best_of"),
    ("/v1/responses", "input", None, "input"),
    ("/v1/responses", "input", 1, "input"),
    ("/v1/responses", "instructions", 1, "instructions"),
    ("/v1/responses", "text", "json", "text"),
    ("/v1/responses", "max_output_tokens", "many", "max_output_tokens"),
    ("/v1/messages", "messages", [], "messages"),
    ("/v1/messages", "messages", "hi", "messages"),
    ("/v1/messages", "system", 1, "system"),
    ("/v1/messages", "max_tokens", "many", "max_tokens"),
    ("/v1/messages", "tools", "search", "tools"),
]
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n\t ",
    "text": b"count to ten",
    "null": b"null",
    "a number": b"1",
    "an array": b"[]",
    "a string": b'"demo"',
    "cut short": b'{"model":"demo","messages":[{"role":"user","content":"hi',
    "an open object": b'{"model":"demo"',
    "trailing text": b'{"model":"demo","messages":[{"role":"user","content":"hi"}]} and more',
    "two objects": b'{"model":"demo"}{"model":"demo"}',
    "a trailing comma": b'{"model":"demo","messages":[{"role":"user","content":"hi"}],}',
    "single quotes": b"{'model':'demo'}",
    "NaN": b'{"model":"demo","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
    "a raw NUL": b'{"model":"demo","messages":[{"role":"user","content":"a\x00b"}]}',
    "a raw NUL at the end": b'{"model":"demo","messages":[{"role":"user","content":"hi"}]}\x00',
    "a raw line break": b'{"model":"demo","messages":[{"role":"user","content":"a\nb"}]}',
    "a lone surrogate": b'{"model":"demo","messages":[{"role":"user","content":"\\ud800"}]}',
    "a bad escape": b'{"model":"demo","messages":[{"role":"user","content":"\\x41"}]}',
    "UTF-16": json.dumps(chat("hi")).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(chat("hi")).encode(),
    "a form": b"model=demo&messages=hi",
    "deep arrays": b'{"model":"demo","messages":' + b"[" * 200_000,
    "deep objects": b'{"model":"demo","messages":' + b'{"a":' * 200_000,
    "deep and well-formed": b'{"model":"demo","metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep in a message": b'{"model":"demo","messages":[{"role":"user","content":'
    + b"[" * 50_000
    + b"]" * 50_000
    + b"}]}",
}


def error_of(answer: httpx.Response | Answer, status: int) -> dict[str, Any]:
    """Return the OpenAI error object of an answer with this status; the object is complete and says something."""
    body = answer.json() if isinstance(answer, httpx.Response) else answer.json
    code = answer.status_code if isinstance(answer, httpx.Response) else answer.status

    assert (status, {"message", "type", "param", "code"}) == (code, set(body["error"]))
    assert body["error"]["message"]
    assert body["error"]["type"]

    found: dict[str, Any] = body["error"]
    return found


async def untouched(it: Stack) -> None:
    """No request has reached an engine, nothing is held, every call was settled as the client's fault."""
    await it.at_rest()

    assert it.received == []
    assert {"rejected"} >= {call.outcome for call in it.gateway.finished}


@pytest.mark.parametrize(("path", "field", "value", "param"), WRONG)
async def test_a_wrong_type_is_a_400_that_names_the_field(
    quiet: Stack, path: str, field: str, value: Any, param: str
) -> None:
    """A field of the wrong type, or a required one that is absent, is refused by its name before any engine is asked."""
    answer = await quiet.client.post(path, json={**BODIES[path], field: value})

    error = error_of(answer, 400)
    assert (param, "invalid_request_error") == (error["param"], error["type"])
    assert param in error["message"]
    await untouched(quiet)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_is_not_a_json_object_is_a_400(quiet: Stack, path: str, body: bytes) -> None:
    """Bytes that are no JSON object, or one nested too deeply, are refused on every endpoint before any engine is asked."""
    answer = await quiet.client.post(path, content=body, headers={"content-type": "application/json"})

    assert error_of(answer, 400)["type"] == "invalid_request_error"
    await untouched(quiet)


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_invalid_utf8_is_a_400_that_says_where(quiet: Stack, path: str) -> None:
    """Invalid UTF-8 inside an otherwise good body is refused with the place of the byte."""
    body = json.dumps({**BODIES[path], "user": "?"}).encode().replace(b"?", b"\xff\xfe")
    answer = await quiet.client.post(path, content=body)

    error = error_of(answer, 400)
    assert error["code"] == "invalid_utf8"
    assert f"byte {body.index(0xFF)}" in error["message"]
    await untouched(quiet)


@pytest.mark.parametrize(
    "name", ["gpt-99", "demo ", "DEMO", "de\0mo", "../demo", "demo@fault=500", "模型", "x" * 100_000]
)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_an_unknown_model_is_a_404_that_names_it_briefly(quiet: Stack, path: str, name: str) -> None:
    """A model that nobody serves is a 404 about `model`, however long or strange its name."""
    answer = await quiet.client.post(path, json={**BODIES[path], "model": name})

    error = error_of(answer, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert len(error["message"]) < 300
    await untouched(quiet)


@pytest.mark.parametrize("route", ["fast", "", "speculative, baseline", "Ünknown"])
async def test_an_unknown_route_is_a_400_that_names_the_header(quiet: Stack, route: str) -> None:
    """x-draftlane-route takes three values and no others."""
    answer = await quiet.client.post(CHAT, json=chat(), headers=[(b"x-draftlane-route", route.encode())])

    assert error_of(answer, 400)["param"] == "x-draftlane-route"
    await untouched(quiet)


@pytest.mark.parametrize(
    "key",
    [None, "Bearer sk-wrong", "Bearer ", "Bearer", "Basic c2stdGVzdA==", "sk-test", "Bearer " + "x" * 50_000],
    ids=["none", "wrong", "empty", "bare", "basic", "no scheme", "long"],
)
@pytest.mark.parametrize("path", [*ENDPOINTS, "/v1/embeddings"])
async def test_no_key_is_a_401_before_the_body_is_looked_at(quiet: Stack, path: str, key: str | None) -> None:
    """A caller without a valid key learns nothing but that, whatever the body; the key is not repeated."""
    async with visitor(quiet.gateway.port) as stranger:
        await stranger.send(post(b"{not json", path, authorization=key or ""))
        answer = await stranger.answer()

    error = error_of(answer, 401)
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert b"sk-wrong" not in answer.raw
    await untouched(quiet)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_another_method_is_a_405_that_names_the_right_one(quiet: Stack, path: str, method: str) -> None:
    """Scored endpoints take POST; anything else is told so, and HEAD gets no body."""
    answer = await quiet.client.request(method, path)

    if method == "HEAD":
        assert (answer.status_code, answer.content) == (405, b"")
    else:
        error_of(answer, 405)
    assert "POST" in answer.headers["allow"]
    await untouched(quiet)


@pytest.mark.parametrize(
    "path", ["/", "/v2/chat/completions", "/chat/completions", "/v1", "/%2e%2e/etc/passwd", "/v1/models/x/y"]
)
async def test_an_unknown_path_is_a_404(quiet: Stack, path: str) -> None:
    """A path that neither the gateway nor an engine serves is an OpenAI error too."""
    error_of(await quiet.client.get(path), 404)

    await untouched(quiet)


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        ("br", b"x", "unsupported_encoding"),
        ("zstd", b"x", "unsupported_encoding"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), "unsupported_encoding"),
        ("gzip", b"{}", "invalid_encoding"),
        ("gzip", b"", "invalid_encoding"),
        ("gzip", gzip.compress(b"{}" * 999)[:-9], "invalid_encoding"),
        ("deflate", gzip.compress(b"{}"), "invalid_encoding"),
    ],
)
async def test_a_bad_content_encoding_is_a_400_that_names_the_header(
    quiet: Stack, encoding: str, body: bytes, code: str
) -> None:
    """An encoding that is not served, or bytes that are not in it, are refused."""
    answer = await quiet.client.post(CHAT, content=body, headers={"content-encoding": encoding})

    error = error_of(answer, 400)
    assert ("content-encoding", code) == (error["param"], error["code"])
    await untouched(quiet)


async def test_a_body_announced_too_large_is_refused_before_it_is_sent(quiet: Stack) -> None:
    """50 MB by content-length are a 413 while the client has not sent a byte of them."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(post(b"", content_length="50000000"))
        answer = await client.answer()

    assert error_of(answer, 413)["code"] == "request_too_large"
    await untouched(quiet)


async def _pieces(piece: bytes, count: int, sent: list[int]) -> AsyncIterator[bytes]:
    for _ in range(count):
        sent.append(len(piece))
        yield piece


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
async def test_50_mb_are_a_413_however_they_come(quiet: Stack, *, announced: bool) -> None:
    """A client that sends 50 MB in one go, or in chunks without telling, reads its 413."""
    sent: list[int] = []
    body = b"x" * 50_000_000 if announced else _pieces(b"x" * 1_000_000, 50, sent)
    answer = await quiet.client.post(CHAT, content=body)

    assert error_of(answer, 413)["code"] == "request_too_large"
    await untouched(quiet)


async def test_a_small_body_that_unpacks_to_50_mb_is_a_413(quiet: Stack) -> None:
    """A compression bomb is refused by its unpacked size."""
    bomb = gzip.compress(b" " * 50_000_000)
    answer = await quiet.client.post(CHAT, content=bomb, headers={"content-encoding": "gzip"})

    assert error_of(answer, 413)["code"] == "request_too_large"
    await untouched(quiet)


@pytest.mark.parametrize(
    "headers",
    [{"x-large": "a" * 70_000}, {f"x-{index}": "a" * 900 for index in range(90)}, {"cookie": "a=b;" * 20_000}],
    ids=["one", "many", "cookies"],
)
async def test_huge_headers_are_a_431(quiet: Stack, headers: dict[str, str]) -> None:
    """Headers over the limit are refused, in one line or in many."""
    answer = await quiet.client.post(CHAT, json=chat(), headers=headers)

    assert error_of(answer, 431)["code"] == "headers_too_large"
    await untouched(quiet)


async def test_a_huge_address_is_a_431(quiet: Stack) -> None:
    """A request line over the limit is refused like a header."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(b"GET /v1/models?" + b"a" * 66_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = await client.answer()

    assert error_of(answer, 431)["code"] == "headers_too_large"
    await untouched(quiet)


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"HELO gateway\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: five\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nbad header: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n",
        b"POST /v1/chat/completions HTTP/9.9\r\nhost: a\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v1/\xff HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
    ids=[
        "TLS",
        "no target",
        "SMTP",
        "two lengths",
        "no number",
        "negative",
        "blank in name",
        "NUL",
        "version",
        "tunnel",
        "no ASCII",
    ],
)
async def test_what_is_not_http_is_a_400_and_the_end_of_the_connection(quiet: Stack, head: bytes) -> None:
    """Bytes that are no HTTP/1.1 request, or could be read as two, get one error and no second chance."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(head)

        assert error_of(await client.answer(), 400)["code"] == "invalid_http"
        assert await client.ended()
    await untouched(quiet)


async def test_a_broken_chunk_ends_the_connection(quiet: Stack) -> None:
    """A chunked body whose framing breaks off into nonsense is refused; its call ends and holds nothing."""
    async with visitor(quiet.gateway.port) as client:
        await client.send(post(b"", content_length="", transfer_encoding="chunked") + b"5\r\nhello\r\nzz\r\n")

        error_of(await client.answer(), 400)
        assert await client.ended()
    await quiet.at_rest()
    assert quiet.received == []


async def test_the_gateway_serves_on_after_all_this(shared: Stack) -> None:
    """After hostile input a plain call is answered as ever."""
    answer = await shared.client.post(CHAT, json=chat(COUNTING))

    assert answer.status_code == 200
    assert "1" in answer.json()["choices"][0]["message"]["content"]


async def test_mutilated_requests_never_cause_an_internal_error(quiet: Stack) -> None:
    """A good request with bytes overwritten, cut out or doubled is answered, by the gateway or an engine, never with a 5xx."""
    chance = random.Random(7)
    good = json.dumps(chat("Say hi.", max_tokens=2, stop=["x"], tools=[], logit_bias={}, n=1)).encode()
    for _ in range(150):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body))
            body[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        answer = await quiet.client.post(CHAT, content=bytes(body))

        assert answer.status_code < 500, bytes(body)
    assert "internal" not in {call.outcome for call in quiet.gateway.finished}


async def slow(client: Visitor, data: bytes, seconds: float) -> None:
    """Send a byte now and then until the other side has enough."""
    try:
        for byte in data:
            await client.send(bytes([byte]))
            await asyncio.sleep(seconds)
    except ConnectionError:
        return


@pytest.mark.parametrize(
    "data",
    [post(chat())[:40], post(chat()).split(b"\r\n\r\n")[0] + b"\r\n"],
    ids=["request line", "all but the last line"],
)
async def test_a_head_that_never_ends_is_a_408(data: bytes) -> None:
    """A client that dribbles its headers is told so and cut when the time for a head is over."""
    async with stack(limits={"header_seconds": 0.3}) as it, visitor(it.gateway.port) as client:
        dribble = asyncio.create_task(slow(client, data, 0.02))

        assert error_of(await client.answer(), 408)["code"] == "header_timeout"
        assert await client.ended()
        await dribble
        await untouched(it)


async def test_a_silent_connection_is_closed() -> None:
    """A client that connects and says nothing is closed without a word."""
    async with stack(limits={"header_seconds": 0.1}) as it, visitor(it.gateway.port) as client:
        assert await client.ended()
        await untouched(it)


async def test_a_body_that_never_ends_is_a_408_and_cut() -> None:
    """A client that dribbles its body is told so; if it goes on, the connection ends."""
    async with stack(limits={"header_seconds": 0.2}) as it, visitor(it.gateway.port) as client:
        await client.send(post(b"", content_length="1000"))
        dribble = asyncio.create_task(slow(client, b'{"model":' + b" " * 900, 0.02))

        assert error_of(await client.answer(), 408)["code"] == "body_timeout"
        assert await client.ended()
        await dribble
        await untouched(it)


async def test_an_upload_that_goes_on_after_its_refusal_is_cut() -> None:
    """A client without a key that keeps uploading does not keep its connection."""
    async with stack(limits={"header_seconds": 0.2}) as it, visitor(it.gateway.port) as client:
        await client.send(post(b"", authorization="", content_length="1000000"))
        dribble = asyncio.create_task(slow(client, b"x" * 1000, 0.02))

        error_of(await client.answer(), 401)
        assert await client.ended()
        await dribble
        await untouched(it)


async def test_a_slow_body_that_comes_is_served() -> None:
    """A body that takes longer than a head may, but keeps coming at the pace of a poor line, is read to its end."""
    async with stack(limits={"header_seconds": 0.2}) as it, visitor(it.gateway.port) as client:
        body = json.dumps({**chat(max_tokens=1), "padding": "x" * 20_000}).encode()
        head, _, _ = post(body).partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        for at in range(0, len(body), 2000):
            await client.send(body[at : at + 2000])
            await asyncio.sleep(0.05)

        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("origin", "allowed"), [("https://app.example.com", True), ("https://evil.example.com", False)]
)
async def test_cors_answers_the_configured_origins_only(origin: str, *, allowed: bool) -> None:
    """A page of a configured origin may call and read what the gateway decided; no other page may."""
    async with stack(server={"cors_origins": ["https://app.example.com"]}) as it:
        asks = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        async with httpx.AsyncClient(base_url=it.gateway.url) as page:
            preflight = await page.options(CHAT, headers=asks)
        answer = await it.client.post(CHAT, json=chat(), headers={"origin": origin})

    found = (preflight.headers.get("access-control-allow-origin"), answer.headers.get("access-control-allow-origin"))
    assert ((origin, origin) if allowed else (None, None)) == found
    assert allowed == (
        "x-draftlane-pool" in answer.headers.get("access-control-expose-headers", "") and found[0] is not None
    )


async def test_without_configured_origins_options_tells_methods_alone(quiet: Stack) -> None:
    """OPTIONS without CORS says which methods there are and allows no page anything."""
    answer = await quiet.client.options(CHAT, headers={"origin": "https://app.example.com"})

    assert (answer.status_code, answer.headers["allow"]) == (204, "POST, OPTIONS")
    assert "access-control-allow-origin" not in answer.headers
    await untouched(quiet)


async def test_head_of_a_path_that_engines_serve_has_no_body_and_does_not_hang(quiet: Stack) -> None:
    """HEAD passes through to an engine and comes back with the headers alone, twice on one connection."""
    for _ in range(2):
        answer = await quiet.client.head("/v1/embeddings", headers=KEYED)

        assert answer.content == b""
        assert 400 <= answer.status_code < 500
