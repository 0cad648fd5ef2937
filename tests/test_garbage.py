"""No reference cycle per call: what a call made is freed with it, so that collections never have to walk."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
from fakes import (
    ANSWER,
    CHAT,
    CHAT_EVENTS,
    CLOSE,
    DONE,
    RESET,
    SILENCE,
    SSE_HEAD,
    STREAM,
    USAGE,
    Script,
    ScriptedEngine,
    chunk,
    post,
    refusal,
    reply,
    scripted,
    sse,
    visitor,
)
from harness import Running, config_for, serving, until

from gateway.breaker import Breaker
from gateway.http1 import Client

CALLS = 6  # of each kind; a cycle per call shows at once
LIMITS = {"first_byte_seconds": 0.05, "total_seconds": 5.0, "idle_seconds": 0.08, "client_idle_seconds": 5.0}


@contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """Switch collection off, and in the end count what of the gateway's only a collection could have freed."""
    gc.collect()
    gc.disable()
    flags = gc.get_debug()
    found: Counter[str] = Counter()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        for thing in gc.garbage:
            kind = type(thing)
            if kind.__module__.startswith("gateway."):
                found[kind.__qualname__] += 1
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        gc.enable()


async def call(gateway: Running, body: bytes | Mapping[str, Any], *, stay: float | None = None) -> None:
    """Make a call and read its answer, or leave after so many seconds."""
    async with visitor(gateway.port) as guest:
        await guest.send(post(body))
        if stay is None:
            await guest.answer()
        else:
            await asyncio.sleep(stay)
            guest.leave()


ENDINGS: dict[str, tuple[Script, bytes | Mapping[str, Any], float | None]] = {
    "a whole reply": ([reply(ANSWER)], CHAT, None),
    "a whole stream": (sse(*CHAT_EVENTS, USAGE, DONE), STREAM, None),
    "a stream that could be resumed": (sse(*CHAT_EVENTS, USAGE, DONE), {**STREAM, "temperature": 0}, None),
    "a refusal": ([reply(ANSWER)], b"{", None),
    "an engine's refusal": ([refusal("no")], CHAT, None),
    "an engine's error": ([refusal("oops", 500)], CHAT, None),
    "a connection that breaks": ([RESET], CHAT, None),
    "silence": ([SILENCE], STREAM, None),
    "a stream that breaks off": ([SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), CLOSE], STREAM, None),
    "a stream that stalls": ([SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), SILENCE], STREAM, None),
    "a client that leaves before": ([SILENCE], CHAT, 0.02),
    "a client that leaves amid": ([SSE_HEAD, *map(chunk, CHAT_EVENTS[:3]), SILENCE], STREAM, 0.03),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[Running, ScriptedEngine]]:
    """Serve a gateway before one engine."""
    async with scripted([reply(ANSWER)]) as engine:
        config = config_for({"base": [engine.url]}, limits=LIMITS, routing={"resume_streams": True})
        async with serving(config) as gateway:
            yield gateway, engine


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("script", "body", "stay"), ENDINGS.values(), ids=ENDINGS)
async def test_a_call_leaves_no_cycle(
    served: tuple[Running, ScriptedEngine], script: Script, body: bytes | Mapping[str, Any], stay: float | None
) -> None:
    """However calls end, none of the gateway's objects waits for a collection."""
    gateway, engine = served
    (pool,) = gateway.gateway.pipeline.live.pools
    engine.then(script)
    await call(gateway, body, stay=stay)
    await gateway.settled(1)
    with uncollected() as found:
        for count in range(2, CALLS + 2):
            pool.replicas[0].breaker, pool.replicas[0].cool_until = Breaker(), 0.0
            await call(gateway, body, stay=stay)
            await gateway.settled(count)
        await until(lambda: not gateway.gateway.api.running)
        gateway.finished.clear()
        await asyncio.sleep(0.01)

    assert found == {}


def test_a_cycle_would_be_seen() -> None:
    """The count above is not zero for want of looking."""
    with uncollected() as found:
        client: Any = Client("http://127.0.0.1:9")
        client.loop = client
        del client

    assert found["Client"] == 1
