"""From samples to a sweep: what each call was, and whether it met what was asked of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.measure.load.sample import Sample
from gateway.measure.windows.candidate import Candidate
from gateway.measure.windows.curve import Load, Measured, curve, step_models
from gateway.measure.windows.result import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a call must meet to count: seconds to its first token and per token after it; None for any."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    def met(self, sample: Sample) -> bool:
        """Whether a call did; one that cannot tell did not."""
        pairs = ((self.ttft_seconds, sample.ttft_seconds), (self.tpot_seconds, _tpot(sample)))
        return sample.ok and all(limit is None or (took is not None and took <= limit) for limit, took in pairs)


def _tpot(sample: Sample) -> float | None:
    """Seconds per token after the first; an answer of one token has none to wait for."""
    if sample.completion_tokens is not None and sample.completion_tokens < 2:
        return 0.0
    return sample.tpot_seconds


def measured(sample: Sample, candidate: Candidate, promise: Promise) -> Measured | None:
    """Return what a call counts for; None where it had no answer at all, which is the same as not having asked."""
    if not sample.answered:
        return None
    tokens = sample.completion_tokens or 0
    decode = sample.e2e_seconds - sample.ttft_seconds if sample.ok and sample.ttft_seconds is not None else None
    return Measured(
        candidate=candidate,
        prompt=sample.line,
        category=sample.category,
        tokens=float(tokens) if sample.ok else 0.0,
        met=promise.met(sample),
        seconds=sample.e2e_seconds,
        decode_seconds=decode if tokens > 1 else None,
        decode_tokens=float(max(0, tokens - 1)),
        steps=_steps(sample, tokens),
    )


def _steps(sample: Sample, tokens: int) -> float | None:
    """Return the verification steps: by the engine's metrics the prefill's token counts as one, by events it does not."""
    if sample.acceptance_length is None or tokens < 2:
        return None
    if sample.acceptance_source == "engine":
        return max(tokens / sample.acceptance_length - 1, 0.0) or None
    return (tokens - 1) / sample.acceptance_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What samples are judged by: the windows, the load that they had, what calls had to meet, and the bootstrap's seed."""

    candidates: Sequence[Candidate]
    load: Load
    promise: Promise
    seed: int = 0


def sweep(
    samples: Iterable[Sample],
    terms: Terms,
    *,
    settings: Mapping[str, Any],
    gone: Mapping[Candidate, str],
    warnings: Sequence[str] = (),
    ended: str | None = None,
) -> Sweep:
    """Put together what was measured, however far it came."""
    named = {one.label: one for one in terms.candidates}
    kept = [sample for sample in samples if sample.target in named]
    calls = [measured(sample, named[sample.target], terms.promise) for sample in kept]
    found = curve([call for call in calls if call is not None], terms.candidates, terms.load, seed=terms.seed)
    failed = [sample for sample in kept if not sample.ok]
    told = [f"{candidate} was given up: {why}" for candidate, why in gone.items()]
    if failed:
        told.append(f"{len(failed)} of {len(kept)} calls failed, the first: line {failed[0].line}: {failed[0].error}")
    return Sweep(
        settings=dict(settings),
        load=str(terms.load),
        windows=found.rows,
        best=dict(found.best),
        step_model=step_models(found.rows),
        warnings=(*warnings, *told, *found.warnings),
        ended=ended or ("; ".join(told[: len(gone)]) or None),
    )
