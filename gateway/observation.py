"""What one finished call teaches about speculation: tokens per step, seconds per step, and how far to trust them. Pure.

The ladder, best source first (vLLM's own `mean_acceptance_length` averages only over steps with a draft: not used):
 1. engine: m = tokens / (tokens − accepted), from the reply's per-request metrics.
 2. events: one event is one step. The first event carries the prefill's token, no draft's, so m = (tokens − 1) / (events − 1).
 3. timing: m = tokens × s / decode time, for replies that are not streamed; its error is the queue's and the prefill's.
"""

from __future__ import annotations

import msgspec

from gateway.record import Source
from gateway.usage import Speculation, Usage

FEWEST_STEPS = 4  # below, one step more or less moves m by a quarter


class Observation(msgspec.Struct, frozen=True):
    """Tokens per step, steps, seconds per step; `biased` says in a word why it must not be learned from, or is ""."""

    acceptance: float | None = None
    steps: float | None = None
    step_seconds: float | None = None
    source: Source = "none"
    biased: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the relay saw of an answer. Times are seconds; `token_events` excludes a first event that carries only the role."""

    usage: Usage | None
    speculation: Speculation | None
    token_events: int
    streamed: bool
    decode_seconds: (
        float | None
    )  # first to last byte of a stream; for other replies the time after the expected first token
    step_seconds_expected: float
    window: int | None  # None on a baseline pool
    several: bool  # n > 1, beams: steps of several sequences
    swallowed: bool  # parsers merged or hid events
    lagging: bool  # reading had paused, so the engine may have merged events


def observe(seen: Evidence) -> Observation:
    """Return what the answer teaches; source "none" when nothing can be said."""
    if seen.usage is None or seen.usage.completion_tokens < 2:
        return Observation()
    tokens = seen.usage.completion_tokens
    found = _from_engine(seen, tokens) or _from_events(seen, tokens) or _from_timing(seen, tokens)
    if found is None:
        return Observation()
    acceptance, steps, source = found
    step_seconds = None
    if source != "timing" and seen.streamed and seen.decode_seconds and steps >= FEWEST_STEPS:
        step_seconds = seen.decode_seconds / steps
    return Observation(acceptance, steps, step_seconds, source, _bias(seen, acceptance, steps, source))


def _from_engine(seen: Evidence, tokens: int) -> tuple[float, float, Source] | None:
    spec = seen.speculation
    if spec is None or seen.several or not 0 <= spec.accepted < tokens:
        return None
    steps = tokens - spec.accepted
    return tokens / steps, float(steps), "engine"


def _from_events(seen: Evidence, tokens: int) -> tuple[float, float, Source] | None:
    if not seen.streamed or seen.token_events < 2:
        return None
    steps = seen.token_events - 1
    return (tokens - 1) / steps, float(steps), "events"


def _from_timing(seen: Evidence, tokens: int) -> tuple[float, float, Source] | None:
    if seen.streamed or not seen.decode_seconds or seen.decode_seconds <= 0:
        return None
    steps = seen.decode_seconds / seen.step_seconds_expected
    return max(tokens / steps, 1.0), steps, "timing"


def _bias(seen: Evidence, acceptance: float, steps: float, source: Source) -> str:
    """Name the first reason not to learn from this, or ""."""
    if seen.several:
        return "several"
    if source == "events":
        if seen.swallowed:
            return "parser"
        if seen.lagging:
            return "lagging"
        if acceptance < 1.0 - 1e-9:
            return "empty_events"
    if acceptance > (seen.window or 1) + 1 and source != "engine":
        return "above_window"
    if steps < FEWEST_STEPS:
        return "short"
    return ""
