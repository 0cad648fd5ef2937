"""Starting and stopping an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.engine.core import Engine
from gateway.engine.faults import Faults, of
from gateway.engine.front import Front
from gateway.engine.http import Connection, listen
from gateway.engine.metrics import Metrics
from gateway.engine.record import Record
from gateway.engine.schedule import Batch, Dial
from gateway.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Running:
    """A listening engine, as code in the same process sees it."""

    url: str
    engine: Engine
    connections: set[Connection]

    @property
    def record(self) -> Record:
        """What it received."""
        return self.engine.record

    @property
    def faults(self) -> Faults:
        """What goes wrong with it."""
        return self.engine.faults

    @property
    def settings(self) -> Dial:
        """The settings that may change; assign to them."""
        return self.engine.dial

    @property
    def metrics(self) -> Metrics:
        """Its counters."""
        return self.engine.metrics

    @property
    def batch(self) -> Batch:
        """What is running and waiting."""
        return self.engine.batch

    def fault(self, kind: str, **options: float) -> None:
        """Put a fault in force; the options are those of the admin call."""
        self.faults.set(of({"fault": kind, **options}), asyncio.get_running_loop().time())


@asynccontextmanager
async def serve(settings: EngineSettings) -> AsyncIterator[Running]:
    """Serve an engine inside this event loop until the block ends; then every connection is closed."""
    engine = Engine(settings)
    connections: set[Connection] = set()
    server, port = await listen(Front(engine), settings.host, settings.port, connections)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        yield Running(f"http://{host}:{port}", engine, connections)
    finally:
        server.close()
        for connection in tuple(connections):
            connection.transport.abort()
        engine.batch.close()
        if engine.journal is not None:
            engine.journal.close()
        await server.wait_closed()
