"""What an embedded engine is started with; every field is also a flag of `draftlane engine`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["baseline", "speculative"]
Drafter = Literal["draft_model", "eagle", "ngram"]  # the first two are alike here
MetricsStyle = Literal["current", "v0.11", "v0"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DRAFTERS: tuple[Drafter, ...] = get_args(Drafter)
METRICS_STYLES: tuple[MetricsStyle, ...] = get_args(MetricsStyle)

# One verification step of Qwen3-32B on half a trn2.48xlarge: alone, and with a 1.7B draft of seven tokens fused into it.
STEP_SECONDS: dict[Kind, float] = {"baseline": 0.045, "speculative": 0.105}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine's kind, physics and options; seconds are those of the engine before `speed` divides them.

    Raises ValueError, naming the field, when a value is out of range.
    """

    kind: Kind = "baseline"
    model: str = "demo"
    host: str = "127.0.0.1"
    port: int = 0
    window: int = 7
    drafter: Drafter = "draft_model"
    draft_quality: float = 1.0
    step_seconds: float | None = None
    step_growth: float = 0.0
    slots: int = 4
    ttft_seconds: float = 0.1
    speed: float = 1.0
    seed: int = 0
    default_temperature: float = 0.6  # Qwen3's generation_config.json
    max_model_len: int = 32768
    stream_interval: int = 1
    metrics_style: MetricsStyle = "current"
    spec_counters: bool = True
    per_request_metrics: bool = False
    greedy_only: bool = False
    api_key: str | None = None
    record_limit: int = 1000
    journal: str | None = None

    def __post_init__(self) -> None:
        for name, options in (("kind", KINDS), ("drafter", DRAFTERS), ("metrics_style", METRICS_STYLES)):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {', '.join(options)}, got {getattr(self, name)!r}")
        for name in ("window", "slots", "max_model_len", "stream_interval", "record_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("step_growth", "ttft_seconds", "default_temperature"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be negative, got {getattr(self, name)}")
        if self.speed <= 0 or (self.step_seconds is not None and self.step_seconds <= 0):
            raise ValueError("speed and step_seconds: must be greater than 0")
        if not 0 <= self.draft_quality <= 1:
            raise ValueError(f"draft_quality: must lie in [0, 1], got {self.draft_quality}")

    @property
    def speculative(self) -> bool:
        """Whether a draft model proposes tokens."""
        return self.kind == "speculative"

    @property
    def step(self) -> float:
        """Seconds of one verification step with one running request, before `speed`."""
        return STEP_SECONDS[self.kind] if self.step_seconds is None else self.step_seconds
