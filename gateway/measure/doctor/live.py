"""What a visit to an engine shows: whether it is what a pool's settings say of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.figures import Interval, between
from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.visit import Visit

_CONTROL: Final = 0.05  # how far tokens per event of a baseline engine may lie from 1
_FULL: Final = 3  # steps of exactly k tokens, and none of more, after which k is taken for the most


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """What is held to be so of an engine; None is not known."""

    speculative: bool | None = None
    window: int | None = None
    greedy_only: bool | None = None
    max_model_len: int | None = None
    version: str | None = None  # of vLLM, such as "0.32.0"


def judge(seen: Visit, believed: Believed) -> Checkup:
    """Judge one engine by itself."""
    if seen.trouble:
        finding = Finding(
            "fix", "endpoint", f"cannot be used: {seen.trouble}", "is the address right, and the engine up?"
        )
        return Checkup("live", seen.url, (finding,))
    speculates = _speculates(seen, believed)
    findings = (
        *_itself(seen, believed),
        *_answers(seen),
        *_steps(seen, believed, speculates=speculates),
        *_sampling(seen, believed),
        *_counters(seen, speculates=speculates),
        *_taken(seen),
    )
    return Checkup("live", seen.url, findings, _facts(seen, believed, speculates=speculates))


def window_of(seen: Visit, believed: Believed) -> int | None:
    """Return the window: what is believed, what answers tell, or how many positions are counted."""
    told = next((one.window for one in seen.spoken if one.window is not None), None)
    counted = len(seen.after.positions) if seen.after is not None else 0
    return believed.window or told or counted or None


def _speculates(seen: Visit, believed: Believed) -> bool:
    if believed.speculative is not None:
        return believed.speculative
    drafted = seen.after is not None and "drafted" in seen.after.values
    return drafted or any(one.window for one in seen.spoken) or (_mean(seen) or 1.0) > 1.0 + _CONTROL


def _itself(seen: Visit, believed: Believed) -> Iterator[Finding]:
    """Who it says it is."""
    if seen.gateway:
        yield Finding(
            "warn",
            "endpoint",
            "is a Draftlane gateway, which chose a pool for each call",
            "name the engines themselves",
        )
    if seen.version is None:
        yield Finding("note", "version", "is not told by /version, as vLLM does")
    elif believed.version is not None and not seen.version.startswith(believed.version):
        yield Finding(
            "fix",
            "version",
            f"is {seen.version}, not {believed.version}",
            "what was learned of another does not hold: set engine",
        )
    else:
        yield Finding("ok", "version", seen.version)
    if seen.model not in seen.models:
        yield Finding(
            "fix",
            "model",
            f"{seen.model!r} is not among {', '.join(seen.models)}",
            "name one with --model, or served_model",
        )
        return
    length = seen.max_model_len
    if length is None:
        yield Finding("note", "max_model_len", "is not told by /v1/models")
    elif believed.max_model_len is not None and believed.max_model_len > length:
        yield Finding("fix", "max_model_len", f"is {length}, and {believed.max_model_len} is believed", f"set {length}")
    else:
        yield Finding("ok", "max_model_len", f"is {length}")


def _answers(seen: Visit) -> Iterator[Finding]:
    broken = [one.error for one in seen.spoken if one.error]
    if broken:
        yield Finding("fix", "answers", f"{len(broken)} of {len(seen.spoken)} failed: {broken[0]}")
    elif not any(one.tokens for one in seen.spoken):
        yield Finding(
            "warn",
            "usage",
            "is not told on streams, so nothing can be learned",
            "stream_options.include_usage is asked for",
        )


def _mean(seen: Visit) -> float | None:
    """Tokens per event over all answers."""
    told = [one for one in seen.spoken if one.per_step is not None]
    events = sum(one.events - 1 for one in told)
    return sum(one.tokens - 1 for one in told) / events if events else None


def _steps(seen: Visit, believed: Believed, *, speculates: bool) -> Iterator[Finding]:
    """Tokens per event: one step's each, so never more than a window and one."""
    mean, window = _mean(seen), window_of(seen, believed)
    if mean is None:
        return
    counts = [count for one in seen.spoken for count in one.per_event]
    most = max(counts, default=0)
    if not speculates:
        if mean > 1.0 + _CONTROL:
            yield Finding(
                "fix",
                "tokens per event",
                f"are {mean:.2f} of an engine without speculation",
                "it speculates after all, or --stream-interval merges events; baseline must read 1.00",
            )
        else:
            yield Finding("ok", "tokens per event", f"are {mean:.2f}, as without speculation")
        return
    if window is None:
        yield Finding("warn", "window", f"is not known; up to {most} tokens came in an event", "name it with --window")
    elif most > window + 1:
        yield Finding(
            "fix",
            "tokens per event",
            f"are up to {most}, over a window of {window} and one",
            "another window, or --stream-interval merges events: acceptance would be read wrong",
        )
    elif mean < 1.0 + _CONTROL:
        yield Finding(
            "warn",
            "tokens per event",
            f"are {mean:.2f}: nothing that was drafted was accepted",
            "does it speculate at all? look at the draft (draftlane doctor compat)",
        )
    else:
        yield Finding("ok", "tokens per event", f"are {mean:.2f} on average, {most} at most, of a window of {window}")
    if window is not None and counts:
        yield from _meaning(counts, window)


