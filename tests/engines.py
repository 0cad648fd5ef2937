"""What the tests of the embedded engine share: a client on a real socket, and reading its events and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any

import httpx

from gateway.engine import EngineSettings, Running, serve

PLAIN = SSLContext(PROTOCOL_TLS_CLIENT)  # never used; httpx would read all certificates for each client otherwise
FAST = 500.0  # a speed at which the clock of the machine is what counts


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[tuple[Running, httpx.AsyncClient]]:
    """Serve a fast engine of these settings, with a client for it."""
    chosen = EngineSettings(**{"speed": FAST, **settings})
    async with serve(chosen) as running, httpx.AsyncClient(base_url=running.url, verify=PLAIN, timeout=30) as client:
        yield running, client


def chat(prompt: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a greedy chat request."""
    return {"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, **fields}


async def ask(client: httpx.AsyncClient, prompt: str, **fields: Any) -> dict[str, Any]:
    """Return the answer to a chat request."""
    response = await client.post("/v1/chat/completions", json=chat(prompt, **fields))

    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def stream(client: httpx.AsyncClient, prompt: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed chat request, the end mark checked and left out."""
    response = await client.post("/v1/chat/completions", json=chat(prompt, stream=True, **fields))
    return events(response.text)


def events(text: str) -> list[dict[str, Any]]:
    """Return the JSON of server-sent events, which must end with the end mark."""
    *found, done, rest = text.split("\n\n")

    assert rest == ""
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in found]


def text_of(found: list[dict[str, Any]]) -> str:
    """Return the text of a stream's events."""
    return "".join(choice["delta"].get("content") or "" for event in found for choice in event["choices"])


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def samples(client: httpx.AsyncClient) -> dict[str, float]:
    """Return the engine's metrics: sample name with its labels, without model and engine, → value."""
    response = await client.get("/metrics")
    found = {}
    for line in response.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            for label in ('engine="0",', 'model_name="demo",', 'model_name="demo"'):
                name = name.replace(label, "")
            found[name.replace("{}", "").removeprefix("vllm:")] = float(value)
    return found
