"""The server as clients and supervisors meet it: hostile requests are refused at the door, and a stop loses no running call."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fakes import (
    ANSWER,
    CHAT,
    CHAT_EVENTS,
    DONE,
    END,
    SILENCE,
    SSE_HEAD,
    STREAM,
    Answer,
    ScriptedEngine,
    Step,
    Visitor,
    chunk,
    post,
    reply,
    scripted,
    visitor,
)
from harness import KEY, Running, config_for, serving, until

from gateway.config import key_digest

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = {"max_header_bytes": 4096, "header_seconds": 0.3, "max_body_bytes": 1_000_000}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[Running, ScriptedEngine]]:
    """Serve a gateway with small limits before one engine."""
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"base": [engine.url]}, limits=LIMITS)) as gateway,
    ):
        yield gateway, engine


@pytest.fixture(name="engine")
def _engine(served: tuple[Running, ScriptedEngine]) -> ScriptedEngine:
    """Return the engine, which has seen nothing yet."""
    served[1].seen.clear()
    return served[1]


@pytest.fixture(name="gateway")
def _gateway(served: tuple[Running, ScriptedEngine]) -> Running:
    """Return the gateway."""
    return served[0]


async def say(gateway: Running, *parts: bytes | float) -> Answer:
    """Send parts, with pauses where they are numbers, and read what is answered."""
    async with visitor(gateway.port) as guest:
        for part in parts:
            if isinstance(part, bytes):
                with contextlib.suppress(ConnectionError):
                    await guest.send(part)
            else:
                await asyncio.sleep(part)
        return await guest.answer()


async def still_serves(gateway: Running) -> bool:
    """Whether the next client is served as if nothing had been, and nothing runs."""
    answer = await say(gateway, post(CHAT))
    await until(lambda: not gateway.gateway.api.running)
    return answer.json == ANSWER and gateway.gateway.pipeline.live.pools["base"].running == 0


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-test\r\n"
BODY = json.dumps(CHAT).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
MALFORMED: dict[str, bytes] = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"POST /v1/chat/completions\r\n\r\n",
    "a version of its own": b"POST / HTTP/7.3\r\nhost: x\r\n\r\n",
    "no method": b"HELLO / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a blank in a name": HEAD + b"bad name: x\r\n\r\n",
    "a blank before the colon": HEAD + b"content-length : 5\r\n\r\nhello",
    "a folded line": HEAD + b"x: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "a bare line feed": HEAD.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") + b"\n" + BODY,
    "a NUL in a value": HEAD + b"x: a\x00b\r\n\r\n",
    "no length": HEAD + b"content-length: five\r\n\r\nhello",
    "a negative length": HEAD + b"content-length: -5\r\n\r\nhello",
    "a signed length": HEAD + b"content-length: +5\r\n\r\nhello",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "length and chunks": HEAD + LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
    "an unknown framing": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a huge length": HEAD + b"content-length: 99999999999999999999999\r\n\r\n",
    "bytes in the target": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
async def test_what_is_no_http_is_refused(gateway: Running, engine: ScriptedEngine, request_bytes: bytes) -> None:
    """Malformed requests, and those that proxies could read differently, get a 400 and the end of the connection."""
    async with visitor(gateway.port) as guest:
        await guest.send(request_bytes)
        answer = await guest.answer()

        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["message"]
        assert answer.header("connection") == "close"
        assert await guest.ended()
    assert engine.seen == []
    assert await still_serves(gateway)


async def test_a_bad_chunk_is_refused(gateway: Running, engine: ScriptedEngine) -> None:
    """A body whose frame breaks is no request, and no half of it reaches an engine."""
    async with visitor(gateway.port) as guest:
        await guest.send(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await guest.send(b"zz\r\n")
        with contextlib.suppress(asyncio.IncompleteReadError):
            assert (await guest.answer()).status == 400
        assert await guest.ended()

    assert engine.seen == []
    assert await still_serves(gateway)


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"x: " + b"a" * 5000,
        HEAD + b"x: " + b"a" * 5000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"x: y\r\n" * 1000 + LENGTH + b"\r\n" + BODY,
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /?" + b"a" * 500_000,
    ],
    ids=["endless value", "large value", "many", "long target", "endless target"],
)
async def test_large_heads_are_refused(gateway: Running, engine: ScriptedEngine, head: bytes) -> None:
    """A head over the limit is a 431, whether it ends or not."""
    answer = await say(gateway, head)

    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    assert engine.seen == []
    assert await still_serves(gateway)


async def test_a_large_body_is_no_large_head(gateway: Running, engine: ScriptedEngine) -> None:
    """A body beyond the head's limit that comes in pieces, slower than a head may, is served; so is the next request."""
    body = json.dumps({**CHAT, "x": "x" * 500_000}).encode()
    whole = post(body)
    async with visitor(gateway.port) as guest:
        for at in range(0, len(whole), 100_000):
            await guest.send(whole[at : at + 100_000])
            await asyncio.sleep(0.07)
        assert (await guest.answer()).json == ANSWER
        await guest.send(post(CHAT))
        assert (await guest.answer()).json == ANSWER

    assert engine.seen[0].body == body


