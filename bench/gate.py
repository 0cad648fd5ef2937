"""The performance gate: CPU per request and per event must not grow by more than a quarter against the committed baseline.

    python -m bench.gate [--json] [--update]

Both are CPU times of the whole process tree, never wall clock, and both are ratios to a blind relay (`bench.reference`) of
the same interpreter that meets the same load in the same rounds. Exit status: 0, 1 when the gate is broken, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import native
from bench.figures import Run, Workload
from bench.machine import Cores
from bench.overhead import Course, expected_answers
from bench.running import running
from bench.systems import Place, System, draftlane

BASELINE: Final = Path(__file__).with_name("baseline.json")
GROWTH: Final = 0.25
ROUNDS: Final = 5
AGAIN: Final = 2
REQUESTS: Final = Workload("json-c16", 16, seconds=0.6)
EVENTS: Final = Workload("sse-c8", 8, streams=2)  # so few that hardly two events come in one read
MEASURES: Final = ("product_per_request", "relay_per_request", "product_per_event")


def _blind(place: Place) -> list[str]:
    return [sys.executable, "-m", "bench.reference", str(place.port), str(place.engine)]


REFERENCE: Final = System(name="reference", install=lambda: "here", command=_blind, own=True)
SYSTEMS: Final = (REFERENCE, draftlane("product"), draftlane("relay", policy="baseline", log="off"))


def ratios(runs: Sequence[Run]) -> dict[str, float]:
    """Return each measure: its cost in the round that cost least, relative to the reference's in its own such round.

    What else the machine does only ever adds to a cost, so the least disturbed round says most.
    """
    least: dict[tuple[str, str], float] = {}
    for run in runs:
        cost = run.cpu_seconds / (run.load.events or run.load.requests)
        key = run.system, run.workload
        least[key] = min(cost, least.get(key, cost))
    found = {}
    for name in MEASURES:
        system, _, unit = name.partition("_per_")
        workload = (EVENTS if unit == "event" else REQUESTS).name
        found[name] = round(least[system, workload] / least[REFERENCE.name, workload], 3)
    return found


def broken(measured: Mapping[str, float], baseline: Mapping[str, float]) -> list[str]:
    """Return, in words, what has grown by more than GROWTH; a measure without a baseline is broken too."""
    found = []
    for name, value in measured.items():
        if name not in baseline:
            found.append(f"{name}: no baseline; make one with --update")
        elif value > baseline[name] * (1 + GROWTH):
            grown = value / baseline[name] - 1
            found.append(
                f"{name}: {value:.2f} times the reference, {grown:.0%} over the baseline of {baseline[name]:.2f}"
            )
    return found


def measure() -> list[Run]:
    """Run the reference and the gateway in interleaved rounds."""
    cores = Cores.available()
    with tempfile.TemporaryDirectory() as name, native.engine(cores.load) as engine, ExitStack() as stack:
        directory = Path(name)
        course = Course(cores, engine, directory, expected_answers(engine, directory))
        up = [stack.enter_context(running(system, cores.measured, engine, directory)) for system in SYSTEMS]
        for number in range(ROUNDS):
            for workload in (REQUESTS, EVENTS):
                course.runs += [course.measure(system, workload, number) for system in up]
    return course.runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, compare, tell."""
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description="Hold CPU per request and per event.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--update", action="store_true", help="make what is measured now the baseline")
    args = parser.parse_args(arguments)
    runs = measure()
    baseline = {} if args.update else json.loads(BASELINE.read_text())
    for _ in range(AGAIN):
        if args.update or not broken(ratios(runs), baseline):
            break
        runs += measure()  # before it is believed: a busy machine may have spoilt every round
    faults = [
        f"{run.system}: {run.load.failure or 'answers differ'}" for run in runs if run.load.failed or run.load.differing
    ]
    measured = ratios(runs)
    if args.update and not faults:
        BASELINE.write_text(json.dumps(measured, indent=1) + "\n")
        baseline = measured
    faults += broken(measured, baseline)
    if args.json:
        print(json.dumps({"measured": measured, "baseline": baseline, "faults": faults}))
    else:
        for name, value in measured.items():
            print(f"{name}: {value:.2f} times the reference, baseline {baseline.get(name, float('nan')):.2f}")
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
