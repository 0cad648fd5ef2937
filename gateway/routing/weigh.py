"""Each pool's bid for one call: expected acceptance length, queue, time, cost, objective, and the break-even to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.routing.economics import (
    NEVER,
    Reference,
    break_even,
    crowding,
    queue_seconds,
    reload_seconds,
    step_with_one_more,
)

if TYPE_CHECKING:
    from gateway.routing.curves import Curves, Estimate
    from gateway.routing.thresholds import Thresholds
    from gateway.routing.view import Ask, PoolView


class Bid(msgspec.Struct, eq=False):
    """One pool's terms for a call.

    `crowd` is the share of its own time by which the call holds up others, `bare` the seconds in a slot, `seconds` those to
    the end with queue and lost prefix, `cost` dollars; `idle` and `full` are the objectives without and with queue and lost
    prefix. `needed` is the acceptance length at which a speculative pool
    ties with the best baseline pool, 0 when there is none.
    """

    pool: PoolView
    estimate: Estimate | None
    length: float  # tokens per step that are expected
    up: bool
    bare: float
    queue: float = 0.0
    reload: float = 0.0
    crowd: float = 0.0
    seconds: float = 0.0
    cost: float = 0.0
    idle: float = 0.0
    full: float = 0.0
    needed: float = 0.0

    def __repr__(self) -> str:
        return f"<Bid {self.pool.name} m={self.length:.2f} needed={self.needed:.2f} objective={self.full:.3f}>"


def bids(
    ask: Ask, pools: Sequence[PoolView], curves: Curves, *, tokens: float, now: float, published: Thresholds | None
) -> list[Bid]:
    """Return the bids of `pools`, in their order, for a call of `tokens` output tokens."""
    found = []
    standard = None
    for pool in pools:
        estimate = None
        if pool.speculative:
            estimate = curves.expected(
                pool,
                score=ask.score,
                temperature=ask.needs.temperature,
                tenant=ask.tenant,
                model=ask.model,
                template=ask.template,
                now=now,
            )
        length = 1.0 if estimate is None else estimate.mean
        step = pool.step_seconds if pool.step_growth <= 0.0 else step_with_one_more(pool)
        up = pool.available and pool.live_replicas > 0
        bid = Bid(pool, estimate, length, up, pool.ttft_seconds + tokens * step / length)
        if pool.running + pool.queued >= pool.slots:
            typical = curves.of(pool).typical(now) if pool.speculative else 1.0
            holding = pool.ttft_seconds + curves.settings.expected_output_tokens * step / typical
            bid.queue = queue_seconds(pool, holding)
        if ask.affinity is not None:
            bid.reload = reload_seconds(pool, ask.affinity)
        if pool.step_growth > 0.0:
            bid.crowd = crowding(pool)
        found.append(bid)
        if standard is None and up and not pool.speculative:
            standard = bid
    standard = standard or found[0]
    reference = Reference(standard.bare, standard.bare * standard.pool.price_per_slot_second, ask.cost_weight)
    _judge(found, reference, tokens=tokens, published=published, hysteresis=curves.settings.hysteresis)
    return found


def _judge(
    found: Sequence[Bid], reference: Reference, *, tokens: float, published: Thresholds | None, hysteresis: float
) -> None:
    """Give every bid its cost and objectives, and the speculative ones their break-even."""
    bar = NEVER
    for bid in found:
        price, bare, queue = bid.pool.price_per_slot_second, bid.bare, bid.queue
        slot = bare + bid.reload
        bid.seconds = queue + slot
        bid.cost = slot * price
        pace = reference.pace(price, bid.crowd)
        bid.idle = bare * pace
        bid.full = full = queue * reference.per_second + slot * pace
        if full < bar and bid.up and not bid.pool.speculative:
            bar = full
    if bar == NEVER:  # no baseline pool to compare with
        return
    for bid in found:
        if bid.pool.speculative:
            needed = break_even(bid.pool, reference, output_tokens=tokens, bar=bar, queue=bid.queue, reload=bid.reload)
            held = None if published is None else published.break_even(bid.pool.name)
            # What differs from the published break-even by less than the hysteresis is the published one.
            bid.needed = held if held is not None and abs(needed - held) <= hysteresis * held else needed
