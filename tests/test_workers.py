"""Several worker processes behind one port: all serve, and figures, learning and books are everyone's."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import key_digest

CALLS = 24
CONFIG = """
[server]
port = {port}
workers = 2
log = "off"
drain_seconds = 2.0
admin_key_sha256 = "{admin}"
[[model]]
name = "demo"
[[pool]]
name = "speculative"
model = "demo"
kind = "speculative"
window = 7
price_per_hour = 1.0
step_seconds = 0.00105
ttft_seconds = 0.001
slots = 16
[pool.embedded]
[[tenant]]
name = "tester"
key_sha256 = ["{key}"]
[store]
kind = "sqlite"
path = "{store}"
flush_seconds = 0.1
"""


def port_of_its_own() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def eventually(found: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first true value; fails when there is none in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            if value := found():
                return value
        time.sleep(0.05)
    raise AssertionError("it never came true")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A supervisor with two workers; every question goes over a connection of its own, to whichever worker takes it."""

    process: subprocess.Popen[bytes]
    port: int
    file: Path

    def get(self, path: str) -> httpx.Response:
        """Ask as an operator."""
        return httpx.get(
            f"http://127.0.0.1:{self.port}{path}", headers={"authorization": "Bearer admin key"}, timeout=20
        )

    def post(self, path: str) -> None:
        """Tell as an operator, whichever worker takes it."""
        url, key = f"http://127.0.0.1:{self.port}{path}", {"authorization": "Bearer admin key"}
        assert httpx.post(url, headers=key, timeout=20).status_code == 200

    def call(self, number: int) -> None:
        """Ask for an answer, on whatever worker."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"Count from {number} to {number + 30}."}],
            "temperature": 0,
            "stream": True,
        }
        answer = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json=body,
            headers={"authorization": "Bearer tenant key"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text

    def states(self) -> dict[int, dict[str, Any]]:
        """Return the state of each worker, by its process."""
        return {state["pid"]: state for state in (self.get("/draftlane/state").json() for _ in range(16))}

    def counted(self) -> float:
        """Return how many calls the metrics page counts."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("draftlane_requests_total{"))


@pytest.fixture(scope="module", name="fleet")
def _fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve with two workers, a SQLite Store and an embedded engine."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    port = port_of_its_own()
    text = CONFIG.format(
        port=port, admin=key_digest("admin key"), key=key_digest("tenant key"), store=folder / "store.db"
    )
    (folder / "config.toml").write_text(text.replace("[pool.embedded]", "[pool.embedded]\nspeed = 100.0"))
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(folder / "config.toml")]
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            fleet = Fleet(process, port, folder / "config.toml")
            eventually(lambda: len(fleet.states()) == 2, 60.0)
            yield fleet
        finally:
            process.kill()
            process.wait()


def test_both_workers_serve_and_count_together(fleet: Fleet) -> None:
    """Whichever worker is scraped, the page counts the calls of both."""
    for number in range(CALLS):
        fleet.call(number)
    eventually(lambda: {fleet.counted() for _ in range(8)} == {CALLS})

    assert len(fleet.states()) == 2


def test_what_one_worker_learns_the_other_knows(fleet: Fleet) -> None:
    """Through the Store both workers have the curve that all calls together taught."""

    def curves() -> list[list[float]]:
        return [[point["samples"] for point in state["pools"][0]["curve"]] for state in fleet.states().values()]

    def agree() -> bool:
        one, *others = curves()
        return len(others) == 1 and sum(one) > 0 and all(other == pytest.approx(one, rel=1e-3) for other in others)

    eventually(agree)


def test_a_killed_worker_is_replaced_and_its_counts_stay(fleet: Fleet) -> None:
    """After kill -9 of one worker the port still serves, another takes its place, and no sum goes backwards."""
    time.sleep(1.2)  # each worker leaves its page once a second
    killed = next(iter(fleet.states()))
    os.kill(killed, signal.SIGKILL)
    fleet.call(100)
    eventually(lambda: len(fleet.states()) == 2 and killed not in fleet.states())

    assert fleet.counted() >= CALLS


def test_a_switch_is_thrown_for_all_workers(fleet: Fleet) -> None:
    """Whichever worker is told to take a pool out, or to bring it back, soon all have done so."""
    for order, enabled in (("disable", False), ("enable", True)):
        fleet.post(f"/draftlane/pools/speculative/{order}")
        eventually(lambda: {state["pools"][0]["enabled"] for state in fleet.states().values()} == {enabled})  # noqa: B023


def test_a_reload_is_one_of_all_workers_and_of_those_to_come(fleet: Fleet) -> None:
    """A file that one worker was told to reload is in force in all, and in one that is started again, switches included.

    That it has been edited since changes nothing until the supervisor hears SIGHUP, which it passes on.
    """

    def in_force() -> set[tuple[str, bool, int]]:
        return {
            (state["config"], state["pools"][0]["enabled"], state["pools"][0]["slots"])
            for state in fleet.states().values()
        }

    good = fleet.file.read_text()
    ((before, _, _),) = in_force()
    fleet.file.write_text(good.replace("slots = 16", "slots = 24"))
    fleet.post("/draftlane/reload")
    fleet.post("/draftlane/pools/speculative/disable")
    eventually(lambda: {found[1:] for found in in_force()} == {(False, 24)})
    ((told, _, _),) = in_force()

    fleet.file.write_text(good.replace("slots = 16", "slots = 32"))
    killed = next(iter(fleet.states()))
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len(fleet.states()) == 2 and killed not in fleet.states())

    assert told != before
    assert in_force() == {(told, False, 24)}
    fleet.post("/draftlane/pools/speculative/enable")
    fleet.process.send_signal(signal.SIGHUP)
    eventually(lambda: {found[1:] for found in in_force()} == {(True, 32)})


def test_workers_end_with_their_supervisor(fleet: Fleet) -> None:
    """When the supervisor is killed, its workers stop and leave the port to the next gateway."""
    fleet.process.kill()
    fleet.process.wait()

    def is_free() -> bool:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", fleet.port)):
            return True
        return False

    eventually(is_free)
