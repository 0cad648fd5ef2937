"""Many idle keep-alive connections: they stay open, cost little, and slow nobody down."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bench import native
from bench.machine import Cores
from bench.soak.target import MOST_HEALTH_SECONDS, Files, Target, gateway

AT_ONCE = 200  # connections opened together: a listener's queue is bounded
_QUIET_SECONDS = 5.0
_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


def run(count: int) -> dict[str, Any]:
    """Keep so many connections open that have each been answered once, and measure calls beside them.

    Raises:
        LoadError: the gateway could not be reached.
    """
    cores = Cores.available()
    with (
        tempfile.TemporaryDirectory(prefix="dl-") as directory,
        native.engine(cores.load) as engine,
        gateway(cores.measured, engine) as target,
    ):
        files = Files.of(Path(directory), engine, stream=False)

        failures: list[str] = []

        def latency() -> float:
            load = native.load(
                cores.load,
                target.port,
                connections=1,
                request=files.request,
                expected=files.expected,
                per_connection=300,
            )
            if load.failure:
                failures.append(load.failure)
            return round(load.latency_p50 / 1000, 3)

        alone = latency()
        found = asyncio.run(_beside(target, count, latency))
    found |= {"json_ms_p50_alone": alone, "failure": "; ".join(failures)}
    kept = found["still_open"] == count
    return {**found, "ok": kept and not failures and found["health_seconds_max"] <= MOST_HEALTH_SECONDS}


async def _beside(target: Target, count: int, latency: Any) -> dict[str, Any]:
    """Open the connections, let them be, and measure."""
    rss = target.rss
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    while len(opened) < count:
        some = await asyncio.gather(*(_answered(target.port) for _ in range(min(AT_ONCE, count - len(opened)))))
        opened += some
    grown, cpu = target.rss - rss, target.cpu
    await asyncio.sleep(_QUIET_SECONDS)
    cpu = target.cpu - cpu
    found = {
        "connections": count,
        "kib_per_connection": round(grown * 1024 / count, 1),
        "cpu_share_while_idle": round(cpu / _QUIET_SECONDS, 3),
        "json_ms_p50_beside": await asyncio.to_thread(latency),
        "still_open": sum(not reader.at_eof() for reader, _ in opened),
        **target.health_figures(),
    }
    for _, writer in opened:
        writer.transport.abort()
    return found


async def _answered(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_REQUEST)
    await reader.readuntil(b"}")  # the whole of the small answer
    return reader, writer
