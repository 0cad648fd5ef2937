"""A whole gateway in this process, on a socket of this machine, in front of engines that the caller has started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.app import Gateway
from gateway.config import Config, key_digest, parse
from gateway.record import Finished
from gateway.serve import server_of

KEY: Final = "dl-bench"
HEADERS: Final = {"authorization": f"Bearer {KEY}"}


@dataclass(slots=True)
class Stand:
    """A gateway that listens, and the record of every call that it has finished."""

    url: str
    port: int
    gateway: Gateway
    finished: list[Finished] = field(default_factory=list)

    async def settled(self, request_id: str) -> Finished | None:
        """Return the record of a call, waiting a moment for it; None when there is none."""
        for _ in range(200):
            for call in reversed(self.finished):
                if call.request_id == request_id:
                    return call
            await asyncio.sleep(0.01)
        return None


def pair(model: str, first: str, second: str, *, speed: float, **settings: Any) -> list[dict[str, Any]]:
    """Return the tables of a model's two pools, the speculative one first, as fast as engines of this speed are.

    `settings` are further ones of the first pool.
    """
    shared = {"model": model, "served_model": "demo", "price_per_hour": 18.0, "ttft_seconds": 0.1 / speed}
    speculative = {"kind": "speculative", "window": 7, "drafter": "draft_model", "step_seconds": 0.105 / speed}
    return [
        {"name": f"{model}-speculative", **shared, **speculative, **settings, "replica": [{"url": first}]},
        {
            "name": f"{model}-baseline",
            "kind": "baseline",
            "step_seconds": 0.045 / speed,
            **shared,
            "replica": [{"url": second}],
        },
    ]


def configured(pools: Sequence[Mapping[str, Any]], **sections: Any) -> Config:
    """Return a configuration of these pools and one tenant whose key is KEY; `sections` replace or add tables."""
    raw: dict[str, Any] = {
        "server": {"port": 0, "log": "off", "drain_seconds": 1},
        "model": [{"name": name} for name in dict.fromkeys(pool["model"] for pool in pools)],
        "pool": list(pools),
        "tenant": [{"name": "bench", "key_sha256": [key_digest(KEY)]}],
        **sections,
    }
    return parse(raw, {})


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Stand]:
    """Serve a configuration until the block ends."""
    gateway = Gateway(config)
    server = server_of(gateway, config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    port = listener.getsockname()[1]
    stand = Stand(f"http://127.0.0.1:{port}", port, gateway)
    gateway.api.add_sink(stand.finished.append)
    task = asyncio.create_task(server._serve([listener]))
    try:
        while not (server.started or task.done()):  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.005)
        yield stand
    finally:
        server.should_exit = True
        await task
