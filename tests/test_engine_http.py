"""The embedded engine's HTTP server, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from engines import chat, engine, until

COUNT = json.dumps(chat("Count from 1 to 3.")).encode()


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    """Return a request with a body of known length."""
    lines = [f"POST {path} HTTP/{version}", "host: engine", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def exchange(url: str, *pieces: bytes, ends: bool = False) -> bytes:
    """Send the pieces one after the other; return what came back until the server closed, or fell silent after answers."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if not ends:
            return await asyncio.wait_for(reader.read(-1), 5)
        return await asyncio.wait_for(reader.readuntil(b"}}" if b"POST" in pieces[0] else b"\r\n\r\n"), 5)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_request_in_single_bytes():
    """A request that arrives byte by byte is answered like any other."""
    async with engine() as (running, _):
        request = post(COUNT, "connection: close")
        received = await exchange(running.url, *(request[at : at + 1] for at in range(len(request))))

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"content":"1, 2, 3"' in received


async def test_pipelined_requests_are_answered_in_order():
    """Requests sent at once over one connection get their answers one after the other, in order."""
    health = b"GET /health HTTP/1.1\r\nhost: engine\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n"
    async with engine() as (running, _):
        received = await exchange(running.url, post(COUNT) + health * 2000 + last)

    assert received.count(b"HTTP/1.1 200 OK") == 2001
    assert received.find(b'"1, 2, 3"') < received.find(b"content-length: 0") < received.find(b"404 Not Found")


async def test_chunked_upload():
    """A body may come in chunks, in pieces of any size."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(COUNT[at : at + 7]), COUNT[at : at + 7]) for at in range(0, len(COUNT), 7))
    async with engine() as (running, _):
        received = await exchange(running.url, head, chunks[:20], chunks[20:] + b"0\r\n\r\n")

    assert b'"1, 2, 3"' in received
    assert running.record[0].body == COUNT


async def test_expect_continue():
    """A client that waits to be asked for its body is asked."""
    request = post(COUNT, "expect: 100-continue", "connection: close")
    head, _, body = request.partition(b"\r\n\r\n")
    async with engine() as (running, _):
        received = await exchange(running.url, head + b"\r\n\r\n", body)

    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_chunks_of_a_stream():
    """A streamed answer is chunked: a chunk per event, and the last chunk empty."""
    body = json.dumps(chat("Count from 1 to 3.", stream=True)).encode()
    async with engine() as (running, _):
        received = await exchange(running.url, post(body, "connection: close"))

    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    chunks = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if not chunk:
            break
        chunks.append(chunk)
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert rest == b""


async def test_http_1_0():
    """A client of HTTP/1.0 gets its stream unchunked, ended by the connection's end."""
    body = json.dumps(chat("Count from 1 to 3.", stream=True)).encode()
    async with engine() as (running, _):
        received = await exchange(running.url, post(body, version="1.0"))

    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
    ],
    ids=["no method", "no colon", "large headers", "two lengths"],
)
async def test_what_is_no_http(request_: bytes, status: bytes):
    """What is no proper request is refused once and the connection closed."""
    async with engine() as (running, client):
        received = await exchange(running.url, request_)
        health = await client.get("/health")

    assert received.startswith(b"HTTP/1.1 " + status)
    assert received.count(b"HTTP/1.1") == 1
    assert health.status_code == 200


async def test_upgrade_is_declined():
    """A request to upgrade is answered as it stands."""
    request = b"GET /version HTTP/1.1\r\nhost: engine\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n"
    async with engine() as (running, _):
        received = await exchange(running.url, request, ends=True)

    assert received.startswith(b"HTTP/1.1 200 OK")


async def test_garbage_during_a_stream_does_not_get_into_it():
    """What is no request, sent while an answer is written, ends the connection without another byte."""
    body = json.dumps(chat("Count from 1 to 500.", stream=True)).encode()
    async with engine(speed=20) as (running, _):
        host, _, port = running.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(body))
        received = await reader.readuntil(b'"content":"1"')
        writer.write(b"NONSENSE\r\n\r\n")
        try:
            received += await reader.read(-1)
        except ConnectionResetError:
            received += b""
        writer.close()
        await until(lambda: running.batch.running == 0)

    assert received.count(b"HTTP/1.1") == 1
    assert b"[DONE]" not in received


async def test_a_head_without_an_end():
    """A header that never ends is cut off before it fills the memory."""
    sent = 0
    async with engine() as (running, client):
        host, _, port = running.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            while sent < 64:
                writer.write(b"y" * 65_536)
                await writer.drain()
                sent += 1
        writer.close()
        health = await client.get("/health")

    assert 8 <= sent < 64
    assert health.status_code == 200
