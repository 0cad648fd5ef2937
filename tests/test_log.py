"""The call log: one line of JSON per call, whole, in order, and never in a call's way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness import until

from gateway.log import CallLog
from gateway.record import Finished


def finished(**changes: Any) -> Finished:
    """Return a finished call."""
    facts: dict[str, Any] = {
        "request_id": "req-1",
        "time": 1_700_000_000.5,
        "endpoint": "chat",
        "tenant": "acme",
        "model": "demo",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "pool": "speculative",
        "prompt_tokens": 9,
        "completion_tokens": 6,
        "duration": 0.123456789,
        "overhead": {"parse": 0.0000123456, "total": 0.0001},
        "acceptance": 4.0,
    }
    return Finished(**{**facts, **changes})


class Pipe:
    """Takes what is written, or fails as a closed pipe does."""

    def __init__(self, error: OSError | None = None) -> None:
        self.writes: list[bytes] = []
        self._error = error

    def write(self, data: bytes) -> None:
        """Take bytes."""
        if self._error is not None:
            raise self._error
        self.writes.append(data)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines so far, decoded."""
        return [json.loads(line) for data in self.writes for line in data.splitlines()]


async def test_a_call_is_one_line() -> None:
    """The line has what happened, in plain units, rounded to microseconds, with the time in UTC."""
    pipe = Pipe()
    log = CallLog(pipe.write)
    log(finished())
    log.flush()

    assert pipe.writes[0].count(b"\n") == 1
    (line,) = pipe.lines
    assert line["time"] == "2023-11-14T22:13:20.500000Z"
    assert line["event"] == "call"
    assert line["request_id"] == "req-1"
    assert line["duration"] == 0.123457
    assert line["overhead"] == {"parse": 0.000012, "total": 0.0001}
    assert line["completion_tokens"] == 6


async def test_each_fact_is_under_its_own_name() -> None:
    """No two fields of a line have changed places: each has what the record has by that name."""
    kinds = {name: str(kind) for name, kind in Finished.__annotations__.items()}
    numbers = {name: place + 0.5 for place, (name, kind) in enumerate(kinds.items()) if "float" in kind}
    told = {name: f"the {name}" for name in kinds if name not in {*numbers, "scored", "trace", "prompt"}}
    maps = {name: {} for name in ("overhead", "counterfactual")}
    pipe = Pipe()
    log = CallLog(pipe.write)
    log(Finished(**{**told, **numbers, **maps, "time": 1.0}))
    log.flush()

    (line,) = pipe.lines
    del line["time"], line["event"]
    assert len(line) == 34
    assert line == {name: value for name, value in {**told, **numbers}.items() if name in line}


async def test_what_is_not_known_is_left_out() -> None:
    """Absent values and empty words make no fields, while false and zero are said."""
    pipe = Pipe()
    log = CallLog(pipe.write)
    log(finished(stream=False, error=None, ttft=None, replica="", prompt_tokens=0))
    log.flush()

    (line,) = pipe.lines
    assert {"error", "ttft", "replica", "prompt"}.isdisjoint(line)
    assert line["stream"] is False
    assert line["prompt_tokens"] == 0


async def test_nothing_breaks_a_line() -> None:
    """Line breaks, control characters and quotes in any text stay inside of their field."""
    pipe = Pipe()
    log = CallLog(pipe.write)
    evil = 'x"}\n{"event":"forged"}\r\x1b[31m\u2028\x00'
    log(finished(error=evil, prompt=evil, detail=evil))
    log.flush()

    (line,) = pipe.lines
    assert line["error"] == line["prompt"] == line["detail"] == evil
    assert pipe.writes[0].count(b"\n") == 1
    assert b"\x1b" not in pipe.writes[0]


async def test_calls_are_written_together_soon_and_in_order() -> None:
    """Calls do not wait for a pipe: what has gathered is written in one piece within a tenth of a second."""
    pipe = Pipe()
    log = CallLog(pipe.write)
    for number in range(50):
        log(finished(request_id=f"req-{number}"))
    assert pipe.writes == []
    await until(lambda: pipe.writes)

    assert len(pipe.writes) == 1
    assert [line["request_id"] for line in pipe.lines] == [f"req-{number}" for number in range(50)]
    log(finished(request_id="later"))
    await until(lambda: len(pipe.writes) == 2)


async def test_flushing_an_empty_log_writes_nothing() -> None:
    """Nothing is written when nothing is waiting."""
    pipe = Pipe()
    CallLog(pipe.write).flush()

    assert pipe.writes == []


async def test_a_full_disk_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Lines that cannot be written are told of and dropped; calls go on."""
    log = CallLog(Pipe(OSError(28, "No space left on device")).write)
    log(finished())
    log.flush()
    log(finished())
    await asyncio.sleep(0)
    log.flush()

    assert [record.message for record in caplog.records] == ["could not write 1 log lines"] * 2
