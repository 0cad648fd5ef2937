"""The decision: constraints, curve and economics become one ordered list of pools with the reason. Pure.

`plan` reads top to bottom: who can serve it, what each would mean, who wins, whether policy or curiosity says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gateway.errors import BadRequest, Unavailable
from gateway.routing.constraints import LENGTH, Needs, missing, unfit
from gateway.routing.economics import NEVER, Option
from gateway.routing.explore import curious
from gateway.routing.prior import axis
from gateway.routing.view import Affinity, Ask, PoolView, Settings
from gateway.routing.weigh import Bid, bids
from gateway.routing.words import sentence

if TYPE_CHECKING:
    from gateway.routing.curves import Curves
    from gateway.routing.thresholds import Thresholds

__all__ = ["REASONS", "Affinity", "Ask", "Needs", "Option", "Plan", "PoolView", "Reason", "Settings", "plan"]

Reason = Literal[
    "predictable",  # speculation is expected to win
    "unpredictable",  # baseline is expected to win
    "constraint",  # only one kind of pool can serve the call with the same meaning
    "policy",  # the tenant's policy
    "header",  # the client's x-draftlane-route
    "explore",  # taken to learn
    "shadow",  # decided and recorded, but served from baseline
    "only_pool",  # the model has one kind of pool
    "pool_down",  # the better pool is not available
    "pool_full",  # the better pool's queue costs more than its pace wins
    "guard",  # a guard holds the better pool
    "affinity",  # the conversation's prefix cache is worth more
]
REASONS: tuple[Reason, ...] = Reason.__args__  # type: ignore[attr-defined]

_UNSCORED: Final = "the tenant's policy is baseline, so the call was not scored"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call goes and why, with the numbers behind it.

    `pools` is the order to try, primary first. `expected`, `break_even` and `threshold` speak of the speculative pool that
    was considered: expected acceptance length, the one at which it ties with baseline, and the score that reaches it for a
    call like this, with `score` where the call stands on that pool's curve. All
    four are None for a call that was not scored. `propensity` is the probability with which the
    primary was chosen; `shadow` the pool that policy "shadow" would have taken; `output_tokens` the expected answer.
    """

    pools: tuple[str, ...]
    reason: Reason
    score: float | None
    threshold: float | None
    break_even: float | None
    expected: float | None
    propensity: float
    explored: bool
    shadow: str | None
    options: tuple[Option, ...]
    output_tokens: float
    _told: tuple[Bid, Bid | None, Sequence[Bid]] | None = None  # what the sentence is made of: see `sentence`

    @property
    def detail(self) -> str:
        """The decision in one sentence. It is made when it is read, which can wait for the call's end."""
        return _UNSCORED if self._told is None else sentence(self.reason, *self._told)


def plan(
    ask: Ask,
    pools: Sequence[PoolView],
    curves: Curves,
    *,
    now: float,
    chance: Callable[[], float],
    published: Thresholds | None = None,
) -> Plan:
    """Return where the call goes.

    `now` is a Unix time, `chance` draws from [0, 1), `published` steadies the break-even (see `thresholds`).

    Raises:
        BadRequest: no pool of the model could ever serve the call. Unavailable: none that could is there now.
    """
    fits = _fitting(ask.model, ask.needs, pools)
    tokens = _output_tokens(ask)
    found = bids(ask, fits, curves, tokens=tokens, now=now, published=published)
    if not (up := [bid for bid in found if bid.up]):
        raise Unavailable(_nobody(ask.model, fits), code="no_replica", retry_after=1.0)
    winner = _best(up)
    why = _why(winner, found, pools)
    chosen, reason, propensity = _applied(ask, winner, up, why, curves.settings, tokens=tokens, chance=chance)
    order = [chosen, *sorted([bid for bid in up if bid is not chosen], key=_objective)]
    seen = _considered(found, winner)
    return Plan(
        pools=tuple([bid.pool.name for bid in order]),
        reason=reason,
        score=axis(ask.score, seen.pool.drafter if seen else None),
        threshold=_threshold(seen, ask, curves, now),
        break_even=seen.needed if seen else NEVER,
        expected=seen.length if seen else 1.0,
        propensity=propensity,
        explored=reason == "explore",
        shadow=winner.pool.name if reason == "shadow" else None,
        options=_options(ask, pools, found),
        output_tokens=tokens,
        _told=(chosen, seen, order),
    )


def plain(model: str, needs: Needs, pools: Sequence[PoolView]) -> Plan:
    """Return the plan of a call that nobody scored, since its policy is baseline: the emptiest fitting baseline pool first.

    Raises:
        BadRequest: no pool of the model could ever serve the call. Unavailable: none that could is there now.
    """
    fits = _fitting(model, needs, pools)
    up = [pool for pool in fits if pool.available and pool.live_replicas > 0]
    if not up:
        raise Unavailable(_nobody(model, fits), code="no_replica", retry_after=1.0)
    order = sorted(up, key=lambda pool: (pool.speculative, (pool.running + pool.queued) / max(pool.slots, 1)))
    return Plan(
        pools=tuple(pool.name for pool in order),
        reason="pool_down" if order[0].speculative else "policy",
        score=None,
        threshold=None,
        break_even=None,
        expected=None,
        propensity=1.0,
        explored=False,
        shadow=None,
        options=(),
        output_tokens=0.0,
    )


