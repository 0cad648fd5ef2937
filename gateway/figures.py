"""An engine's /metrics page read as figures, and what two readings of it say about the time between. Pure.

vLLM renamed its metrics over time; ALIASES holds every name that 0.9.1 (V0), 0.11, 0.24 and 0.32 use. Counters restart with
the engine: a negative difference is a restart and says nothing. Two estimates of tokens per step come out, as each can be
dead:
 - counters: Δgenerated / (Δgenerated − Δaccepted). Absent or zero with fused speculation on Neuron.
 - histograms: (Δgenerated − Δfirst tokens) / Δsteps, where "inter-token latency" is observed once per step, not per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "generated": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "prompted": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
    "first_tokens": ("vllm:time_to_first_token_seconds_count",),
    "first_token_seconds": ("vllm:time_to_first_token_seconds_sum",),
    "steps": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "step_seconds": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "queue_seconds": ("vllm:request_queue_time_seconds_sum",),
    "queued": ("vllm:request_queue_time_seconds_count",),
}
POSITIONS: Final = (
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
)
GAUGES: Final = frozenset({"running", "waiting", "kv_usage"})
_NAMES: Final = {name: key for key, names in ALIASES.items() for name in names}
_WANTED: Final = (*_NAMES, *POSITIONS)
_LOOKED_AT: Final = 20  # lines of a page without any of these, to tell other metrics from none at all


@dataclass(frozen=True, slots=True)
class Figures:
    """One reading: values summed over label sets, by the keys of ALIASES; `positions` is accepted drafts by place."""

    at: float
    values: Mapping[str, float]
    positions: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened between two readings of one replica, additive over replicas: counts, tokens and seconds."""

    seconds: float = 0.0
    generated: float = 0.0
    accepted: float | None = None  # None: the engine does not count
    first_tokens: float = 0.0
    steps: float = 0.0
    step_seconds: float = 0.0

    def __add__(self, other: Interval) -> Interval:
        accepted = None
        if self.accepted is not None or other.accepted is not None:
            accepted = (self.accepted or 0.0) + (other.accepted or 0.0)
        return Interval(
            seconds=max(self.seconds, other.seconds),
            generated=self.generated + other.generated,
            accepted=accepted,
            first_tokens=self.first_tokens + other.first_tokens,
            steps=self.steps + other.steps,
            step_seconds=self.step_seconds + other.step_seconds,
        )

    @property
    def by_counters(self) -> float | None:
        """Tokens per step by the engine's acceptance counters; None when they are dead or nothing was generated."""
        if not self.accepted or self.generated <= self.accepted:
            return None
        return self.generated / (self.generated - self.accepted)

    @property
    def by_histograms(self) -> float | None:
        """Tokens per step by the step histogram; None when nothing was decoded."""
        if self.steps < 1:
            return None
        return (self.generated - self.first_tokens) / self.steps

    @property
    def mean_step_seconds(self) -> float | None:
        """Seconds per step; None when nothing was decoded."""
        return self.step_seconds / self.steps if self.steps >= 1 else None


def read(text: str, at: float) -> Figures:
    """Read a page; unknown metrics are passed over.

    Raises:
        ValueError: not the Prometheus text format.
    """
    values: dict[str, float] = {}
    positions: dict[int, float] = {}
    lines = text.splitlines()
    # The event loop waits for this: of a page's thousand lines two dozen are parsed. A page without any is looked at, too.
    wanted = [line for line in lines if line.startswith(_WANTED)] or lines[:_LOOKED_AT]
    for family in text_string_to_metric_families("\n".join([*wanted, ""])):
        if not family.name.startswith("vllm:"):
            continue
        for sample in family.samples:
            key = _NAMES.get(sample.name)
            if key is not None:
                values[key] = values.get(key, 0.0) + sample.value
            elif sample.name in POSITIONS:
                place = int(sample.labels.get("position", -1))
                positions[place] = positions.get(place, 0.0) + sample.value
    return Figures(at, values, positions)


def between(before: Figures, after: Figures) -> Interval | None:
    """Return what happened between two readings of one replica; None after a restart or when no time passed."""
    change: dict[str, float] = {}
    for key, value in after.values.items():
        if key in GAUGES:
            continue
        change[key] = value - before.values.get(key, 0.0)
        if change[key] < 0:
            return None
    if after.at <= before.at:
        return None
    return Interval(
        seconds=after.at - before.at,
        generated=change.get("generated", 0.0),
        accepted=change.get("accepted"),
        first_tokens=change.get("first_tokens", 0.0),
        steps=change.get("steps", 0.0),
        step_seconds=change.get("step_seconds", 0.0),
    )
