"""Time and money of a call on each pool, and the acceptance length at which two pools tie. Plain arithmetic on a snapshot.

    slot_p = ttft_p + reload_p + L·s_p/m_p       time_p = queue_p + slot_p       cost_p = slot_p · price per slot-second
    objective_p = w·cost_p·(1 + h_p)/cost_ref + (1 − w)·(queue_p + slot_p·(1 + h_p))/time_ref

L is the expected output in tokens, s_p the step time with this call added, m_p the acceptance length (1 without
speculation), reload_p what it costs to prefill a conversation that another pool holds, w the tenant's cost_weight. Where
steps grow with company, a call holds up the others that run beside it, altogether by the share h_p of its own time; calls
that ignored this would crowd the speculative pool to everybody's loss. The reference is an idle baseline pool, so a long
queue makes time matter more, never less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.routing.view import Affinity, PoolView

NEVER = 99.0  # published instead of infinity, which JSON cannot say: no acceptance length makes speculation worth it


class Option(msgspec.Struct, frozen=True):
    """What one pool would mean for the call; `unfit` says why it is out of the question, else None.

    Seconds include the queue; an option that is out of the question has 0 for time and cost.
    """

    pool: str
    time_seconds: float
    cost_usd: float
    acceptance_length: float
    unfit: str | None = None


class Reference:
    """What objectives are relative to: the seconds and dollars of an idle baseline pool, mixed by a cost weight."""

    __slots__ = ("per_dollar", "per_second")

    def __init__(self, seconds: float, dollars: float, weight: float) -> None:
        self.per_second = (1.0 - weight) / seconds  # what one second of waiting adds to an objective
        self.per_dollar = weight / dollars if dollars > 0.0 else 0.0  # what one dollar adds; nothing where all is free

    def objective(self, queue: float, slot: float, price: float, crowd: float) -> float:
        """Mix time and money: seconds in queue and slot, dollars per slot-second, and the share by which others are held up."""
        return queue * self.per_second + slot * self.pace(price, crowd)

    def pace(self, price: float, crowd: float) -> float:
        """Return what one second in a slot adds, by dollars per slot-second and the share by which others are held up."""
        return (1.0 + crowd) * (self.per_second + self.per_dollar * price)


def step_with_one_more(pool: PoolView) -> float:
    """Return the seconds per step on the pool once this call runs too."""
    growth = pool.step_growth
    if growth <= 0.0 or pool.live_replicas <= 0:
        return pool.step_seconds
    before = max(0.0, pool.running / pool.live_replicas - 1.0)
    after = max(before, min(pool.running + 1, pool.slots) / pool.live_replicas - 1.0)
    return pool.step_seconds * (1.0 + growth * after) / (1.0 + growth * before)


def crowding(pool: PoolView) -> float:
    """Return by what share of its own time a call more holds up all the others on its replica together."""
    growth = pool.step_growth
    if growth <= 0.0 or pool.live_replicas <= 0:
        return 0.0
    beside = min(pool.running, pool.slots) / pool.live_replicas
    return beside * growth / (1.0 + growth * beside)


def queue_seconds(pool: PoolView, holding: float) -> float:
    """Return the expected wait for a slot when calls hold one for `holding` seconds; 0 while one is free."""
    ahead = pool.running + pool.queued + 1 - pool.slots
    if ahead <= 0 or pool.slots <= 0:
        return 0.0
    return ahead * holding / pool.slots


def reload_seconds(pool: PoolView, affinity: Affinity | None) -> float:
    """Return the seconds that a conversation's prefix costs to prefill again on this pool."""
    if affinity is None or affinity.pool == pool.name:
        return 0.0
    return affinity.tokens * affinity.seconds_per_token


def break_even(
    pool: PoolView, reference: Reference, *, output_tokens: float, bar: float, queue: float, reload: float = 0.0
) -> float:
    """Return the acceptance length m* at which `pool` reaches the objective `bar` of another; NEVER when none does."""
    pace = reference.pace(pool.price_per_slot_second, crowding(pool))
    left = bar - reference.per_second * queue - (pool.ttft_seconds + reload) * pace
    return min(NEVER, output_tokens * step_with_one_more(pool) * pace / left) if left > 0.0 else NEVER
