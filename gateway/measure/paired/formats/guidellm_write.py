"""A report that guidellm loads: what its schema asks for (version 2, guidellm 0.8), worked out from samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats.guidellm import OURS
from gateway.measure.paired.pairs import busy_seconds, reached

_PERCENTILES: Final = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9,
}  # fmt: skip
_UNKNOWN: Final = -1.0  # guidellm's own word for times that were not taken
_DELAYS: Final = (
    "queued_time_avg", "resolve_start_delay_avg", "resolve_targeted_start_delay_avg", "request_start_delay_avg",
    "request_targeted_start_delay_avg", "resolve_end_delay_avg", "finalized_delay_avg", "processed_delay_avg",
)  # fmt: skip
_MODALITIES: Final = {  # summaries that the schema names and that may be null
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
Figure = Callable[[Sample], float | None]


def write(path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:
    """Write one pool's samples at one level as a report of one benchmark.

    Raises:
        OSError: the file cannot be written.
    """
    report = {
        "metadata": {"version": 2, "guidellm_version": "0.8.1", "python_version": "", "platform": OURS},
        "config": _config(concurrency, model),
        "benchmarks": [_benchmark(samples, concurrency, model)],
    }
    path.write_bytes(msgspec.json.encode(report))


def _config(concurrency: int | None, model: str) -> dict[str, Any]:
    return {
        "spec": {
            "backend": {"kind": "openai_http", "target": "http://localhost", "model": model},
            "profile": {"kind": "concurrent", "streams": [concurrency or 1]},
            "data": [{"kind": "synthetic_text", "prompt_tokens": 1, "output_tokens": 1}],
        }
    }


def _benchmark(samples: Sequence[Sample], concurrency: int | None, model: str) -> dict[str, Any]:
    whole, failed = [one for one in samples if one.ok], [one for one in samples if not one.ok]
    start = min((one.started for one in samples), default=0.0)
    end = max((one.started + one.e2e_seconds for one in samples), default=0.0)
    counts = {"successful": len(whole), "errored": len(failed), "incomplete": 0, "total": len(samples)}
    return {
        "type_": "generative_benchmark",
        "config": {
            "id_": OURS,
            "run_id": OURS,
            "run_index": 0,
            "strategy": {"type_": "concurrent", "streams": concurrency or 1},
            "constraints": {},
            "profile": {},
            "requests": {},
            "backend": {"model": model},
            "environment": {},
        },
        "scheduler_state": {
            "start_time": start,
            "end_time": end,
            "successful_requests": len(whole),
            "errored_requests": len(failed),
        },
        "scheduler_metrics": _scheduler(whole, counts, start, end),
        "metrics": _metrics(whole, failed, counts),
        "requests": {
            "successful": [_request(n, one) for n, one in enumerate(whole)],
            "errored": [_request(n, one) for n, one in enumerate(failed, len(whole))],
            "incomplete": [],
        },
        "start_time": start,
        "end_time": end,
        "duration": end - start,
    }


def _scheduler(whole: Sequence[Sample], counts: dict[str, int], start: float, end: float) -> dict[str, Any]:
    mean = float(np.mean([one.e2e_seconds for one in whole])) if whole else 0.0
    return {
        **dict.fromkeys(("start_time", "request_start_time", "measure_start_time"), start),
        **dict.fromkeys(("measure_end_time", "request_end_time", "end_time"), end),
        **dict.fromkeys(("request_time_avg", "resolve_time_avg"), mean),
        **dict.fromkeys(_DELAYS, _UNKNOWN),
        "requests_made": counts,
        "strategy_type": "concurrent",
    }


def _metrics(whole: Sequence[Sample], failed: Sequence[Sample], counts: dict[str, int]) -> dict[str, Any]:
    seconds = busy_seconds([*whole, *failed]) or 1e-9

    def spread(figure: Figure) -> dict[str, Any]:
        parts = {"successful": whole, "errored": failed, "incomplete": (), "total": [*whole, *failed]}
        return {
            status: _distribution(value for one in part if (value := figure(one)) is not None)
            for status, part in parts.items()
        }

    def rate(figure: Figure) -> dict[str, Any]:
        total = sum(figure(one) or 0.0 for one in whole) / seconds
        return {status: _distribution([total] if status in ("successful", "total") else []) for status in counts}

    level = reached([*whole, *failed]) if whole or failed else None
    return {
        "request_totals": counts,
        "requests_per_second": rate(lambda one: 1.0),  # noqa: ARG005 - each counts once
        "request_concurrency": {status: _distribution([level or 0.0]) for status in counts},
        "request_latency": spread(lambda one: one.e2e_seconds),
        "request_streaming_iterations_count": spread(lambda one: float(one.events)),
        "prompt_token_count": spread(lambda one: one.prompt_tokens),
        "output_token_count": spread(lambda one: one.completion_tokens),
        "total_token_count": spread(_tokens),
        "time_to_first_token_ms": spread(lambda one: _ms(one.ttft_seconds)),
        "time_to_first_output_token_ms": spread(lambda one: _ms(one.ttft_seconds)),
        "time_per_output_token_ms": spread(
            lambda one: 1000 * one.e2e_seconds / one.completion_tokens if one.completion_tokens else None
        ),
        "inter_token_latency_ms": spread(lambda one: _ms(one.tpot_seconds)),
        "time_to_last_round_trip_ms": spread(lambda one: None),  # noqa: ARG005 - of web sockets alone
        "avg_round_trip_time_ms": spread(lambda one: None),  # noqa: ARG005 - of web sockets alone
        "prompt_tokens_per_second": rate(lambda one: one.prompt_tokens),
        "output_tokens_per_second": rate(lambda one: one.completion_tokens),
        "tokens_per_second": rate(_tokens),
        "output_tokens_per_iteration": spread(_per_event),
        "iter_tokens_per_iteration": spread(_per_iteration),
        **{kind: dict.fromkeys(parts) for kind, parts in _MODALITIES.items()},
    }  # fmt: skip


def _tokens(one: Sample) -> float | None:
    return float((one.prompt_tokens or 0) + (one.completion_tokens or 0))


def _per_event(one: Sample) -> float | None:
    return one.completion_tokens / one.events if one.completion_tokens and one.events else None


def _per_iteration(one: Sample) -> float | None:
    return (one.completion_tokens - 1) / (one.events - 1) if one.completion_tokens and one.events > 1 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _distribution(values: Iterable[float | None]) -> dict[str, Any]:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    some = known if len(known) else np.zeros(1)
    return {
        "mean": float(some.mean()),
        "median": float(np.median(some)),
        "mode": float(np.median(some)),
        "variance": float(some.var()),
        "std_dev": float(some.std()),
        "min": float(some.min()),
        "max": float(some.max()),
        "count": len(known),
        "total_sum": float(known.sum()),
        "percentiles": {name: float(np.percentile(some, at)) for name, at in _PERCENTILES.items()},
    }


def _request(number: int, sample: Sample) -> dict[str, Any]:
    start, end = sample.started, sample.started + sample.e2e_seconds
    first = None if sample.ttft_seconds is None else start + sample.ttft_seconds
    identity = f"{sample.id}/{sample.repeat}/{number}"
    timings = {
        "resolve_start": start,
        "request_start": start,
        "first_request_iteration": first,
        "first_token_iteration": first,
        "first_output_token_iteration": first,
        "last_token_iteration": end,
        "last_request_iteration": end,
        "request_iterations": sample.events,
        "token_iterations": sample.events,
        "request_end": end,
        "resolve_end": end,
    }
    ours = (
        "line", "id", "repeat", "category", "status", "cost_usd", "output_sha256", "acceptance_length", "acceptance_source",
    )  # fmt: skip
    return {
        "type_": "generative_request_stats",
        "request_id": identity,
        "info": {
            "request_id": identity,
            "status": "completed" if sample.ok else "errored",
            "timings": timings,
            "error": sample.error,
        },
        "input_metrics": {"text_tokens": sample.prompt_tokens},
        "output_metrics": {"text_tokens": sample.completion_tokens},
        "request_start_time": start,
        "request_end_time": end,
        "request_latency": sample.e2e_seconds,
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.completion_tokens,
        "time_to_first_token_ms": _ms(sample.ttft_seconds),
        OURS: {name: getattr(sample, name) for name in ours},
    }
