"""Many streams at once: none is lost, altered or out of order, and health is told all the while."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from bench import native
from bench.machine import Cores
from bench.soak.target import MOST_HEALTH_SECONDS, Files, gateway

ROUNDS = 3


def run(count: int, rate: float, seconds: float) -> dict[str, Any]:
    """Hold so many streams, each of `rate` events a second, for ROUNDS times `seconds`.

    Raises:
        LoadError: the gateway could not be reached.
    """
    cores = Cores.available()
    with (
        tempfile.TemporaryDirectory(prefix="dl-") as directory,
        native.engine(cores.load, rate=rate, events=round(rate * seconds)) as engine,
        gateway(cores.measured, engine) as target,
    ):
        files = Files.of(Path(directory), engine, stream=True)
        rss, cpu = target.rss, target.cpu
        load = native.load(
            cores.load,
            target.port,
            connections=count,
            request=files.request,
            expected=files.expected,
            per_connection=ROUNDS,
            spread_ms=seconds * 1000,  # so that as many end and begin at any time
        )
        found: dict[str, Any] = {
            "streams": count,
            "events_per_second_each": rate,
            **figures(load, target.cpu - cpu),
            "kib_per_stream": round((target.rss - rss) * 1024 / count, 1),
            "engines_left_out": target.left_out,
            "replicas": [replica["state"] for pool in target.state()["pools"] for replica in pool["replicas"]],
            **target.health_figures(),
        }
    whole = load.requests == count * ROUNDS and load.failed == load.differing == 0
    healthy = found["engines_left_out"] == 0 and found["health_seconds_max"] <= MOST_HEALTH_SECONDS
    return {**found, "ok": whole and healthy}


def figures(load: native.Load, cpu: float) -> dict[str, Any]:
    """Return what the streams' clients saw; `cpu` is processor seconds of the gateway meanwhile.

    Where no stream has ended there are no rates, and `failure` says what happened.
    """
    seconds = load.seconds or math.inf
    return {
        "requests": load.requests,
        "failed": load.failed,
        "altered": load.differing,
        "failure": load.failure,
        "events_per_second": round(load.events / seconds),
        "first_event_ms_p50": round(load.first_p50 / 1000, 1),
        "first_event_ms_p99": round(load.first_p99 / 1000, 1),
        "gap_ms_p50": round(load.gap_p50 / 1000, 1),
        "gap_ms_p99": round(load.gap_p99 / 1000, 1),
        "gap_ms_max": round(load.gap_max / 1000, 1),
        "cpu_share": round(cpu / seconds, 2),
    }
