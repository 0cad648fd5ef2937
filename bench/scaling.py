"""How Draftlane scales: with workers, concurrency, prompt size and time, and what a connection or a stream weighs.

    python -m bench.scaling [--quick] [--json]

Five questions, each with a table: requests per second against workers; latency and CPU against concurrency; CPU per request
against the size of the prompt, beside what copying and parsing that size takes; time from start to the first answer; memory
per idle connection and per active stream. Everything stays on loopback. Exit status 1 when a request failed or differed.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench import native
from bench.figures import Run, Workload, faults, of_run
from bench.machine import Cores, resident_mib, tree
from bench.overhead import Course, expected_answers
from bench.prompts import request_body
from bench.running import Running, running
from bench.systems import draftlane

Row = dict[str, float]
_SLOW_RATE: Final = 20.0  # events per second of a stream that is held open to be weighed


class Bench:
    """A running gateway with its engine, and the means to put it under load."""

    def __init__(self, course: Course, system: Running) -> None:
        self.course = course
        self.system = system

    def run(self, workload: Workload) -> Run:
        """Measure the gateway once."""
        run = self.course.measure(self.system, workload, 0)
        self.course.runs.append(run)
        return run

    @property
    def resident_mib(self) -> float:
        """What the gateway's processes hold now."""
        return resident_mib(tree(self.system.process))


@contextmanager
def bench(*, workers: int = 1, rate: float = 200.0, events: int = 200) -> Iterator[Bench]:
    """Start an engine and a gateway."""
    cores = Cores.available()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(native.engine(cores.load, rate=rate, events=events))
        core = cores.measured if workers == 1 else None
        system = stack.enter_context(running(draftlane(workers=workers), core, port, directory))
        yield Bench(Course(cores, port, directory, expected_answers(port, directory)), system)


def workers(*, quick: bool) -> list[Row]:
    """Requests per second of one worker on a core of its own, and of two that share both cores with the load."""
    rows = []
    for count in (1, 2):
        with bench(workers=count) as each:
            found = of_run(each.run(Workload("json-c64", 64, seconds=1.0 if quick else 3.0)), None)
            rows.append(
                {"workers": count, "requests_per_s": found["requests_per_s"], "cpu_us": found["cpu_us_per_request"]}
            )
            _check(each)
    return rows


def concurrency(*, quick: bool) -> list[Row]:
    """Latency and CPU per request from 1 to 2,000 calls at once."""
    rows = []
    with bench() as each:
        for count in (1, 64, 1000) if quick else (1, 4, 16, 64, 256, 1000, 2000):
            run = each.run(Workload("json", count, seconds=1.0 if quick else 2.0))
            rows.append(
                {
                    "concurrency": count,
                    "requests_per_s": run.load.requests / run.load.seconds,
                    "p50_ms": run.load.latency_p50 / 1000,
                    "p99_ms": run.load.latency_p99 / 1000,
                    "cpu_us": of_run(run, None)["cpu_us_per_request"],
                }
            )
        _check(each)
    return rows


def prompts(*, quick: bool) -> list[Row]:
    """CPU per request against the prompt's size, and what one copy and one parse of such a body take."""
    rows = []
    with bench() as each:
        for size in (1_500, 30_000, 500_000):
            run = each.run(Workload(f"json-{size}", 4, prompt_bytes=size, seconds=0.5 if quick else 2.0))
            body = request_body("demo", size, stream=False)
            rows.append(
                {
                    "prompt_bytes": size,
                    "cpu_us": of_run(run, None)["cpu_us_per_request"],
                    "copy_us": _least(lambda: bytes(bytearray(body))),  # noqa: B023 - called at once
                    "parse_us": _least(lambda: msgspec.json.decode(body)),  # noqa: B023
                }
            )
        _check(each)
    return rows


def start(*, quick: bool) -> list[Row]:
    """Seconds from the command to the first answer through an engine."""
    seconds = []
    for _ in range(3 if quick else 7):
        with bench() as each:
            seconds.append(each.system.start_seconds)
    return [{"median_s": statistics.median(seconds), "least_s": min(seconds), "greatest_s": max(seconds)}]


def memory(*, quick: bool) -> list[Row]:
    """KiB per kept connection that says nothing, and per stream under way."""
    count = 200 if quick else 1000
    with bench(rate=_SLOW_RATE, events=60) as each:
        each.run(Workload("sse", count, streams=1))  # what the allocator takes for such a load once, it keeps
        before = each.resident_mib
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(("127.0.0.1", each.system.port)))
            time.sleep(0.5)
            idle = each.resident_mib
        seen: list[float] = []
        watching = threading.Event()
        watcher = threading.Thread(target=_watch, args=(each, seen, watching))
        watcher.start()
        each.run(Workload("sse", count, streams=1))
        watching.set()
        watcher.join()
        _check(each)
    return [
        {
            "connections": count,
            "before_mib": before,
            "idle_connection_kib": (idle - before) * 1024 / count,
            "stream_kib": (max(seen) - before) * 1024 / count,
        }
    ]


def _watch(each: Bench, seen: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.1):
        seen.append(each.resident_mib)


def _least(step: Callable[[], object]) -> float:
    return min(timeit.repeat(step, number=10, repeat=20)) / 10 * 1e6


def _check(each: Bench) -> None:
    found = faults(each.course.runs, frozenset())
    if found:
        raise SystemExit("; ".join(found))


QUESTIONS: Final[dict[str, Callable[..., list[Row]]]] = {
    "workers": workers,
    "concurrency": concurrency,
    "prompts": prompts,
    "start": start,
    "memory": memory,
}


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    titles = list(rows[0])
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    lines += ["| " + " | ".join(f"{row[title]:,.6g}" for title in titles) + " |" for row in rows]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask every question and print the answers."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description="How Draftlane scales.")
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", help="only these, comma-separated: " + ", ".join(QUESTIONS))
    args = parser.parse_args(arguments)
    wanted = args.only.split(",") if args.only else list(QUESTIONS)
    if unknown := [name for name in wanted if name not in QUESTIONS]:
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    answers = {}
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        answers[name] = QUESTIONS[name](quick=args.quick)
    if args.json:
        print(json.dumps(answers))
    else:
        for name, rows in answers.items():
            print(f"\n{name}\n\n{table([{k: round(v, 3) for k, v in row.items()} for row in rows])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
