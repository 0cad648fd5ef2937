"""The gateway process under load, as the operating system and its own admin plane see it."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.machine import cpu_seconds, pinned, resident_mib
from bench.prompts import http_request, request_body

KEY: Final = "dl-soak"
ADMIN_KEY: Final = "dl-soak-admin"
HEADERS: Final = {"authorization": f"Bearer {KEY}"}
PATH: Final = "/v1/chat/completions"
MOST_HEALTH_SECONDS: Final = 1.0  # load balancers give up after 2 to 5
_PROBE_SECONDS: Final = 0.25
_START_SECONDS: Final = 60.0


@dataclass(slots=True)
class Target:
    """A gateway that listens; `health` holds the seconds that each health check from outside took."""

    port: int
    pid: int
    log: Path
    health: list[float] = field(default_factory=list)

    @property
    def rss(self) -> float:
        """Resident memory in MiB."""
        return resident_mib([self.pid])

    @property
    def files(self) -> int:
        """Open file descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu(self) -> float:
        """Seconds of processor time used so far."""
        return cpu_seconds([self.pid])

    @property
    def left_out(self) -> int:
        """How often the gateway took an engine out because it did not answer health checks."""
        return self.log.read_text().count("left out")

    def state(self) -> dict[str, Any]:
        """Return what the gateway says it is doing."""
        found: dict[str, Any] = json.loads(self.get("/draftlane/state"))
        return found

    def get(self, path: str) -> bytes:
        """Return what a path answers to an operator."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", path, headers={"authorization": f"Bearer {ADMIN_KEY}"})
            return connection.getresponse().read()

    def health_figures(self) -> dict[str, float]:
        """Return how long health checks took at most, in seconds, and how many there were."""
        return {"health_checks": len(self.health), "health_seconds_max": round(max(self.health, default=10.0), 3)}


@contextmanager
def gateway(core: int, engine: int) -> Iterator[Target]:
    """Run a gateway on a core, in front of an engine stand-in on a port; its health is asked for all the time."""
    with tempfile.TemporaryDirectory(prefix="dl-soak-") as name:
        config, log = Path(name) / "config.toml", Path(name) / "log"
        config.write_text(_config(engine))
        command = pinned(core, [sys.executable, "-m", "gateway", "serve", "--config", str(config)])
        with log.open("wb") as errors, subprocess.Popen(command, stderr=errors) as process:
            stop = threading.Event()
            try:
                target = Target(_port(log), process.pid, log)
                prober = threading.Thread(target=_probe, args=(target, stop))
                prober.start()
                yield target
                stop.set()
                prober.join()
            finally:
                stop.set()
                process.kill()


@dataclass(frozen=True, slots=True)
class Files:
    """A request and what every answer to it must be, as files for the load generator."""

    request: Path
    expected: Path

    @classmethod
    def of(cls, directory: Path, engine: int, *, stream: bool) -> Files:
        """Ask the engine itself for the right answer."""
        body = request_body("demo", 1536, stream=stream)
        with closing(http.client.HTTPConnection("127.0.0.1", engine, timeout=60)) as connection:
            connection.request("POST", PATH, body, {"content-type": "application/json"})
            answer = connection.getresponse().read()
        name = "stream" if stream else "json"
        files = cls(directory / f"{name}.request", directory / f"{name}.expected")
        files.request.write_bytes(http_request(PATH, HEADERS, body))
        files.expected.write_bytes(answer)
        return files


def _config(engine: int) -> str:
    key, admin = (hashlib.sha256(text.encode()).hexdigest() for text in (KEY, ADMIN_KEY))
    return (
        f'[server]\nport = 0\nlog = "off"\nadmin_key_sha256 = "{admin}"\n'
        f'[[model]]\nname = "demo"\n[[tenant]]\nname = "soak"\nkey_sha256 = ["{key}"]\n'
        '[[pool]]\nname = "plain"\nmodel = "demo"\nkind = "baseline"\nprice_per_hour = 1.0\nslots = 8192\n'
        f'[[pool.replica]]\nurl = "http://127.0.0.1:{engine}"\n'
    )


def _port(log: Path) -> int:
    """Wait until the gateway is ready and return its port."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        ports = [int(line.rpartition(":")[2]) for line in log.read_text().splitlines() if "serving" in line]
        if ports and _is_ready(ports[0]):
            return ports[0]
        time.sleep(0.05)
    raise TimeoutError(log.read_text())


def _is_ready(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False


def _probe(target: Target, stop: threading.Event) -> None:
    """Ask for health again and again; what is not answered counts as ten seconds."""
    while not stop.wait(_PROBE_SECONDS):
        began = time.monotonic()
        try:
            target.get("/healthz")
        except OSError:
            target.health.append(10.0)
        else:
            target.health.append(time.monotonic() - began)
