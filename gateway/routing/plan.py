"""The decision: constraints, curve and economics become one ordered list of pools with the reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import BadRequest, Unavailable
from gateway.routing.constraints import LENGTH, Needs, missing, unfit
from gateway.routing.economics import NEVER, Option, break_even, objective, price
from gateway.routing.view import Affinity, Ask, PoolView, Settings

if TYPE_CHECKING:
    from gateway.routing.curves import Curves

__all__ = ["REASONS", "Affinity", "Ask", "Needs", "Option", "Plan", "PoolView", "Settings", "plan"]

REASONS = (
    "predictable",  # speculation is expected to win
    "unpredictable",  # baseline is expected to win
    "constraint",  # a speculative pool cannot serve the call with the same meaning
    "policy",  # the tenant's policy
    "header",  # the client's x-draftlane-route
    "explore",  # taken to learn
    "shadow",  # decided, recorded, served from baseline
    "only_pool",  # the model has one pool
    "pool_down",  # the better pool is not available
    "pool_full",  # the better pool's queue costs more than the other pool's pace
    "guard",  # a guard holds the pool
    "affinity",  # the conversation's prefix cache is worth more
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where a call goes and why, with the numbers behind it."""

    pools: tuple[str, ...]
    reason: str
    detail: str
    score: float
    threshold: float
    break_even: float
    expected: float
    propensity: float
    explored: bool
    shadow: str | None
    options: tuple[Option, ...]
    output_tokens: float


def plan(
    ask: Ask, pools: Sequence[PoolView], curves: Curves, *, now: float, chance: Callable[[], float]
) -> Plan:
    """Return where the call goes; raises Unavailable when no pool can take it, BadRequest when none ever could."""
    fits = [pool for pool in pools if missing(pool, ask.needs) is None]
    if not fits:
        fits = [pool for pool in pools if missing(pool, ask.needs) == LENGTH and not pool.speculative]
    if not fits:
        why = unfit(pools[0], ask.needs) if pools else "it has no pool"
        raise BadRequest(f"No pool of model {ask.model!r} can serve this call: {why}.")
    up = [pool for pool in fits if pool.available and pool.live_replicas > 0]
    if not up:
        raise Unavailable(f"No pool of model {ask.model!r} is available: {fits[0].why_unavailable}.", retry_after=1.0)
    tokens = ask.score.output_tokens
    if ask.needs.max_tokens is not None:
        tokens = min(tokens, float(ask.needs.max_tokens))
    tokens = max(1.0, tokens)
    estimates = {
        pool.name: curves.expected(
            pool, score=ask.score, temperature=ask.needs.temperature, tenant=ask.tenant, model=ask.model, template=ask.template, now=now
        )
        for pool in fits
        if pool.speculative
    }
    lengths = {pool.name: estimates[pool.name].mean if pool.speculative else 1.0 for pool in fits}
    priced = {pool.name: price(pool, tokens, lengths[pool.name], curves.settings.expected_output_tokens) for pool in up}
    baseline = [pool for pool in up if not pool.speculative]
    speculative = [pool for pool in up if pool.speculative]
    _, seconds, dollars = priced[(baseline or up)[0].name]
    reference = (seconds, dollars)
    worth = {name: objective(queue + slot, cost, ask.cost_weight, reference) for name, (queue, slot, cost) in priced.items()}
    order = sorted(up, key=lambda pool: worth[pool.name])
    best = order[0]
    needed, theta, expected = 1.0, 0.0, 1.0
    if speculative:
        first = min(speculative, key=lambda pool: worth[pool.name])
        expected = lengths[first.name]
        if baseline:
            bar = min(worth[pool.name] for pool in baseline)
            needed = break_even(
                first, output_tokens=tokens, weight=ask.cost_weight, reference=reference, bar=bar, queue=priced[first.name][0]
            )
            theta = curves.threshold(first, ask.needs.temperature, needed, now, factor=estimates[first.name].factor)
    reason = "only_pool" if len(up) == 1 else "predictable" if best.speculative else "unpredictable"
    if len(up) == 1 and len(fits) < len(pools):
        reason = "constraint"
    elif len(up) < len(fits):
        reason = "pool_down"
    forced = ask.route if ask.route in ("speculative", "baseline") else ask.policy if ask.policy in ("speculative", "baseline") else None
    explored, propensity, shadow = False, 1.0, None
    if forced is not None:
        wanted = [pool for pool in order if pool.speculative == (forced == "speculative")]
        if wanted:
            order = wanted + [pool for pool in order if pool not in wanted]
            reason = "header" if ask.route == forced else "policy"
    elif ask.policy == "shadow":
        shadow = best.name
        order = [pool for pool in order if not pool.speculative] + [pool for pool in order if pool.speculative]
        reason = "shadow"
    elif ask.explore and len(order) > 1 and speculative and baseline:
        share = curves.settings.explore_near if abs(expected / needed - 1.0) < 0.2 else curves.settings.explore_far
        explored = chance() < share
        propensity = share if explored else 1.0 - share
        if explored:
            other = next(pool for pool in order if pool.speculative != best.speculative)
            order = [other, *(pool for pool in order if pool is not other)]
            reason = "explore"
    options = tuple(
        Option(pool.name, *_seen(priced.get(pool.name)), lengths.get(pool.name, 1.0), unfit(pool, ask.needs) or pool.why_unavailable)
        for pool in pools
    )
    sign = "≥" if expected >= needed else "<"
    detail = (
        f"expected {expected:.2f} tokens per step {sign} break-even {needed:.2f}" if speculative and baseline and needed < NEVER else reason
    )
    return Plan(
        pools=tuple(pool.name for pool in order), reason=reason, detail=detail, score=ask.score.value, threshold=theta,
        break_even=needed, expected=expected, propensity=propensity, explored=explored, shadow=shadow, options=options, output_tokens=tokens,
    )


def _seen(priced: tuple[float, float, float] | None) -> tuple[float, float]:
    return (0.0, 0.0) if priced is None else (priced[0] + priced[1], priced[2])
