"""`vllm bench serve --save-result --save-detailed`: parallel lists, one entry per request; times in seconds.

Files of `--append-result` hold several such objects, one after another. `output_lens`, `ttfts`, `itls` and `errors` are
there since 2024, `latencies` and `start_times` since 2025; without latencies E2E is TTFT and all gaps together. Gaps are
between chunks, so under speculation they are times of steps, not of tokens; TPOT is (E2E − TTFT)/(tokens − 1) as vLLM's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats.fields import Fields, FormatError, Keyed, Loaded, decode
from gateway.measure.paired.pairs import busy_seconds

_ADVICE: Final = "run vllm bench serve with --save-result --save-detailed"
_OURS: Final = "draftlane"


def recognised(value: object) -> bool:
    """Whether a JSON value is such a result."""
    return isinstance(value, dict) and "output_throughput" in value and "total_output_tokens" in value


def read(path: Path, content: bytes, target: str) -> Loaded:
    """Read a file's last result.

    Raises:
        FormatError: a field is missing or wrong.
    """
    found = Fields.of(path, "", decode(path, _last(content)))
    tokens = found.items("output_lens", _ADVICE)
    ttfts, itls = (_as_long(found, name, tokens) for name in ("ttfts", "itls"))
    optional = {
        name: _as_long(found, name, tokens) if isinstance(found.values.get(name), list) else [None] * len(tokens)
        for name in ("input_lens", "latencies", "start_times", "errors", "generated_texts")
    }
    chat = str(found.values.get("backend") or found.values.get("endpoint_type") or "").endswith("-chat")
    samples = []
    for index, count in enumerate(tokens):
        row = {name: values[index] for name, values in optional.items()}
        entry = Fields.of(
            path, f"request {index + 1}", {**row, "output_lens": count, "ttfts": ttfts[index], "itls": itls[index]}
        )
        samples.append(_sample(entry, index, target, chat=chat))
    keyed, samples = _ours(found, samples)
    drafted = found.maybe("spec_decode_acceptance_length")
    note = (
        () if drafted is None else (f"{path}: the engine's counters read {drafted:.2f} tokens per step with a draft",)
    )
    texts = {
        (one.line, one.id, one.repeat): text
        for one, text in zip(samples, optional["generated_texts"], strict=True)
        if text
    }
    return Loaded(
        path=path,
        format="vllm",
        samples=tuple(samples),
        concurrency=found.count("max_concurrency"),
        keyed=keyed,
        notes=note,
        texts=texts or None,
    )


def _last(content: bytes) -> bytes:
    """Return the last object of a file of --append-result, which puts one on each line."""
    lines = [line for line in content.splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 and lines[0].startswith(b"{") and lines[0].endswith(b"}") else content


def _as_long(found: Fields, name: str, tokens: Sequence[Any]) -> list[Any]:
    values = found.items(name, _ADVICE)
    if len(values) != len(tokens):
        raise found.fail(name, f"{len(values)} entries, but output_lens has {len(tokens)}")
    return values


def _sample(entry: Fields, index: int, target: str, *, chat: bool) -> Sample:
    count, error = entry.count("output_lens"), entry.text("errors")
    gaps = entry.items("itls")
    if not all(isinstance(gap, int | float) and not isinstance(gap, bool) for gap in gaps):
        raise entry.fail("itls", "expected a list of numbers")
    ttft = entry.number("ttfts")
    e2e = entry.maybe("latencies")
    text = entry.text("generated_texts")
    # Chat streams open with a chunk that carries the role alone, whose time vLLM takes for the first token's.
    events = len(gaps) + (0 if chat else 1)
    failed = error or ("" if count else "no tokens")
    return Sample(
        line=index + 1,
        id=f"request-{index + 1}",
        target=target,
        started=entry.maybe("start_times") or 0.0,
        status=0 if failed else 200,
        error=f"vllm: {failed.strip().splitlines()[-1]}" if failed else None,
        ttft_seconds=None if failed else ttft,
        e2e_seconds=ttft + sum(gaps) if e2e is None else e2e,
        prompt_tokens=entry.count("input_lens"),
        completion_tokens=count,
        events=events,
        acceptance_length=(count - 1) / (events - 1) if count and not failed and 1 < events <= count else None,
        acceptance_source="events" if count and not failed and 1 < events <= count else None,
        output_sha256=sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text and not failed else "",
    )


def _ours(found: Fields, samples: list[Sample]) -> tuple[Keyed, list[Sample]]:
    """Take back what `write` put beside vLLM's own fields."""
    ours = found.under(_OURS)
    if ours is None:
        return "place", samples
    rows = ours.items("requests")
    if len(rows) != len(samples):
        raise ours.fail("requests", f"{len(rows)} entries, but output_lens has {len(samples)}")
    try:
        return "id", [
            msgspec.structs.replace(one, **_Extra.checked(row)) for one, row in zip(samples, rows, strict=True)
        ]
    except msgspec.ValidationError as error:
        raise ours.fail("requests", str(error)) from None


