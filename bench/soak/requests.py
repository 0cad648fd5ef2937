"""Very many requests, mixed with clients that leave: memory stays flat, and nothing is leaked."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench import native
from bench.machine import Cores
from bench.soak.target import Files, Target, gateway

MOST_MIB_PER_100K: Final = 2.0
_ROUND: Final = 10_000  # requests between two looks at memory
_SHARES: Final = {"json": 0.8, "stream": 0.15, "leaving": 0.05}
_CONNECTIONS: Final = 50
_LEAVING: Final = 20  # clients that leave, at once
_KEPT: Final = 2 * _CONNECTIONS + _LEAVING  # connections to the engine that may lie idle: as many as were busy at once


def run(count: int, *, size: int = _ROUND) -> dict[str, Any]:
    """Send so many requests in rounds of `size`; of JSON, of short streams, and of streams whose client leaves.

    Raises:
        LoadError: the gateway could not be reached.
    """
    cores = Cores.available()
    with (
        tempfile.TemporaryDirectory(prefix="dl-") as directory,
        native.engine(cores.load, rate=500.0, events=20) as engine,
        gateway(cores.measured, engine) as target,
    ):
        tasks = target.state()["tasks"]
        files = {kind: Files.of(Path(directory), engine, stream=kind == "stream") for kind in ("json", "stream")}
        began, looks, loads = time.monotonic(), list[tuple[int, float, int]](), list[native.Load]()
        for number in range(1, max(2, count // size) + 1):
            loads += _round(cores, target, files, size, number)
            looks.append((number * size, target.rss, target.files))
        seconds = time.monotonic() - began
        rest = _at_rest(target, tasks)
        warm = looks[len(looks) // 5 :]  # the first fifth warms caches, pools and the allocator up
        grown = _grown(target, warm[0][2])
        health = target.health_figures()
    slope = _slope([(done / 100_000, rss) for done, rss, _ in warm])
    failed = sum(load.failed + load.differing for load in loads)
    found = {
        "requests": looks[-1][0],
        "failed": failed,
        "failure": next((load.failure for load in loads if load.failure), ""),
        "requests_per_second": round(looks[-1][0] / seconds),
        "rss_mib": [round(rss, 1) for _, rss, _ in looks],
        "rss_mib_per_100k": round(slope, 2),
        "files_grown_by": grown,
        **rest,
        **health,
    }
    clean = not any(rest.values()) and grown <= _KEPT
    return {**found, "ok": not failed and slope <= MOST_MIB_PER_100K and clean}


def _round(cores: Cores, target: Target, files: dict[str, Files], size: int, seed: int) -> list[native.Load]:
    """Run the three kinds side by side; return what those saw that stay until their answers end."""

    def loaded(kind: str) -> native.Load:
        return native.load(
            cores.load,
            target.port,
            connections=_CONNECTIONS,
            request=files[kind].request,
            expected=files[kind].expected,
            per_connection=round(size * _SHARES[kind] / _CONNECTIONS),
        )

    leaving = round(size * _SHARES["leaving"])
    with ThreadPoolExecutor(3) as threads:
        work = [threads.submit(loaded, kind) for kind in ("json", "stream")]
        left = threads.submit(asyncio.run, _leave(target.port, files["stream"].request.read_bytes(), leaving, seed))
        left.result()
        return [each.result() for each in work]


async def _leave(port: int, request: bytes, count: int, seed: int) -> None:
    """Ask for streams and leave each before its end: at once, before its head, or among its events."""
    chance = random.Random(seed)

    async def some(number: int) -> None:
        for _ in range(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            for _ in range(chance.randint(0, 3)):
                if not await reader.read(300):
                    break
            writer.transport.abort()
            await asyncio.sleep(0)

    await asyncio.gather(*(some(count // _LEAVING) for _ in range(_LEAVING)))


def _at_rest(target: Target, tasks: int) -> dict[str, int]:
    """Return what is still in hand a moment after the last request: calls, leases, and tasks beyond those before the first."""
    for _ in range(50):
        state = target.state()
        leases = sum(replica["running"] for pool in state["pools"] for replica in pool["replicas"])
        found = {"calls": state["running"], "leases": leases, "tasks": max(0, state["tasks"] - tasks)}
        if not any(found.values()):
            break
        time.sleep(0.1)
    return {f"leaked_{name}": value for name, value in found.items()}


def _grown(target: Target, before: int) -> int:
    """Return by how many open files it has grown a moment after the last request, when clients' departures are noticed."""
    for _ in range(50):
        if target.files <= before:
            break
        time.sleep(0.1)
    return target.files - before


def _slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line that lies closest (least squares)."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
