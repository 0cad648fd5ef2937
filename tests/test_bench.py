"""The benchmarks' own arithmetic, and what their two native programs promise."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bench import gate, machine, native
from bench.figures import DIRECT, Figure, Run, faults, headline, markdown, summarise
from bench.native import Load, LoadError
from bench.overhead import expected_answers
from bench.prompts import http_request, request_body, text
from bench.soak import streams
from bench.soak.__main__ import told
from bench.systems import Absent, debian


def load(**changes: Any) -> Load:
    """Return what a run of the load generator saw."""
    facts: dict[str, Any] = dict.fromkeys(Load.__dataclass_fields__, 0) | {"failure": "", "seconds": 2.0}
    return Load(**{**facts, **changes})


def runs() -> list[Run]:
    """Three rounds of one system beside the engine itself, each round slower than the one before."""
    found = []
    for number in range(3):
        found += [
            Run(DIRECT, "json-c1", number, load(requests=100, latency_p50=20.0 * number)),
            Run("nginx", "json-c1", number, load(requests=100, latency_p50=20.0 * number + 80 + number), 0.002, 8.0),
            Run("nginx", "sse-c32", number, load(requests=1, events=1000, alone=990), 0.016 + number / 1000),
            Run("nginx", "json-c64", number, load(requests=1000), 0.02),
        ]
    return found


def test_figures_are_medians_of_rounds() -> None:
    """CPU counts per request or event, what is added is measured against the same round, and the extremes are kept."""
    nginx = summarise(runs())["nginx"]

    assert nginx["json-c1"]["added_p50_ms"] == Figure(0.081, 0.08, 0.082)
    assert nginx["json-c1"]["cpu_us_per_request"].median == pytest.approx(20)
    assert nginx["sse-c32"]["cpu_us_per_event"] == Figure(pytest.approx(17), pytest.approx(16), pytest.approx(18))
    assert nginx["sse-c32"]["alone_share"].median == 0.99
    assert str(Figure(17.04, 16.0, 18.0)) == "17.0 ± 1.0"


def test_the_headline_and_the_table() -> None:
    """The headline takes CPU and throughput from the highest concurrency and latency from the lowest; a table has all."""
    summary = summarise(runs())

    assert headline(summary["nginx"]) == {
        "cpu_us_per_request": 20.0,
        "cpu_us_per_event": 17.0,
        "requests_per_s": 500.0,
        "added_p50_ms": 0.081,
    }
    assert "| nginx | 20.0 ± 0.0 | 500 ± 0 | 0.08 ± 0.00 |" in markdown(summary)
    assert DIRECT not in markdown(summary)


def test_gates_of_a_run() -> None:
    """A failed request is a fault of anyone, a byte that differs one of those who promise identity."""
    bad = [Run("a", "w", 0, load(failed=1, failure="reset")), Run("b", "w", 0, load(differing=2))]

    assert faults(bad, frozenset()) == ["a, w: 1 failed (reset)", "b, w: 2 bodies differ from the engine's"]
    assert faults(bad, frozenset({"b"})) == ["a, w: 1 failed (reset)"]


def test_the_performance_gate() -> None:
    """The least cost of all rounds is compared, a quarter more is let pass, more is not, nor what has no baseline."""
    costs = {"reference": (0.2, 0.1), "product": (0.5, 0.9), "relay": (0.3, 0.25)}
    seen = []
    for system, rounds in costs.items():
        for number, seconds in enumerate(rounds):
            seen.append(Run(system, gate.REQUESTS.name, number, load(requests=1000), seconds))
            seen.append(Run(system, gate.EVENTS.name, number, load(events=1000), seconds))

    measured = gate.ratios(seen)

    assert measured == {"product_per_request": 5.0, "relay_per_request": 2.5, "product_per_event": 5.0}
    assert gate.broken(measured, {"product_per_request": 4.0, "relay_per_request": 2.0, "product_per_event": 4.0}) == []
    assert gate.broken({"relay_per_request": 2.5}, {"relay_per_request": 1.9}) == [
        "relay_per_request: 2.50 times the reference, 32% over the baseline of 1.90"
    ]
    assert gate.broken({"relay_per_request": 2.5}, {}) == ["relay_per_request: no baseline; make one with --update"]


def test_the_committed_baseline_is_complete() -> None:
    """Every measure of the gate has its baseline."""
    assert set(json.loads(gate.BASELINE.read_text())) == set(gate.MEASURES)


def test_requests_have_their_size() -> None:
    """Prompts are as long as asked, and the request around them announces its body."""
    body = request_body("demo", 30_000, stream=True)

    assert len(text(1536)) == 1536
    assert json.loads(body)["stream"] is True
    assert len(json.loads(body)["messages"][1]["content"]) == 30_000
    assert f"content-length: {len(body)}\r\n".encode() in http_request("/", {"a": "b"}, body)


def test_processes_are_seen_with_their_children() -> None:
    """CPU time and memory are those of the whole tree, and CPU time grows with work."""
    script = "import subprocess, sys; subprocess.run(['sleep', '5'])"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        while len(tree := machine.tree(process.pid)) < 2:
            pass
        before = machine.cpu_seconds([os.getpid()])
        sum(range(3_000_000))

        assert machine.cpu_seconds([os.getpid()]) > before
        assert machine.resident_mib(tree) > 5

        for each in reversed(tree):
            os.kill(each, 9)


def test_what_is_not_there_is_told() -> None:
    """A Debian package that cannot be had is absent, with the reason."""
    with pytest.raises(Absent, match="apt-get"):
        debian("no-such-package-of-draftlane", "no-such-program-of-draftlane")


def test_the_load_generator_sees_every_byte(tmp_path: Path) -> None:
    """Against the engine itself nothing fails and nothing differs; against other bytes every answer differs."""
    if shutil.which("cc") is None:
        with pytest.raises(FileNotFoundError, match="install gcc"):
            native.build("engine")
        return
    core = min(os.sched_getaffinity(0))
    with native.engine(core, rate=1000.0) as port:
        expected = expected_answers(port, tmp_path)
        for stream in (False, True):
            request = tmp_path / "request"
            request.write_bytes(http_request("/v1/chat/completions", {}, request_body("demo", 1536, stream=stream)))
            seen = native.load(core, port, connections=4, per_connection=5, request=request, expected=expected[stream])
            other = native.load(
                core, port, connections=1, per_connection=1, request=request, expected=expected[not stream]
            )

            assert (seen.requests, seen.failed, seen.differing) == (20, 0, 0)
            assert seen.events == (20 * 203 if stream else 0)
            assert (other.requests, other.differing) == (1, 1)


def test_the_load_generator_says_why_it_failed(tmp_path: Path) -> None:
    """Where nobody listens it ends with the reason; where connections only end it counts them and keeps the first reason."""
    if shutil.which("cc") is None:
        return
    core, file = min(os.sched_getaffinity(0)), tmp_path / "file"
    file.write_bytes(b"GET / HTTP/1.1\r\n\r\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def close_two() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        closing = threading.Thread(target=close_two)
        closing.start()
        seen = native.load(core, port, connections=2, per_connection=1, request=file, expected=file)
        closing.join()
    with pytest.raises(LoadError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
        native.load(core, port, connections=2, per_connection=1, request=file, expected=file)

    assert (seen.requests, seen.failed) == (0, 2)
    assert "connection closed" in seen.failure or "reset" in seen.failure


@pytest.mark.parametrize("error", [LoadError("why"), ConnectionRefusedError("why"), EOFError("why")])
def test_a_soak_that_cannot_go_on_says_why(error: Exception) -> None:
    """A generator that failed, or a gateway that is gone, is a finding like any other, not a traceback."""

    def run() -> dict[str, Any]:
        raise error

    assert told(run) == {"ok": False, "failure": "why"}


def test_streams_that_never_end_have_figures() -> None:
    """When the generator gave up before the first answer, rates are zero and its reason is told."""
    found = streams.figures(load(seconds=0.0, failed=7, failure="not a byte came for 20 s"), 1.5)

    assert (found["failed"], found["events_per_second"], found["cpu_share"]) == (7, 0, 0.0)
    assert found["failure"] == "not a byte came for 20 s"
