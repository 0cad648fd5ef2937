"""Time and money of a call on each pool, and the acceptance length at which two pools tie. Plain arithmetic on a snapshot.

    time_p = queue_p + ttft_p + L·s_p/m_p        cost_p = (ttft_p + L·s_p/m_p) · price per slot-second
    objective_p = w·cost_p/cost_ref + (1 − w)·time_p/time_ref

with L the expected output tokens, s_p the step time with this call added, m = 1 without speculation, and the reference the baseline pool
without its queue, so that a full queue makes time matter more, never less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.routing.view import PoolView

NEVER = 99.0  # published instead of infinity, which JSON cannot say: no acceptance length makes speculation worth it


@dataclass(frozen=True, slots=True)
class Option:
    """What one pool would mean for the call; `unfit` says why it is out of the question."""

    pool: str
    time_seconds: float
    cost_usd: float
    acceptance_length: float
    unfit: str | None = None


def step_with_one_more(pool: PoolView) -> float:
    """Return the seconds per step on the pool once this call runs too."""
    growth = pool.step_growth
    if growth == 0.0 or pool.live_replicas <= 0:
        return pool.step_seconds
    before = max(0.0, pool.running / pool.live_replicas - 1.0)
    after = max(0.0, (pool.running + 1) / pool.live_replicas - 1.0)
    return pool.step_seconds * (1.0 + growth * after) / (1.0 + growth * before)


def queue_seconds(pool: PoolView, holding: float) -> float:
    """Return the expected wait for a slot, given how long calls hold one; 0 while a slot is free."""
    free = pool.slots - pool.running - pool.queued
    if free > 0 or pool.slots <= 0:
        return 0.0
    return (1 - free) * holding / pool.slots


def price(pool: PoolView, output_tokens: float, length: float, holding_tokens: float) -> tuple[float, float, float]:
    """Return (queue seconds, seconds in a slot, dollars) of a call with `output_tokens` at acceptance `length`.

    `holding_tokens` is the expected output of the calls ahead in the queue.
    """
    step = step_with_one_more(pool)
    queue = queue_seconds(pool, pool.ttft_seconds + holding_tokens * step / length)
    slot = pool.ttft_seconds + output_tokens * step / length
    return queue, slot, slot * pool.price_per_slot_second


def objective(time: float, cost: float, weight: float, reference: tuple[float, float]) -> float:
    """Mix time and money relative to the reference (seconds, dollars); `weight` is the tenant's cost_weight."""
    seconds, dollars = reference
    return (weight * cost / dollars if dollars > 0 else 0.0) + (1.0 - weight) * time / seconds


def break_even(
    pool: PoolView, *, output_tokens: float, weight: float, reference: tuple[float, float], bar: float, queue: float
) -> float:
    """Return the acceptance length m* at which `pool` costs exactly `bar`, the other pool's objective; NEVER when none does."""
    seconds, dollars = reference
    per_second = (1.0 - weight) / seconds + (weight * pool.price_per_slot_second / dollars if dollars > 0 else 0.0)
    left = bar - (1.0 - weight) * queue / seconds - pool.ttft_seconds * per_second
    if left <= 0.0:
        return NEVER
    return min(NEVER, output_tokens * step_with_one_more(pool) * per_second / left)
