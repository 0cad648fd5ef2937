"""What a gateway adds to a request: Draftlane and the peers that one would install instead, in one interleaved run.

    python -m bench.overhead [--quick] [--json] [--markdown] [--systems a,b] [--out FILE] [--plot FILE]

Everything stays on loopback. The engine stand-in and the load generator share one core, the gateway under test has
another. In each round every workload meets every system, in an order that rotates, so that the machine's moods fall on
all alike. Every byte of every answer is compared. Exit status: 0, 1 when a request failed or a byte differed, 2 on wrong
use. Progress and absent systems go to standard error.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import machine, native
from bench.figures import DIRECT, Run, Workload, faults, headline, markdown, summarise
from bench.machine import Cores
from bench.prompts import http_request, request_body
from bench.running import Running, running
from bench.systems import BY_NAME, SYSTEMS, Absent, System

QUICK: Final = (
    Workload("json-c1", 1, seconds=0.6),
    Workload("json-c64", 64, seconds=0.6),
    Workload("sse-c32", 32, streams=1),
    Workload("sse-c200", 200, streams=1, heavy=True),
)
FULL: Final = (
    Workload("json-c1", 1),
    Workload("json-c16", 16),
    Workload("json-c64", 64),
    Workload("json-30k-c16", 16, prompt_bytes=30_000),
    Workload("json-500k-c16", 16, prompt_bytes=500_000),
    Workload("sse-c1", 1, streams=3),
    Workload("sse-c32", 32, streams=2),
    Workload("sse-c200", 200, streams=2, heavy=True),
)
QUICK_SYSTEMS: Final = ("nginx", "draftlane", "draftlane-relay", "vllm-router", "sglang-router", "portkey", "litellm")
QUICK_SECONDS: Final = 170.0  # of three minutes
_SPREAD_MS: Final = 400.0  # connections of streams start over this time, so that their events do not come in step
_WARM_SECONDS: Final = 0.3


@dataclass(slots=True)
class Course:
    """One measurement from start to end: what runs, and what was seen so far."""

    cores: Cores
    engine: int
    directory: Path
    expected: dict[bool, Path]
    runs: list[Run] = dataclasses.field(default_factory=list)

    def measure(self, system: Running | None, workload: Workload, number: int) -> Run:
        """Put one system (None: the engine itself) under one workload, after a short one to warm it."""
        request = self._request(system, workload)
        port = self.engine if system is None else system.port
        expected = self.expected[bool(workload.streams)]
        warm = dataclasses.replace(workload, seconds=_WARM_SECONDS)
        if not workload.streams:
            self._load(port, warm, request, expected)
        processes = [] if system is None else machine.tree(system.process)
        before = machine.cpu_seconds(processes)
        load = self._load(port, workload, request, expected)
        used = machine.cpu_seconds(processes) - before
        name = DIRECT if system is None else system.system.name
        return Run(name, workload.name, number, load, used, machine.resident_mib(processes))

    def _load(self, port: int, workload: Workload, request: Path, expected: Path) -> native.Load:
        if not workload.streams:
            limits: dict[str, Any] = {"seconds": workload.seconds}
        else:
            limits = {"per_connection": workload.streams, "spread_ms": _SPREAD_MS}
        return native.load(
            self.cores.load, port, connections=workload.concurrency, request=request, expected=expected, **limits
        )

    def _request(self, system: Running | None, workload: Workload) -> Path:
        name = DIRECT if system is None else system.system.name
        path = self.directory / f"{name}.{workload.name}.request"
        if not path.exists():
            stream = bool(workload.streams)
            if system is None:
                path.write_bytes(
                    http_request("/v1/chat/completions", {}, request_body("demo", workload.prompt_bytes, stream=stream))
                )
            else:
                path.write_bytes(system.request(workload.prompt_bytes, stream=stream))
        return path


def expected_answers(engine: int, directory: Path) -> dict[bool, Path]:
    """Ask the engine itself once for each kind of answer, and keep the bytes."""
    found = {}
    for stream in (False, True):
        connection = http.client.HTTPConnection("127.0.0.1", engine, timeout=30)
        connection.request("POST", "/v1/chat/completions", request_body("demo", 1536, stream=stream))
        found[stream] = directory / f"expected.{stream}"
        found[stream].write_bytes(connection.getresponse().read())
        connection.close()
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _started(
    systems: Sequence[System], cores: Cores, engine: int, directory: Path
) -> Iterator[tuple[list[Running], dict[str, str]]]:
    """Install and start what can be, and tell of what cannot, by name."""
    up: list[Running] = []
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        for system in systems:
            try:
                _say(f"{system.name}: install and start")
                up.append(stack.enter_context(running(system, cores.measured, engine, directory)))
            except Absent as error:
                absent[system.name] = str(error)
                _say(f"{system.name}: absent, {error}")
        yield up, absent


def course(
    systems: Sequence[System], workloads: Sequence[Workload], rounds: int, *, seconds: float = math.inf
) -> dict[str, Any]:
    """Run everything, in as many rounds as fit in so many seconds, and return the whole result."""
    began = time.monotonic()
    cores = Cores.available()
    if cores.shared:
        _say("only one core: engine, load and gateway share it, and only CPU times mean anything")
    with tempfile.TemporaryDirectory() as name, native.engine(cores.load) as engine:
        directory = Path(name)
        plan = Course(cores, engine, directory, expected_answers(engine, directory))
        with _started(systems, cores, engine, directory) as (up, absent):
            idle = {each.system.name: round(machine.resident_mib(machine.tree(each.process)), 1) for each in up}
            for number in range(rounds):
                if number and _runs_over(began, number, seconds):
                    _say(f"{number} of {rounds} rounds fit in {seconds:.0f} s")
                    break
                for workload in workloads:
                    _say(f"round {number + 1} of {rounds}: {workload.name}")
                    turns: list[Running | None] = [None, *up]
                    at = number % len(turns)
                    for system in turns[at:] + turns[:at]:
                        if system is None or not system.system.light or _spares(workload, number):
                            plan.runs.append(plan.measure(system, workload, number))
            versions = {each.system.name: each.version for each in up}
    rewriting = frozenset(system.name for system in systems if system.rewrites)
    summary = summarise(plan.runs)
    order = [DIRECT, *(each.system.name for each in up)]
    return {
        "machine": machine.describe() | {"shared_core": cores.shared},
        "versions": versions,
        "absent": absent,
        "faults": faults(plan.runs, rewriting),
        "resident_mib_idle": idle,
        "summary": {name: summary[name] for name in order},
    }


def _spares(workload: Workload, number: int) -> bool:
    """Whether a workload is one for slow systems too: they meet streams in the first round only, and never heavy ones."""
    return not workload.heavy and (number == 0 or not workload.streams)


def _runs_over(began: float, rounds: int, seconds: float) -> bool:
    """Whether one more round, as long as the mean of those so far (installation and start included), ends too late."""
    elapsed = time.monotonic() - began
    return elapsed + elapsed / rounds > seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead", description="What each gateway adds to a request."
    )
    parser.add_argument("--quick", action="store_true", help="fewer workloads and rounds, within three minutes")
    parser.add_argument("--json", action="store_true", help="print the headline figures as one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    parser.add_argument("--systems", help="only these, comma-separated: " + ", ".join(BY_NAME))
    parser.add_argument("--workloads", help="only these, comma-separated: " + ", ".join(each.name for each in FULL))
    parser.add_argument("--rounds", type=int, help="rounds (default: 5, quick 3)")
    parser.add_argument("--out", type=Path, help="write all figures to this file as JSON")
    parser.add_argument("--plot", type=Path, help="draw them into this file (.svg or .png)")
    args = parser.parse_args(arguments)
    default = QUICK_SYSTEMS if args.quick else tuple(BY_NAME)
    wanted = tuple(args.systems.split(",")) if args.systems else default
    if unknown := [name for name in wanted if name not in BY_NAME and name != DIRECT]:
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    systems = [system for system in SYSTEMS if system.name in wanted]
    workloads: Sequence[Workload] = QUICK if args.quick else FULL
    if args.workloads:
        workloads = tuple(each for each in workloads if each.name in args.workloads.split(","))
    began = time.monotonic()
    limit = QUICK_SECONDS if args.quick and not args.rounds else math.inf
    result = course(systems, workloads, args.rounds or (3 if args.quick else 5), seconds=limit)
    _say(f"took {time.monotonic() - began:.0f} s")
    _report(result, args)
    return 1 if result["faults"] else 0


def _report(result: dict[str, Any], args: argparse.Namespace) -> None:
    summary = result["summary"]
    for fault in result["faults"]:
        _say(f"FAULT {fault}")
    systems = {name: headline(figures) for name, figures in summary.items()}
    if args.out:
        args.out.write_text(json.dumps(result, default=dataclasses.asdict, indent=1) + "\n")
    if args.plot:
        from bench.plot import draw

        draw(summary, args.plot)
    if args.json:
        print(
            json.dumps(
                {"systems": systems, **{key: result[key] for key in ("absent", "faults", "versions", "machine")}}
            )
        )
    if args.markdown or not args.json:
        print(markdown(summary))


if __name__ == "__main__":
    sys.exit(main())
