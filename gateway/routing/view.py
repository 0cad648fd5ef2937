"""What a decision reads: settings, a snapshot of each pool, and the call's question. Frozen values, no behaviour beyond arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.routing.constraints import Needs

Policy = Literal["auto", "speculative", "baseline", "shadow"]
Route = Literal["auto", "speculative", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool as it is at the moment of one decision.

    `slots`, `running` and `queued` count all live replicas together; `step_seconds` is seconds per verification step at that load;
    `step_growth` is the relative growth of the unloaded step per further running request on a replica; money is US dollars.
    """

    name: str
    speculative: bool
    window: int
    drafter: str | None
    revision: str
    supports: frozenset[str]
    max_model_len: int | None
    slots: int
    running: int
    queued: int
    live_replicas: int
    step_seconds: float
    ttft_seconds: float
    price_per_slot_second: float
    available: bool = True
    why_unavailable: str | None = None
    step_growth: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Which pool holds a conversation's prefix cache, and what losing it costs: `tokens` to prefill again at `seconds_per_token`."""

    pool: str
    tokens: int
    seconds_per_token: float = 0.0002


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The question a call puts: for whom, under which policy, what the engine must be able to do, and how predictable it looks."""

    model: str
    tenant: str
    policy: Policy
    route: Route | None
    cost_weight: float
    explore: bool
    needs: Needs
    score: Score
    template: str
    affinity: Affinity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The dials of routing, with the defaults that the fleet simulation supports.

    `prior_samples` is n0, the effective samples that the prior is worth in each bin; half-lives are seconds.
    """

    prior_samples: float = 20.0
    half_life_seconds: float = 3600.0
    fast_half_life_seconds: float = 300.0
    template_samples: float = 8.0
    max_templates: int = 20_000
    explore_near: float = 0.03
    explore_far: float = 0.01
    hysteresis: float = 0.05
    expected_output_tokens: float = 256.0
    cost_weight: float = 0.5
