"""llmperf's `…_individual_responses.json`: a list of objects, one per request; times in seconds.

Its `inter_token_latency_s` divides the sum of all gaps, the one before the first token included, by tokens: it is E2E per
token, not the time between tokens. Here TPOT is (E2E − TTFT)/(tokens − 1) from its other fields, and the file's own figure
is told beside it. Tokens are llmperf's, counted by its own tokenizer; requests carry no names, so two files have no pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats.fields import Fields, FormatError, Loaded, decode


def recognised(value: object) -> bool:
    """Whether a JSON value is such a list."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "end_to_end_latency_s" in value[0]


def read(path: Path, content: bytes, target: str) -> Loaded:
    """Read a file.

    Raises:
        FormatError: it is no list of such objects, or a field is missing or wrong.
    """
    value = decode(path, content)
    if not isinstance(value, list):
        raise FormatError(f"{path}: expected a list of requests; name llmperf's …_individual_responses.json")
    samples, told = [], []
    for index, each in enumerate(value):
        entry = Fields.of(path, f"request {index + 1}", each)
        samples.append(_sample(entry, index, target))
        if samples[-1].ok and (own := entry.maybe("inter_token_latency_s")) is not None:
            told.append(own)
    return Loaded(path=path, format="llmperf", samples=tuple(samples), notes=tuple(_notes(path, samples, told)))


def _notes(path: Path, samples: Sequence[Sample], told: Sequence[float]) -> list[str]:
    mended = [one.tpot_seconds for one in samples if one.tpot_seconds is not None]
    if not told or not mended:
        return []
    note = (
        f"{path}: llmperf's inter-token latency ({1000 * sum(told) / len(told):.1f} ms on average) includes the time to the"
        f" first token; corrected to (E2E − TTFT)/(tokens − 1): {1000 * sum(mended) / len(mended):.1f} ms"
    )
    return [note]


def _sample(entry: Fields, index: int, target: str) -> Sample:
    code, message = entry.values.get("error_code"), entry.text("error_msg")
    tokens = entry.count("number_output_tokens")
    failed = code is not None or not tokens
    ttft = entry.number("ttft_s")
    e2e = entry.number("end_to_end_latency_s")
    if not failed and ttft > e2e:
        raise entry.fail("ttft_s", f"{ttft:g} s, but end_to_end_latency_s is {e2e:g}")
    return Sample(
        line=index + 1,
        id=f"request-{index + 1}",
        category=entry.text("category") or "",
        target=target,
        started=entry.maybe("start_time_s") or 0.0,
        status=0 if failed else 200,
        error=f"llmperf: {message or code or 'no tokens'}" if failed else None,
        ttft_seconds=None if failed else ttft,
        e2e_seconds=e2e,
        prompt_tokens=entry.count("number_input_tokens"),
        completion_tokens=tokens,
    )


def write(path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:  # noqa: ARG001 - one form for all formats
    """Write one pool's samples as llmperf would, its inter-token latency included as it computes it.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_bytes(msgspec.json.format(msgspec.json.encode([_entry(sample) for sample in samples]), indent=4))


def _entry(sample: Sample) -> dict[str, Any]:
    tokens, prompt = (sample.completion_tokens or 0) if sample.ok else 0, sample.prompt_tokens or 0
    return {
        "error_code": None if sample.ok else sample.status or -1,
        "error_msg": sample.error or "",
        "inter_token_latency_s": sample.e2e_seconds / tokens if tokens else 0,
        "ttft_s": sample.ttft_seconds or 0,
        "end_to_end_latency_s": sample.e2e_seconds,
        "request_output_throughput_token_per_s": tokens / sample.e2e_seconds if sample.e2e_seconds else 0,
        "number_total_tokens": prompt + tokens,
        "number_output_tokens": tokens,
        "number_input_tokens": prompt,
        "start_time_s": sample.started,
        "category": sample.category,
    }