def _fitting(model: str, needs: Needs, pools: Sequence[PoolView]) -> list[PoolView]:
    """Return the pools that serve the call with the same meaning.

    The length of the prompt is an estimate: a call that seems too long for every pool still goes to the longest baseline
    pool, whose engine says so exactly, in the words that clients know.
    """
    fits = [pool for pool in pools if missing(pool, needs) is None]
    if fits:
        return fits
    lacking = [missing(pool, needs) for pool in pools]
    long = [p for p, feature in zip(pools, lacking, strict=True) if feature == LENGTH and not p.speculative]
    if long:
        return [max(long, key=lambda pool: (pool.available, pool.max_model_len or 0))]
    if not pools:
        raise Unavailable(f"Model '{model}' has no pool.", code="no_pool")
    why = unfit(pools[0], needs)
    raise BadRequest(
        f"No pool of model '{model}' can serve this request: pool '{pools[0].name}' {why}.",
        param=lacking[0] if lacking[0] != LENGTH else "messages",
        code="unsupported",
    )


def _output_tokens(ask: Ask) -> float:
    tokens = ask.score.output_tokens
    if ask.needs.max_tokens is not None:
        tokens = min(tokens, float(ask.needs.max_tokens))
    return max(1.0, tokens)


def _nobody(model: str, fits: Sequence[PoolView]) -> str:
    whys = "; ".join(f"'{pool.name}': {pool.why_unavailable or 'no live replica'}" for pool in fits)
    return f"No pool of model '{model}' is available ({whys})."


_objective = attrgetter("full")
_idle = attrgetter("idle")


def _best(up: Sequence[Bid]) -> Bid:
    """Return the bid with the best objective, where a speculative one must reach its steadied break-even."""
    if len(up) == 1:
        return up[0]
    baseline, winning = [], []
    for bid in up:
        if not bid.pool.speculative:
            baseline.append(bid)
        elif bid.length >= bid.needed:
            winning.append(bid)
    return min(winning or baseline or up, key=_objective)


def _why(winner: Bid, found: Sequence[Bid], pools: Sequence[PoolView]) -> Reason:
    speculative = winner.pool.speculative
    if [bid.pool.speculative for bid in found].count(speculative) == len(found):
        return "only_pool" if all(pool.speculative == speculative for pool in pools) else "constraint"
    ideal = min(found, key=_idle)
    if ideal.pool.speculative != speculative:
        if not ideal.up:
            return "guard" if ideal.pool.guard else "pool_down"
        if ideal.queue > 0.0:
            return "pool_full"
        if ideal.reload > 0.0:
            return "affinity"
    return "predictable" if speculative else "unpredictable"


def _applied(
    ask: Ask,
    winner: Bid,
    up: Sequence[Bid],
    reason: Reason,
    dials: Settings,
    *,
    tokens: float,
    chance: Callable[[], float],
) -> tuple[Bid, Reason, float]:
    """Return what policy or curiosity makes of the winner: the bid chosen, the reason, the probability of that choice."""
    wanted = ask.route if ask.route in ("speculative", "baseline") else ask.policy
    if wanted == "shadow":
        return _best([bid for bid in up if not bid.pool.speculative] or up), "shadow", 1.0
    if wanted != "auto":
        kind = [bid for bid in up if bid.pool.speculative == (wanted == "speculative")]
        if kind:
            return min(kind, key=_objective), "header" if ask.route == wanted else "policy", 1.0
        return winner, reason if reason in ("constraint", "guard", "only_pool") else "pool_down", 1.0
    if not ask.explore:
        return winner, reason, 1.0
    chosen, propensity = curious(winner, up, dials, tokens=tokens, chance=chance)
    return chosen, reason if chosen is winner else "explore", propensity


def _considered(found: Sequence[Bid], winner: Bid) -> Bid | None:
    """Return the speculative bid that the decision was about: the winner, or the best that lost."""
    if winner.pool.speculative:
        return winner
    return min((bid for bid in found if bid.pool.speculative), key=_objective, default=None)


def _threshold(seen: Bid | None, ask: Ask, curves: Curves, now: float) -> float:
    if seen is None or seen.estimate is None:
        return 1.0
    return curves.threshold(seen.pool, ask.needs.temperature, seen.needed, now, factor=seen.estimate.factor)


def _options(ask: Ask, pools: Sequence[PoolView], found: Sequence[Bid]) -> tuple[Option, ...]:
    by_name = {bid.pool.name: bid for bid in found}
    options = []
    for pool in pools:
        bid = by_name.get(pool.name)
        if bid is not None and bid.up:
            options.append(Option(pool.name, bid.seconds, bid.cost, bid.length))
        elif bid is not None:
            options.append(Option(pool.name, 0.0, 0.0, bid.length, pool.why_unavailable or "no live replica"))
        else:
            options.append(Option(pool.name, 0.0, 0.0, 1.0, unfit(pool, ask.needs)))
    return tuple(options)
