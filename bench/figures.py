"""From runs to figures: CPU per request and event, latency added to the direct run of the same round, medians. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.native import Load

DIRECT: Final = "direct"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked.

    `streams` is per connection, and 0 for plain JSON, which runs for `seconds` instead; `heavy` ones spare slow systems.
    """

    name: str
    concurrency: int
    prompt_bytes: int = 1536
    streams: int = 0
    seconds: float = 2.0
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One system under one workload in one round; CPU time is that of the system's whole process tree."""

    system: str
    workload: str
    round: int
    load: Load
    cpu_seconds: float = 0.0
    resident_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over rounds, with the least and the greatest of them."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Summarise the rounds' values, of which there must be one at least."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def spread(self) -> float:
        """Half the distance between the extremes."""
        return (self.greatest - self.least) / 2

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        return f"{self.median:.{digits}f} ± {self.spread:.{digits}f}"


Figures = dict[str, Figure]


def of_run(run: Run, direct: Run | None) -> dict[str, float]:
    """Return the figures of one run by name; what is added needs the direct run of the same round."""
    load = run.load
    found: dict[str, float] = {"resident_mib": run.resident_mib}
    if load.events:
        found["cpu_us_per_event"] = run.cpu_seconds / load.events * 1e6
        found["events_per_s"] = load.events / load.seconds
        found["alone_share"] = load.alone / load.events
        pairs = [("ttft_p50", "first_p50"), ("ttft_p99", "first_p99"), ("gap_p99", "gap_p99")]
    else:
        found["cpu_us_per_request"] = run.cpu_seconds / max(load.requests, 1) * 1e6
        found["requests_per_s"] = load.requests / load.seconds
        pairs = [("p50", "latency_p50"), ("p99", "latency_p99")]
    if direct is not None:
        for name, attribute in pairs:
            found[f"added_{name}_ms"] = (getattr(load, attribute) - getattr(direct.load, attribute)) / 1000
    return found


def summarise(runs: Iterable[Run]) -> dict[str, dict[str, Figures]]:
    """Return system → workload → name → figure over the rounds."""
    runs = list(runs)
    direct = {(run.workload, run.round): run for run in runs if run.system == DIRECT}
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        against = direct.get((run.workload, run.round)) if run.system != DIRECT else None
        for name, value in of_run(run, against).items():
            values[run.system, run.workload][name].append(value)
    found: dict[str, dict[str, Figures]] = {}
    for (system, workload), named in values.items():
        found.setdefault(system, {})[workload] = {name: Figure.of(each) for name, each in named.items()}
    return found


def faults(runs: Iterable[Run], rewriting: frozenset[str]) -> list[str]:
    """Return what broke the gates: a failed request anywhere, or a byte that differs in a system that promises identity."""
    found = []
    for run in runs:
        if run.load.failed:
            found.append(f"{run.system}, {run.workload}: {run.load.failed} failed ({run.load.failure})")
        if run.load.differing and run.system not in rewriting:
            found.append(f"{run.system}, {run.workload}: {run.load.differing} bodies differ from the engine's")
    return found


def headline(figures: Mapping[str, Figures]) -> dict[str, float | None]:
    """Return one system's four figures: CPU and throughput at the highest concurrency measured, added latency at the lowest."""

    def at(name: str, *, highest: bool) -> float | None:
        found = [
            (int(workload.rpartition("-c")[2]), each[name].median)
            for workload, each in figures.items()
            if name in each and _plain(workload)
        ]
        return round((max if highest else min)(found)[1], 4) if found else None

    return {
        "cpu_us_per_request": at("cpu_us_per_request", highest=True),
        "cpu_us_per_event": at("cpu_us_per_event", highest=True),
        "requests_per_s": at("requests_per_s", highest=True),
        "added_p50_ms": at("added_p50_ms", highest=False),
    }


def _plain(workload: str) -> bool:
    """Whether the workload has the usual prompt."""
    return workload.count("-") == 1


_COLUMNS: Final = (
    ("CPU µs per request", "json-c64", "cpu_us_per_request"),
    ("requests/s", "json-c64", "requests_per_s"),
    ("added p50 ms", "json-c1", "added_p50_ms"),
    ("added p99 ms", "json-c1", "added_p99_ms"),
    ("added TTFT ms", "sse-c1", "added_ttft_p50_ms"),
    ("CPU µs per event, 32 streams", "sse-c32", "cpu_us_per_event"),
    ("CPU µs per event, 200 streams", "sse-c200", "cpu_us_per_event"),
)


def markdown(summary: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return the table of the README: one line per system, median ± half the spread."""
    lines = ["| | " + " | ".join(title for title, _, _ in _COLUMNS) + " |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for system, workloads in summary.items():
        if system != DIRECT:
            cells = [str(workloads.get(workload, {}).get(name, "–")) for _, workload, name in _COLUMNS]
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
