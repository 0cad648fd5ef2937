"""Each pool's bid for one call: expected acceptance length, queue, time, cost, objective, and the break-even it has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.economics import (
    NEVER,
    Reference,
    break_even,
    queue_seconds,
    reload_seconds,
    step_with_one_more,
)
from gateway.routing.thresholds import reference_break_even

if TYPE_CHECKING:
    from gateway.routing.curves import Curves, Estimate
    from gateway.routing.thresholds import Thresholds
    from gateway.routing.view import Ask, PoolView


class Bid:
    """One pool's terms. Seconds and dollars; `idle` and `full` are objectives without and with queue and lost prefix.

    `needed` is the acceptance length at which a speculative pool ties with the best baseline pool, hysteresis included.
    """

    __slots__ = ("cost", "estimate", "full", "idle", "length", "needed", "pool", "queue", "reload", "slot", "up")

    def __init__(self, pool: PoolView, estimate: Estimate | None) -> None:
        self.pool = pool
        self.estimate = estimate
        self.length = 1.0 if estimate is None else estimate.mean
        self.up = pool.available and pool.live_replicas > 0
        self.queue = self.reload = self.slot = self.cost = self.idle = self.full = 0.0
        self.needed = 0.0

    def __repr__(self) -> str:
        return f"<Bid {self.pool.name} m={self.length:.2f} needed={self.needed:.2f} objective={self.full:.3f}>"

    @property
    def seconds(self) -> float:
        """From now to the end of the call."""
        return self.queue + self.slot

    @property
    def wins(self) -> bool:
        """Whether a speculative pool reaches its break-even."""
        return self.length >= self.needed


def bids(
    ask: Ask, pools: Sequence[PoolView], curves: Curves, *, tokens: float, now: float, published: Thresholds | None
) -> list[Bid]:
    """Return the bids of `pools`, in their order, for a call of `tokens` output tokens."""
    found = []
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
        bid = Bid(pool, estimate)
        step = step_with_one_more(pool)
        if pool.running + pool.queued + 1 > pool.slots:
            typical = curves.of(pool).typical(now) if pool.speculative else 1.0
            holding = pool.ttft_seconds + curves.settings.expected_output_tokens * step / typical
            bid.queue = queue_seconds(pool, holding)
        bid.reload = reload_seconds(pool, ask.affinity) if ask.affinity is not None else 0.0
        bid.slot = pool.ttft_seconds + bid.reload + tokens * step / bid.length
        bid.cost = bid.slot * pool.price_per_slot_second
        found.append(bid)
    _judge(found, ask, pools, curves, tokens=tokens, now=now, published=published)
    return found


def _judge(
    found: Sequence[Bid],
    ask: Ask,
    pools: Sequence[PoolView],
    curves: Curves,
    *,
    tokens: float,
    now: float,
    published: Thresholds | None,
) -> None:
    """Give every bid its objectives, and the speculative ones their break-even."""
    standard = next((bid for bid in found if bid.up and not bid.pool.speculative), None) or found[0]
    idle = standard.slot - standard.reload
    reference = Reference(idle, idle * standard.pool.price_per_slot_second, ask.cost_weight)
    for bid in found:
        bare = bid.slot - bid.reload
        bid.idle = reference.objective(bare, bare * bid.pool.price_per_slot_second)
        bid.full = reference.objective(bid.seconds, bid.cost)
    bar = min((bid.full for bid in found if bid.up and not bid.pool.speculative), default=None)
    if bar is None:
        return
    for bid in found:
        if bid.pool.speculative:
            bid.needed = break_even(
                bid.pool, reference, output_tokens=tokens, bar=bar, queue=bid.queue, reload=bid.reload
            )
            if published is not None:
                bid.needed *= _steadied(bid.pool, pools, curves, now=now, published=published)


def _steadied(
    pool: PoolView, pools: Sequence[PoolView], curves: Curves, *, now: float, published: Thresholds
) -> float:
    """Return what turns the break-even of the moment into the published one, as long as they differ by less than the hysteresis."""
    held = published.break_even(pool.name)
    if held is None:
        return 1.0
    moment = reference_break_even(pool, pools, curves, now=now)
    if moment is None or moment >= NEVER:
        return 1.0
    ratio = held / moment
    return ratio if abs(1.0 / ratio - 1.0) <= curves.settings.hysteresis else 1.0
