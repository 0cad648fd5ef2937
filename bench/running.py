"""Starting a system, waiting until it answers, and stopping it again with all its children."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import pinned
from bench.prompts import http_request, request_body
from bench.systems import KEY, Absent, Place, System

_START_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Running:
    """A system that answers; `process` is the root of its processes, `start_seconds` what it took to the first answer."""

    system: System
    version: str
    place: Place
    port: int
    process: int
    start_seconds: float

    def request(self, prompt_bytes: int, *, stream: bool) -> bytes:
        """Return the bytes that ask this system for a chat completion."""
        headers = {"authorization": f"Bearer {KEY}", **self.system.headers(self.place)}
        return http_request(self.system.path, headers, request_body(self.system.model, prompt_bytes, stream=stream))


@contextmanager
def running(system: System, core: int | None, engine: int, directory: Path) -> Iterator[Running]:
    """Install and start a system on a core (None: any) and give it once it answers; `Absent` says why it does not."""
    version = system.install()
    place = Place(_free_port(), engine, directory / system.name)
    place.directory.mkdir(exist_ok=True)
    log = place.directory / "stderr"
    began = time.monotonic()
    with log.open("wb") as errors, (place.directory / "stdout").open("wb") as told:
        process = subprocess.Popen(
            system.command(place) if core is None else pinned(core, system.command(place)),
            cwd=None if system.own else place.directory,
            env={**os.environ, **system.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if system.announces else told,
            stderr=errors,
            start_new_session=True,
        )
        try:
            port = _announced(process) if system.announces else place.port
            started = Running(system, version, place, port, process.pid, 0.0)
            _await_answer(process, started, log)
            yield Running(system, version, place, port, process.pid, time.monotonic() - began)
        finally:
            _stop(process)


def _announced(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"listening "):
            return int(line.split()[1])
    raise Absent("it ended before it listened")


def _await_answer(process: subprocess.Popen[bytes], started: Running, log: Path) -> None:
    """Ask until the answer is a 200."""
    reason = "nothing"
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            reason = f"it ended with status {process.returncode}"
            break
        try:
            status, body = _ask(started)
        except OSError as error:
            reason = str(error)
        else:
            if status == http.client.OK:
                return
            reason = f"status {status}: {body[:120].decode(errors='replace')}"
        time.sleep(0.05)
    lines = log.read_text(errors="replace").strip().splitlines() or ["silent"]
    raise Absent(f"no answer ({reason}; {lines[-1][:200]})")


def _ask(started: Running) -> tuple[int, bytes]:
    head, _, body = started.request(1536, stream=False).partition(b"\r\n\r\n")
    headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:])
    with closing(http.client.HTTPConnection("127.0.0.1", started.port, timeout=10)) as connection:
        connection.request("POST", started.system.path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def _free_port() -> int:
    """Return a free port whose successor is free too: some systems want a second one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a system and its children, which share its session."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(_STOP_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    if process.stdout is not None:
        process.stdout.close()
