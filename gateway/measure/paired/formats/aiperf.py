"""aiperf's `profile_export.jsonl`: one record per line, each metric with its value and unit.

Records of the warm-up are left out. `request_latency` ends with the last content, `time_to_first_token` with the first
chunk; acceptance is the engine's own where the server tells it (`spec_decode_acceptance`). Conversations have names that a
run with the same input and seed has again, so two files can be paired by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats.fields import Fields, FormatError, Loaded, lines_of

_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_OURS: Final = "draftlane"


def recognised(value: object) -> bool:
    """Whether the first line's JSON value is such a record."""
    return isinstance(value, dict) and "metadata" in value and "metrics" in value


def summary(value: object) -> bool:
    """Whether a JSON value is aiperf's summary, which has no single requests."""
    return isinstance(value, dict) and (
        "aiperf_version" in value or {"input_config", "request_latency"} <= value.keys()
    )


def read(path: Path, content: bytes, target: str) -> Loaded:
    """Read a file.

    Raises:
        FormatError: a line is no record, or a field of it is wrong.
    """
    samples: list[Sample] = []
    seen: Counter[str] = Counter()
    named = True
    for place, value in lines_of(path, content):
        entry = Fields.of(path, place, value)
        about = entry.under("metadata")
        if about is None or (entry.under("metrics") is None and entry.under("error") is None):
            raise entry.fail("metadata or metrics", "missing; name aiperf's profile_export.jsonl")
        if about.text("benchmark_phase") == "warmup":
            continue
        conversation = about.text("conversation_id")
        named = named and conversation is not None
        name = f"{conversation}/{about.count('turn_index') or 0}" if conversation else f"request-{len(samples) + 1}"
        line = 0 if conversation else len(samples) + 1
        samples.append(_sample(entry, about, target, line=line, name=name, repeat=seen[name]))
        seen[name] += 1
    if not samples:
        raise FormatError(f"{path}: no record of a request")
    return Loaded(path=path, format="aiperf", samples=tuple(samples), keyed="id" if named else "")


def _sample(entry: Fields, about: Fields, target: str, *, line: int, name: str, repeat: int) -> Sample:
    start, end = (about.number(field) / 1e9 for field in ("request_start_ns", "request_end_ns"))
    failure = entry.under("error")
    cancelled = about.values.get("was_cancelled") is True
    tokens = _metric(entry, "output_sequence_length", "usage_completion_tokens")
    count = None if tokens is None else int(tokens)
    accepted = _accepted(entry)
    length = count / (count - accepted) if count and accepted is not None and accepted < count else None
    ours = entry.under(_OURS)
    problem = (failure.text("message") or "error") if failure is not None else "cancelled" if cancelled else None
    latency = _seconds(entry, "request_latency")
    found = Sample(
        line=line,
        id=name,
        target=target,
        repeat=repeat,
        started=start,
        status=200 if problem is None else int((failure.maybe("code") if failure else None) or 0),
        error=None if problem is None else f"aiperf: {problem}",
        ttft_seconds=_seconds(entry, "time_to_first_token"),
        e2e_seconds=max(end - start, 0.0) if latency is None else latency,
        prompt_tokens=None if (prompt := _metric(entry, "input_sequence_length")) is None else int(prompt),
        completion_tokens=count,
        acceptance_length=length,
        acceptance_source="engine" if length else None,
    )
    if ours is None:
        return found
    return msgspec.structs.replace(
        found,
        line=ours.count("line") or 0,
        id=ours.text("id") or name,
        repeat=ours.count("repeat") or 0,
        category=ours.text("category") or "",
        cost_usd=ours.maybe("cost_usd"),
        output_sha256=ours.text("output_sha256") or "",
        events=ours.count("events") or 0,
        acceptance_length=ours.maybe("acceptance_length"),
        acceptance_source=ours.text("acceptance_source"),
    )


def _accepted(entry: Fields) -> int | None:
    record = entry.under("spec_decode_acceptance")
    return None if record is None else record.count("num_accepted_draft_tokens")


def _metric(entry: Fields, *names: str) -> float | None:
    metrics = entry.under("metrics")
    for name in names:
        if metrics is not None and (found := metrics.under(name)) is not None:
            return found.number("value")
    return None


def _seconds(entry: Fields, name: str) -> float | None:
    metrics = entry.under("metrics")
    found = None if metrics is None else metrics.under(name)
    if found is None:
        return None
    unit = found.text("unit") or ""
    if unit not in _SECONDS:
        raise found.fail("unit", f"expected one of {', '.join(_SECONDS)}, got {unit!r}")
    return found.number("value") * _SECONDS[unit]


def write(path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:  # noqa: ARG001 - one form for all formats
    """Write one pool's samples as aiperf's records.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_bytes(b"".join(msgspec.json.encode(_record(n, one)) + b"\n" for n, one in enumerate(samples)))


def _record(number: int, sample: Sample) -> dict[str, Any]:
    start = round(sample.started * 1e9)
    tokens = sample.completion_tokens
    tpot = sample.tpot_seconds
    values = (
        ("request_latency", 1000 * sample.e2e_seconds, "ms"),
        ("time_to_first_token", None if sample.ttft_seconds is None else 1000 * sample.ttft_seconds, "ms"),
        ("inter_token_latency", None if tpot is None else 1000 * tpot, "ms"),
        ("output_sequence_length", tokens, "tokens"),
        ("input_sequence_length", sample.prompt_tokens, "tokens"),
    )
    record: dict[str, Any] = {
        "metadata": {
            "session_num": number,
            "conversation_id": sample.id,
            "turn_index": 0,
            "request_start_ns": start,
            "request_end_ns": start + round(sample.e2e_seconds * 1e9),
            "worker_id": _OURS,
            "record_processor_id": _OURS,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            name: {"value": value, "unit": unit} for name, value, unit in values if value is not None and sample.ok
        },
        "error": None if sample.ok else {"code": sample.status or None, "message": sample.error or ""},
    }
    ours = (
        "line",
        "id",
        "repeat",
        "category",
        "cost_usd",
        "output_sha256",
        "events",
        "acceptance_length",
        "acceptance_source",
    )
    return record | {_OURS: {name: getattr(sample, name) for name in ours}}
