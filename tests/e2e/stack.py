"""A whole gateway in front of two embedded engines, one of each kind, with what tests ask of the three."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from harness import KEY, Running, config_for, serving

from gateway import engine
from gateway.engine import EngineSettings
from gateway.engine.record import Entry
from gateway.engine.settings import STEP_SECONDS, Kind

SPEED = 50.0  # a baseline token in 0.9 ms
TTFT_SECONDS = 0.1  # the engines', before the speed divides it
KINDS: dict[str, Kind] = {"spec": "speculative", "base": "baseline"}
COUNTING = "Count from 1 to 60."
STORY = "Tell me a story about a lonely lighthouse."
KEYED = {"authorization": f"Bearer {KEY}"}
TLS = ssl.create_default_context()  # read once: it takes longer than a whole call


def chat(prompt: str = COUNTING, **fields: Any) -> dict[str, Any]:
    """Return the body of a short greedy chat call; a field of None is left out."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 40,
        **fields,
    }
    return {name: value for name, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stack:
    """The gateway with its speculative and its baseline engine, and a plain client that has a key."""

    gateway: Running
    speculative: engine.Running
    baseline: engine.Running
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        """What a user gives as `base_url`."""
        return f"{self.gateway.url}/v1"

    @property
    def engines(self) -> tuple[engine.Running, engine.Running]:
        """Both engines."""
        return self.speculative, self.baseline

    @property
    def received(self) -> list[Entry]:
        """All generation requests that reached an engine, in order of their arrival."""
        return sorted((entry for one in self.engines for entry in one.engine.record), key=lambda entry: entry.arrived)

    def forget(self) -> None:
        """Clear the records of the engines and of the settled calls."""
        self.gateway.finished.clear()
        for one in self.engines:
            one.engine.record.clear()

    def held(self) -> dict[str, int]:
        """Return what is held now, by holder; nothing but zeros when no call runs."""
        live = self.gateway.gateway.pipeline.live
        return {
            "calls in the gateway": self.gateway.gateway.api.running,
            "leases": sum(pool.running for pool in live.pools),
            "calls of the tenant": live.tenants._uses["tester"].running,
            "sequences in the engines": sum(
                one.engine.batch.running + one.engine.batch.waiting for one in self.engines
            ),
        }

    async def at_rest(self) -> None:
        """Wait until nothing is held any more; fails when something stays held."""
        async with asyncio.timeout(5):
            while any(self.held().values()):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def stack(
    *,
    speed: float = SPEED,
    engines: Mapping[str, Any] | None = None,
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    **sections: Any,
) -> AsyncIterator[Stack]:
    """Serve a stack until the block ends; `engines` are settings of both, `pools` and `sections` of the configuration."""
    options = {"speed": speed, "per_request_metrics": True, **(engines or {})}
    # Told the engines' true pace, the router has nothing to learn from it that would change where a prompt goes.
    paces = {
        name: {
            "step_seconds": STEP_SECONDS[kind] / speed,
            "ttft_seconds": TTFT_SECONDS / speed,
            **(pools or {}).get(name, {}),
        }
        for name, kind in KINDS.items()
    }
    async with (
        engine.serve(EngineSettings(kind="speculative", **options)) as speculative,
        engine.serve(EngineSettings(kind="baseline", **options)) as baseline,
        serving(config_for({"spec": [speculative.url], "base": [baseline.url]}, pools=paces, **sections)) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=KEYED, timeout=10, verify=TLS) as client,
    ):
        yield Stack(gateway, speculative, baseline, client)
