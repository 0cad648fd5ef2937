"""The engine stand-in and the load generator, both in C so that they cost little beside what is measured.

Compiled with `cc` when first needed, and again when their source has changed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import pinned

HERE: Final = Path(__file__).parent
BUILT: Final = HERE.parent / ".cache" / "native"


class LoadError(Exception):
    """The load generator could not do its work, as when nobody listens; the message says why."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the load generator saw; times are microseconds.

    `seconds` is the time to the end of the last answer, 0 when none has ended; `failure` says what the first one failed of.
    """

    requests: int
    failed: int
    differing: int
    seconds: float
    events: int
    alone: int
    bytes: int
    latency_p50: float
    latency_p99: float
    latency_max: float
    first_p50: float
    first_p99: float
    first_max: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    failure: str


def build(name: str) -> Path:
    """Return the program of this name, compiled."""
    source, program = HERE / f"{name}.c", BUILT / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise FileNotFoundError("no C compiler: install gcc, or name one by a `cc` on the path")
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)], check=True)
    return program


@contextmanager
def engine(core: int, *, rate: float = 200.0, events: int = 200) -> Iterator[int]:
    """Run an engine stand-in on a core and give its port; `rate` is events per second of one stream."""
    command = pinned(core, [str(build("engine")), "0", str(rate), str(events)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def load(
    core: int,
    port: int,
    *,
    connections: int,
    request: Path,
    expected: Path,
    seconds: float = 3600.0,
    per_connection: int = 0,
    spread_ms: float = 0.0,
) -> Load:
    """Run the load generator on a core to its end; see load.c for the arguments.

    Raises:
        LoadError: it could not connect, or ended in another way without figures.
    """
    numbers = (port, connections, seconds, per_connection, spread_ms)
    command = [str(build("load")), *map(str, numbers), str(request), str(expected)]
    ended = subprocess.run(pinned(core, command), check=False, capture_output=True, text=True)
    if ended.returncode:
        raise LoadError(ended.stderr.strip() or f"the load generator ended with {ended.returncode}")
    return Load(**json.loads(ended.stdout))