async def test_a_response_may_take_longer_than_a_head(gateway: Running, engine: ScriptedEngine) -> None:
    """The time for heads does not run while an answer does, on a fresh connection or a kept one."""
    slow: list[Step] = [SSE_HEAD, *map(chunk, CHAT_EVENTS), 0.5, chunk(DONE), END]
    engine.then(slow, slow, [reply(ANSWER)])
    async with visitor(gateway.port) as guest:
        for _ in range(2):
            await guest.send(post(STREAM)[:-5])
            await asyncio.sleep(0.05)
            await guest.send(post(STREAM)[-5:])
            answer = await guest.answer()
            assert (answer.whole, answer.body) == (True, b"".join([*CHAT_EVENTS, DONE]))


@pytest.mark.parametrize("before", [b"", post(CHAT)], ids=["fresh", "kept"])
async def test_a_slow_head_is_cut(gateway: Running, engine: ScriptedEngine, before: bytes) -> None:
    """A client that sends its head byte by byte gets a 408 when the time is over."""
    async with visitor(gateway.port) as guest:
        if before:
            await guest.send(before)
            assert (await guest.answer()).status == 200
        answering = asyncio.create_task(guest.answer())
        for byte in HEAD:
            if not answering.done():
                await guest.send(bytes([byte]))
                await asyncio.sleep(0.02)
        answer = await answering

        assert (answer.status, answer.error["code"]) == (408, "header_timeout")
    assert len(engine.seen) == bool(before)


async def test_a_silent_client_is_cut(gateway: Running) -> None:
    """A connection that never says anything ends without a word."""
    async with visitor(gateway.port) as guest:
        assert await guest.ended()


async def test_a_slow_body_is_cut(gateway: Running, engine: ScriptedEngine) -> None:
    """A client that announces a body and does not send it gets a 408, and no engine is asked."""
    answer = await say(gateway, HEAD + LENGTH + b"\r\n" + BODY[:9])

    assert (answer.status, answer.error["code"]) == (408, "body_timeout")
    assert engine.seen == []
    assert await still_serves(gateway)


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (HEAD + b"content-length: 50000000\r\n\r\n", "request_too_large"),
        (HEAD + b"content-length: 50000000\r\nexpect: 100-continue\r\n\r\n", "request_too_large"),
        (HEAD + b"content-length: 1000001\r\n\r\n" + b"x" * 1_000_001, "request_too_large"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 200_000) * 6, "request_too_large"),
    ],
    ids=["announced", "asked for", "sent", "in chunks"],
)
async def test_large_bodies_are_refused(
    gateway: Running, engine: ScriptedEngine, request_bytes: bytes, code: str
) -> None:
    """A body over the limit is a 413 at once, before it has come, and reaches no engine."""
    answer = await say(gateway, request_bytes)

    assert (answer.status, answer.error["code"]) == (413, code)
    assert engine.seen == []
    assert await still_serves(gateway)


async def test_a_decompression_bomb_is_refused(gateway: Running, engine: ScriptedEngine) -> None:
    """What unpacks to more than the limit is a 413; what does not is forwarded unpacked."""
    answer = await say(gateway, post(gzip.compress(bytes(20_000_000)), content_encoding="gzip"))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert engine.seen == []
    answer = await say(gateway, post(gzip.compress(BODY), content_encoding="gzip"))

    assert answer.json == ANSWER
    assert (engine.seen[0].body, engine.seen[0].header("content-encoding")) == (BODY, None)


async def test_a_smuggled_request_stays_a_body(gateway: Running, engine: ScriptedEngine) -> None:
    """Bytes that look like another request inside of a body are that body's, whatever the engine's connection carries next."""
    inner = b"GET /v1/secrets HTTP/1.1\r\nhost: x\r\n\r\n"
    body = json.dumps({**CHAT, "x": inner.decode()}).encode()
    await say(gateway, post(body))
    await say(gateway, post(CHAT))

    assert [seen.target for seen in engine.seen] == ["/v1/chat/completions"] * 2


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/v1/chat/completions/../../../healthz", 200),
        (b"/v1/%2e%2e/draftlane/state", 200),
        (b"http://elsewhere.example/healthz", 200),
        (b"/draftlane/../healthz", 401),
        (b"//healthz", 404),
        (b"/healthz/", 404),
        (b"/", 404),
        (b"*", 404),
    ],
)
async def test_paths_are_not_walked(gateway: Running, engine: ScriptedEngine, target: bytes, status: int) -> None:
    """No dots lead from an engine's path to an operator's or back, and no other host is ever asked."""
    answer = await say(gateway, b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-test\r\n\r\n")

    assert answer.status in {status, 404}
    assert b"replicas" not in answer.body
    assert all(seen.target == target.decode() for seen in engine.seen)


async def test_garbage_behind_a_request_waits_for_its_answer(gateway: Running, engine: ScriptedEngine) -> None:
    """A client that pipelines nonsense gets its running stream whole, then the refusal, not one inside of the other."""
    engine.then(
        [SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), 0.1, *map(chunk, [*CHAT_EVENTS[3:], DONE]), END], [reply(ANSWER)]
    )
    async with visitor(gateway.port) as guest:
        await guest.send(post(STREAM))
        await guest.head()
        await guest.until(CHAT_EVENTS[2])
        await guest.send(b"nonsense\r\n\r\n")
        assert await guest.until(DONE) == b"".join([*CHAT_EVENTS[3:], DONE])
        assert await guest.chunk() == b""
        answer = await guest.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert await guest.ended()

    assert await still_serves(gateway)


