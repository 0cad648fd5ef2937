"""The clients: each a tenant of its own that asks one thing after the other and notes what it was told."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from bench.chaos.world import key_of

LIMIT_SECONDS: Final = 40.0  # past all of the gateway's limits together
_PROMPTS: Final = (
    "Count from 1 to 40, one number per line.",
    "Write a JSON list of ten cities with name and population.",
    "Tell me a short story about a lighthouse.",
    "Write a Python function that reverses a list.",
    "Why is the sky blue? Answer in two sentences.",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as its client saw it; `tokens` (prompt and answer) are what a whole answer told, else None."""

    request_id: str
    tenant: str
    tokens: int | None
    why: str  # not, "" for a whole answer
    seconds: float


@dataclass(slots=True)
class Client:
    """One tenant's client; it goes on until told to stop and never repeats a call."""

    tenant: str
    chance: random.Random
    calls: list[Call] = field(default_factory=list)

    async def run(self, url: str, stop: asyncio.Event) -> None:
        """Ask until `stop`."""
        headers = {"authorization": f"Bearer {key_of(self.tenant)}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=LIMIT_SECONDS) as client:
            while not stop.is_set():
                call = await self._ask(client)
                self.calls.append(call)
                if call.why:
                    await asyncio.sleep(0.05 + 0.1 * self.chance.random())

    async def _ask(self, client: httpx.AsyncClient) -> Call:
        request_id = f"{self.tenant}-{len(self.calls)}"
        stream = self.chance.random() < 0.6
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": self.chance.choice(_PROMPTS)}],
            "temperature": self.chance.choice([0, 0.8]),
            "max_tokens": self.chance.randint(5, 150),
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        began = time.monotonic()
        tokens, why = None, ""
        try:
            answer = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": request_id})
            tokens, why = _read(answer, stream=stream)
        except httpx.HTTPError as error:
            why = type(error).__name__
        return Call(request_id, self.tenant, tokens, why, time.monotonic() - began)


def _read(answer: httpx.Response, *, stream: bool) -> tuple[int | None, str]:
    """Return the tokens that a whole answer tells, or why it is none."""
    if answer.status_code != httpx.codes.OK:
        return None, str(answer.json()["error"]["code"])
    if not stream:
        return int(answer.json()["usage"]["total_tokens"]), ""
    *events, end, rest = answer.text.split("\n\n")
    if end != "data: [DONE]" or rest:
        last = json.loads(end.removeprefix("data: ")) if end.startswith("data: {") else {}
        return None, str(last.get("error", {}).get("code", "cut"))
    told: dict[str, Any] = json.loads(events[-1].removeprefix("data: "))
    return int(told["usage"]["total_tokens"]), ""
