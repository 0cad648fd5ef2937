"""A whole gateway on a real socket inside the test's own event loop, in front of embedded engines or of scripted ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.config import Config, key_digest, parse
from gateway.record import Finished
from gateway.serve import server_of

KEY = "sk-test"
ADMIN_KEY = "sk-admin"


@dataclass(slots=True)
class Running:
    """A gateway that listens: its address, its parts, and every call it has settled."""

    url: str
    port: int
    gateway: Gateway
    finished: list[Finished] = field(default_factory=list)

    async def settled(self, count: int, seconds: float = 5.0) -> list[Finished]:
        """Wait until so many calls have been settled."""
        await until(lambda: len(self.finished) >= count, seconds)
        return self.finished


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Return the condition's first true value; fails when there is none in time."""
    async with asyncio.timeout(seconds):
        while not (value := condition()):
            await asyncio.sleep(0.01)
        return value


def config_for(
    urls: Mapping[str, Sequence[str]], *, pools: Mapping[str, Mapping[str, Any]] | None = None, **sections: Any
) -> Config:
    """Return a configuration of model "demo" with one pool per name; a name that begins with "spec" is speculative."""
    raw: dict[str, Any] = {
        "server": {"port": 0, "log": "off", "drain_seconds": 1, "admin_key_sha256": key_digest(ADMIN_KEY)},
        "model": [{"name": "demo", "aliases": ["gpt-4o-mini"]}],
        "pool": [],
        "tenant": [{"name": "tester", "key_sha256": [key_digest(KEY)]}],
        "routing": {"explore_near": 0.0, "explore_far": 0.0},
    }
    for name, origins in urls.items():
        kind: dict[str, Any] = (
            {"kind": "speculative", "window": 7, "drafter": "draft_model"}
            if name.startswith("spec")
            else {"kind": "baseline"}
        )
        raw["pool"].append(
            {
                "name": name,
                "model": "demo",
                "price_per_hour": 18.0,
                **kind,
                **(pools or {}).get(name, {}),
                "replica": [{"url": url} for url in origins],
            }
        )
    for name, section in sections.items():
        raw[name] = (
            {**raw[name], **section} if isinstance(section, dict) and isinstance(raw.get(name), dict) else section
        )
    return parse(raw)


@asynccontextmanager
async def serving(config: Config, *, path: Path | None = None) -> AsyncIterator[Running]:
    """Serve a configuration until the block ends."""
    gateway = Gateway(config, path=path)
    server = server_of(gateway, config)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    task = asyncio.create_task(server._serve([listener]))
    running = Running(f"http://127.0.0.1:{port}", port, gateway)
    gateway.api.add_sink(running.finished.append)
    try:
        await until(lambda: server.started or task.done())
        yield running
    finally:
        server.should_exit = True
        await task
