"""What a decision reads: settings, a snapshot of each pool, and the call's question. Frozen values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.routing.constraints import Needs

Policy = Literal["auto", "speculative", "baseline", "shadow"]
Route = Literal["auto", "speculative", "baseline"]
Belief = Literal["learned", "prior"]


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool as it is at the moment of one decision.

    `slots`, `running` and `queued` count all live replicas together; `step_seconds` is seconds per verification step at
    that load; `step_growth` is the relative growth of the unloaded step per further running request on a replica; money
    is US dollars. `guard` names the guard that holds the pool; under `belief` "prior" nothing learned of it is used.
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
    guard: str | None = None
    belief: Belief = "learned"


class Affinity(msgspec.Struct, frozen=True, kw_only=True):
    """Which pool holds a conversation's prefix cache: elsewhere `tokens` are prefilled again at `seconds_per_token`."""

    pool: str
    tokens: int
    seconds_per_token: float


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The question a call puts: for whom, under which policy, what it needs of an engine, how predictable it looks.

    `cost_weight` is 0 for soonest and 1 for cheapest; `explore` is whether the tenant lets its calls try other pools;
    `template` is the fingerprint of system prompt and tools, "" when there is neither.
    """

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
    """The dials of routing; the defaults are those that did best, or as well as any, in the fleet simulation.

    `prior_samples` (n0) is what the prior weighs in each bin, `template_samples` what the curve weighs against a template,
    both in effective samples. `explore_near` is the largest share of calls that try a pool that looks worse, where that
    teaches most; `explore_far` the share where it teaches next to nothing, which keeps every choice possible, and of which
    a tenth is left where the pool looks hopeless.
    """

    prior_samples: float = 20.0
    template_samples: float = 8.0
    max_templates: int = 20_000
    half_life_seconds: float = 21600.0
    fast_half_life_seconds: float = 120.0
    explore_near: float = 0.05
    explore_far: float = 0.003
    hysteresis: float = 0.05
    expected_output_tokens: float = 256.0
    cost_weight: float = 0.5

    @property
    def learning(self) -> tuple[float, ...]:
        """The dials that what was learned depends on."""
        return (
            self.prior_samples,
            self.template_samples,
            self.max_templates,
            self.half_life_seconds,
            self.fast_half_life_seconds,
        )