# Stopping

CONFIG = """
[server]
port = 0
drain_seconds = 2.0
[[model]]
name = "demo"
[[pool]]
name = "base"
model = "demo"
kind = "baseline"
price_per_hour = 1.0
[[pool.replica]]
url = "{url}"
[[tenant]]
name = "tester"
key_sha256 = ["{digest}"]
"""


@asynccontextmanager
async def process(path: Path, url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Run `draftlane serve` for an engine until the block ends; gives the process and its port."""
    await asyncio.to_thread(path.write_text, CONFIG.format(url=url, digest=key_digest(KEY)))
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "serve", "--config", str(path)),
        stdout=PIPE,
        stderr=PIPE,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert run.stderr is not None
    try:
        line = b""
        while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)", line)):
            line = await run.stderr.readline()
            assert line, "the gateway ended before it listened"
        yield run, int(found[1])
    finally:
        if run.returncode is None:
            run.kill()
        await run.communicate()


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    """A gateway without a usable artefact ends with a sentence and status 1, not with a traceback."""
    path = tmp_path / "config.toml"
    broken = CONFIG.format(url="http://127.0.0.1:9", digest=key_digest(KEY)) + '[classifier]\nartefact = "none.json"\n'
    await asyncio.to_thread(path.write_text, broken)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    run = await asyncio.create_subprocess_exec(*command, stderr=PIPE, cwd=Path(__file__).parent.parent)
    _, err = await run.communicate()

    assert run.returncode == 1
    assert b"classifier.artefact: " in err
    assert b"Traceback" not in err


async def get(port: int, path: str) -> Answer:
    """Ask for a page."""
    async with visitor(port) as guest:
        await guest.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        return await guest.answer()


async def ready(port: int) -> int:
    """Return the status of the readiness page, 0 while nobody listens."""
    with contextlib.suppress(OSError):
        return (await get(port, "/readyz")).status
    return 0


async def until_ready(port: int) -> None:
    """Wait for a gateway that serves."""
    async with asyncio.timeout(20):
        while await ready(port) != 200:
            await asyncio.sleep(0.05)


async def begun(port: int) -> Visitor:
    """Begin a stream and read its first events."""
    guest = Visitor(*await asyncio.open_connection("127.0.0.1", port))
    await guest.send(post(STREAM))
    await guest.head()
    await guest.until(CHAT_EVENTS[1])
    return guest


async def test_sigterm_lets_running_streams_end(tmp_path: Path) -> None:
    """Readiness turns, calls are still served, a stream ends whole, one without end is cut at the limit, and all is logged."""
    first: list[Step] = [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2])]
    ending: list[Step] = [*first, 0.7, *map(chunk, [*CHAT_EVENTS[2:], DONE]), END]
    async with scripted(ending, [*first, SILENCE], [reply(ANSWER)]) as engine:
        async with process(tmp_path / "config.toml", engine.url) as (run, port):
            await until_ready(port)
            short, endless = await begun(port), await begun(port)
            run.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while await ready(port) != 503:
                    await asyncio.sleep(0.02)
            async with visitor(port) as late:
                await late.send(post(CHAT))
                assert (await late.answer()).json == ANSWER
            assert await short.until(DONE) == b"".join([*CHAT_EVENTS[2:], DONE])
            assert await short.chunk() == b""
            short.leave()
            assert not (await endless.reader.read()).endswith(END)
            endless.leave()
            out, _ = await asyncio.wait_for(run.communicate(), 10)

        assert run.returncode == 0
        lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
        assert sorted((line["outcome"], line["stream"]) for line in lines) == [
            ("internal", True),
            ("ok", False),
            ("ok", True),
        ]
        assert [line["error"] for line in lines if line["outcome"] == "internal"] == ["shutdown"]
        await until(lambda: engine.seen[1].left)
