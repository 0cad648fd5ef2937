"""Starting and stopping an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.engine.core import Engine
from gateway.engine.http import Connection, listen
from gateway.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Running:
    """A listening engine."""

    url: str
    engine: Engine


@asynccontextmanager
async def serve(settings: EngineSettings) -> AsyncIterator[Running]:
    """Serve an engine inside this event loop until the block ends; then every connection is closed."""
    engine = Engine(settings)
    connections: set[Connection] = set()
    server, port = await listen(engine, settings.host, settings.port, connections)
    try:
        yield Running(f"http://{settings.host}:{port}", engine)
    finally:
        server.close()
        for connection in tuple(connections):
            connection.transport.abort()
        engine.batch.close()
        await server.wait_closed()