class _Extra(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What samples hold beyond vLLM's fields."""

    line: int
    id: str
    category: str = ""
    repeat: int = 0
    started: float = 0.0
    status: int = 200
    error: str | None = None
    ttft_seconds: float | None = None
    acceptance_length: float | None = None
    acceptance_source: str | None = None
    cost_usd: float | None = None
    output_sha256: str = ""
    events: int = 0

    @classmethod
    def checked(cls, row: object) -> dict[str, Any]:
        """Return the fields of a row."""
        return msgspec.structs.asdict(msgspec.convert(row, cls))


def write(path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:
    """Write one pool's samples at one level as vLLM would.

    Gaps between chunks are not kept in samples: `itls` spreads each decode time evenly over its events, so means and counts
    are right and no percentiles of gaps are written.

    Raises:
        OSError: the file cannot be written.
    """
    begun = datetime.fromtimestamp(min((one.started for one in samples), default=0.0), UTC)
    result: dict[str, Any] = {
        "date": f"{begun:%Y%m%d-%H%M%S}",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": samples[0].target if samples else None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(samples),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        **_totals(samples),
        "input_lens": [sample.prompt_tokens or 0 for sample in samples],
        "output_lens": [(sample.completion_tokens or 0) if sample.ok else 0 for sample in samples],
        "ttfts": [sample.ttft_seconds or 0.0 for sample in samples],
        "itls": [_gaps(sample) for sample in samples],
        "latencies": [sample.e2e_seconds for sample in samples],
        "start_times": [sample.started for sample in samples],
        "errors": [sample.error or "" for sample in samples],
        **_summaries([sample for sample in samples if sample.ok]),
        _OURS: {"version": 1, "itls": "spread evenly", "requests": [_extra(sample) for sample in samples]},
    }
    path.write_bytes(msgspec.json.encode(result))


def _totals(samples: Sequence[Sample]) -> dict[str, Any]:
    whole = [sample for sample in samples if sample.ok]
    seconds = busy_seconds(samples) or 1e-9
    tokens, prompts = (sum(getattr(one, name) or 0 for one in whole) for name in ("completion_tokens", "prompt_tokens"))
    return {
        "duration": seconds,
        "completed": len(whole),
        "failed": len(samples) - len(whole),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(whole) / seconds,
        "request_goodput": None,
        "output_throughput": tokens / seconds,
        "total_token_throughput": (tokens + prompts) / seconds,
    }


def _gaps(sample: Sample) -> list[float]:
    gaps = max(sample.events - 1, 0)
    if sample.ttft_seconds is None or not gaps:
        return []
    return [(sample.e2e_seconds - sample.ttft_seconds) / gaps] * gaps


def _extra(sample: Sample) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in _Extra.__struct_fields__}


def _summaries(whole: Sequence[Sample]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, field in (("ttft", "ttft_seconds"), ("tpot", "tpot_seconds"), ("e2el", "e2e_seconds")):
        values = [1000 * value for one in whole if (value := getattr(one, field)) is not None] or [0.0]
        found |= {
            f"mean_{name}_ms": float(np.mean(values)),
            f"median_{name}_ms": float(np.median(values)),
            f"std_{name}_ms": float(np.std(values)),
            f"p99_{name}_ms": float(np.percentile(values, 99)),
        }
    gaps = [1000 * gap for one in whole for gap in _gaps(one)]
    return found | ({"mean_itl_ms": float(np.mean(gaps))} if gaps else {})


__all__ = ["FormatError", "read", "recognised", "write"]
