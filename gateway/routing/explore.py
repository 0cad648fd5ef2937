"""How often to try a pool that looks worse: where one call's lesson is worth its price, not blindly. Pure.

The gain of switching, relative to the better pool, is believed to be normal with mean −gap and the variance of the expected
acceptance length. One more call would move that mean by a known amount; the value of knowing is the gain expected from
switching after it, for as many calls like this as came lately (knowledge gradient). The share of calls that explore rises
smoothly with value over price up to a cap, so every call's propensity is known and none is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, exp, log, pi, sqrt
from typing import TYPE_CHECKING

from gateway.routing.evidence import STEPS_OF_HALF_A_CALL

if TYPE_CHECKING:
    from gateway.routing.view import Settings
    from gateway.routing.weigh import Bid

FIRST_HORIZON = 20.0  # calls of its kind that even a new template is supposed to bring
LAST_HORIZON = 500.0  # what is learned does not last longer than that
WITHIN_REACH = 0.25  # log distance from break-even over which a template might change unnoticed; beyond it `far` fades
HOPELESS_SHARE = 0.1  # of `far`, that is left at any distance
MOST_EXPLORED = 0.5  # of calls of one kind, all contenders together


def propensities(winner: Bid, up: Sequence[Bid], dials: Settings, *, tokens: float) -> list[tuple[Bid, float]]:
    """Return every bid that may be chosen with its probability, the winner last; they sum to one.

    Baseline pools teach nothing about acceptance, and a queue or a lost prefix is no price for a lesson.
    """
    found = []
    total = 0.0
    for bid in up:
        estimate = bid.estimate
        if estimate is None or bid is winner or bid.queue > 0.0 or bid.reload > 0.0:
            continue
        tried = share(
            log(bid.full / winner.full),
            estimate.variance,
            steps=tokens / bid.length,
            traffic=estimate.traffic,
            scatter=estimate.scatter,
            near=dials.explore_near,
            far=dials.explore_far,
        )
        found.append((bid, tried))
        total += tried
    if total > MOST_EXPLORED:
        found = [(bid, tried * MOST_EXPLORED / total) for bid, tried in found]
        total = MOST_EXPLORED
    found.append((winner, 1.0 - total))
    return found


def curious(
    winner: Bid, up: Sequence[Bid], dials: Settings, *, tokens: float, chance: Callable[[], float]
) -> tuple[Bid, float]:
    """Return the winner, or now and then a pool that would teach something, and the probability of that choice."""
    found = propensities(winner, up, dials, tokens=tokens)
    left = chance() if len(found) > 1 else 0.0
    for bid, probability in found:
        left -= probability
        if left < 0.0:
            return bid, probability
    return found[-1]


def share(
    gap: float, variance: float, *, steps: float, traffic: float, scatter: float, near: float, far: float
) -> float:
    """Return the probability of trying a pool whose objective is exp(`gap`) times the best one's: `near` at most.

    `variance` is that of the log expected acceptance length, `steps` what the call is expected to take there, `traffic` how
    many calls of its kind came lately, `scatter` the variance of a long call's log length.
    """
    if gap <= 0.0:
        return near
    noise = scatter * (1.0 + STEPS_OF_HALF_A_CALL / max(1.0, steps))
    horizon = min(LAST_HORIZON, FIRST_HORIZON + traffic)
    value = horizon * value_of_knowing(gap, variance, noise)
    least = min(far, near)
    if gap > WITHIN_REACH:
        least *= max(HOPELESS_SHARE, (WITHIN_REACH / gap) ** 2)
    if value <= 0.0:
        return least
    price = gap / value
    return max(least, near / (1.0 + price * price))


def value_of_knowing(gap: float, variance: float, noise: float) -> float:
    """Return the expected gain per later call from one observation of variance `noise`, when switching looks `gap` worse."""
    if variance <= 0.0:
        return 0.0
    moved = variance / sqrt(variance + noise)  # standard deviation of the posterior mean, seen from before
    far = gap / moved
    density = exp(-far * far / 2.0) / sqrt(2.0 * pi)
    beyond = 0.5 * (1.0 - erf(far / sqrt(2.0)))
    return max(0.0, moved * (density - far * beyond))
