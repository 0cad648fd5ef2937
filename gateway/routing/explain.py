"""A dry run as plain data: what would happen to a call and why. Pure; neither learns nor explores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.routing.plan import plan

if TYPE_CHECKING:
    from classifier.scorer import Contribution
    from gateway.routing.curves import Curves
    from gateway.routing.thresholds import Thresholds
    from gateway.routing.view import Ask, PoolView

_SCORE = ("value", "acceptance_length", "spread", "ngram_acceptance_length", "output_tokens")
_OPTION = ("pool", "time_seconds", "cost_usd", "acceptance_length", "unfit")


def explain(
    ask: Ask,
    pools: Sequence[PoolView],
    curves: Curves,
    contributions: Sequence[Contribution],
    *,
    now: float,
    published: Thresholds | None = None,
) -> dict[str, Any]:
    """Return score, the features that moved it, curve, break-even, threshold and what decided, ready for JSON.

    Raises what `plan` raises.
    """
    found = plan(ask, pools, curves, now=now, chance=_incurious, published=published)
    return {
        "model": ask.model,
        "tenant": ask.tenant,
        "needs": sorted(ask.needs.features),
        "template": ask.template,
        "score": {name: getattr(ask.score, name) for name in _SCORE},
        "features": [{"name": part.name, "value": part.value, "effect": part.effect} for part in contributions],
        "pool": found.pools[0],
        "order": list(found.pools),
        "reason": found.reason,
        "detail": found.detail,
        "threshold": found.threshold,
        "break_even": found.break_even,
        "expected_acceptance_length": found.expected,
        "output_tokens": found.output_tokens,
        "shadow": found.shadow,
        "options": [{name: getattr(option, name) for name in _OPTION} for option in found.options],
        "beliefs": [_belief(pool, ask, curves, now) for pool in pools if pool.speculative],
    }


def _belief(pool: PoolView, ask: Ask, curves: Curves, now: float) -> dict[str, Any]:
    """What is believed of the call on one speculative pool, and the curve that says so."""
    estimate = curves.expected(
        pool,
        score=ask.score,
        temperature=ask.needs.temperature,
        tenant=ask.tenant,
        model=ask.model,
        template=ask.template,
        now=now,
    )
    return {
        "pool": pool.name,
        "revision": pool.revision,
        "belief": pool.belief,
        "guard": pool.guard,
        "acceptance_length": estimate.mean,
        "lower": estimate.lower,
        "deviation": estimate.deviation,
        "samples": estimate.samples,
        "layer": estimate.layer,
        "template_factor": estimate.factor,
        "curve": [
            {"score": point.score, "acceptance_length": point.mean, "lower": point.lower, "samples": point.samples}
            for point in curves.points(pool, ask.needs.temperature, now)
        ],
    }


def _incurious() -> float:
    return 1.0 - 2**-53