def _meaning(counts: list[int], window: int) -> Iterator[Finding]:
    """Whether a step of this engine ends at k + 1 tokens, or at k as NxD Inference's do."""
    most = max(counts)
    if most == window + 1:
        yield Finding("ok", "window", f"of {window} means up to {window + 1} tokens a step, as in vLLM")
    elif most == window and counts.count(window) >= _FULL:
        yield Finding("note", "window", f"of {window} means up to {window} tokens a step here, as in NxD Inference")


def _sampling(seen: Visit, believed: Believed) -> Iterator[Finding]:
    """Whether temperature is heard at all."""
    greedy = is_greedy(seen)
    if greedy is None:
        return
    if greedy and believed.greedy_only is False:
        yield Finding(
            "fix",
            "sampling",
            "temperature is ignored: compiled greedy",
            "set greedy_only = true, or callers get what they did not ask for",
        )
    elif not greedy and believed.greedy_only:
        yield Finding(
            "warn", "sampling", "temperature is heard, and greedy_only keeps such calls away", "set greedy_only = false"
        )
    elif greedy:
        yield Finding(
            "note", "sampling", "temperature is ignored: compiled greedy, so set greedy_only = true for its pool"
        )
    else:
        yield Finding("ok", "sampling", "temperature is heard")


def is_greedy(seen: Visit) -> bool | None:
    """Whether hot answers are all that of temperature 0; None where there are none."""
    if not seen.spoken or not seen.hot or not all(seen.hot):
        return None
    return all(text == seen.spoken[-1].text for text in seen.hot)


def _interval(seen: Visit) -> Interval | None:
    return between(seen.before, seen.after) if seen.before is not None and seen.after is not None else None


def _counters(seen: Visit, *, speculates: bool) -> Iterator[Finding]:
    """Whether /metrics moves with what was asked."""
    moved = _interval(seen)
    if moved is None:
        yield Finding(
            "warn",
            "/metrics",
            "cannot be read",
            "load that others cause, and a cross-check of acceptance, stay unknown",
        )
        return
    if not moved.generated:
        yield Finding(
            "warn", "/metrics", "generation_tokens did not move with the answers", "is --disable-log-stats set?"
        )
        return
    if moved.steps and moved.mean_step_seconds is not None:
        yield Finding("ok", "step time", f"{1000 * moved.mean_step_seconds:.1f} ms by the engine's histogram")
    if not speculates:
        yield Finding("ok", "/metrics", f"{moved.generated:.0f} tokens counted")
    elif moved.by_counters is not None:
        yield Finding("ok", "/metrics", f"speculation counters live: {moved.by_counters:.2f} tokens a step")
    else:
        yield Finding(
            "note",
            "/metrics",
            "speculation counters are absent or zero, as with fused speculation on Neuron",
            "histograms and events are used instead",
        )
    if speculates and not any(one.window for one in seen.spoken):
        yield Finding(
            "note",
            "answers",
            "do not tell their own acceptance",
            "--per-request-spec-decode-metrics summary does, from vLLM 0.29 on",
        )


def _taken(seen: Visit) -> Iterator[Finding]:
    refused = sorted(name for name, status in seen.taken.items() if 400 <= status < 500)
    failed = sorted(name for name, status in seen.taken.items() if status >= 500)
    if refused:
        yield Finding("note", "refuses", f"{', '.join(refused)}: the pool's `supports` must not list them")
    if failed:
        yield Finding("warn", "fails", f"at {', '.join(failed)} with a 5xx", "keep them out of the pool's `supports`")


def _facts(seen: Visit, believed: Believed, *, speculates: bool) -> dict[str, Any]:
    moved = _interval(seen)
    return {
        "version": seen.version,
        "model": seen.model,
        "max_model_len": seen.max_model_len,
        "speculative": speculates,
        "window": window_of(seen, believed) if speculates else None,
        "greedy_only": is_greedy(seen),
        "tokens_per_event": _mean(seen),
        "most_tokens_per_event": max((count for one in seen.spoken for count in one.per_event), default=None),
        "by_counters": moved.by_counters if moved is not None else None,
        "by_histograms": moved.by_histograms if moved is not None else None,
        "step_seconds": moved.mean_step_seconds if moved is not None else None,
        "status_by_feature": dict(seen.taken),
    }
