"""What a call costs and what it would have cost elsewhere. Pure formulas in US dollars, seconds and tokens.

A pool is paid by the hour, whatever it does; a call holds one of its slots for a while. So:

- attributed cost = slot-seconds x price per slot-second, where price per slot-second = price per hour / 3600 / slots.
  Time that a call waits in an engine's queue is no slot time (see `held`), so calls of a pool whose slots are all busy pay
  exactly what the pool costs; a half-empty pool leaves the other half to
- idle cost = what the pool cost - what its calls paid. It belongs to nobody and is shown as its own line.
- loaded cost = price / throughput: dollars per million output tokens with the idle part spread over what was made.
- counterfactual = the same price for the time the call would have held a slot elsewhere:
  ttft + (tokens - 1) x step time / acceptance length, since the first token comes with the prefill. Baseline pools emit
  one token a step. Where the call really ran, the counterfactual is what it really cost.

Limits: a counterfactual takes the other pool's step time at the load it has now, not at the load it would have had if
everybody had gone there; it leaves out waiting, as a waiting call holds no slot; and it assumes the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

# An 80 % band: the quantile .9 of the normal distribution, on both sides.
_BAND: Final = 1.2815515655446004
POLICIES: Final = ("baseline", "speculative", "threshold")
# All that `Finished.counterfactual` may hold: the estimate of each policy and, of the two pure ones, its band.
COUNTERFACTUALS: Final = (*POLICIES, "baseline_low", "baseline_high", "speculative_low", "speculative_high")
FIXED_THRESHOLD: Final = 0.5  # the median score of the reference data: what one would choose without learning


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the cost of a call on one pool, at the load of the moment.

    `acceptance_length` is the tokens emitted per step (1 on a baseline pool), `spread` the standard deviation of its
    logarithm, `most` the largest there can be (window + 1).
    """

    price_per_slot_second: float
    step_seconds: float
    ttft_seconds: float
    acceptance_length: float = 1.0
    spread: float = 0.0
    most: float = math.inf


class Estimate(msgspec.Struct, frozen=True):
    """A cost that nobody has paid, in US dollars, with the ends of its 80 % band."""

    usd: float
    low: float
    high: float


def price_per_slot_second(price_per_hour: float, slots: int) -> float:
    """Return the price of one slot for one second, from a replica's price per hour and its slots."""
    return price_per_hour / 3600 / slots if slots > 0 else 0.0


def held(seconds: float, running: int, slots: int) -> float:
    """Return the part of a call's time on a replica in which it held a slot; with more calls than slots the rest is waiting.

    By Little's law: of `running` calls `slots` hold one at any time, so each does for slots / running of its time, on average.
    """
    return seconds * min(1.0, slots / running) if running > 0 else seconds


def attributed(slot_seconds: float, price: float) -> float:
    """Return what a call pays for holding a slot, with `price` per slot-second."""
    return slot_seconds * price


def idle(price_per_hour: float, replicas: float, seconds: float, paid: float) -> float:
    """Return what a pool cost over `seconds` and no call paid, never below 0."""
    return max(0.0, price_per_hour * replicas * seconds / 3600 - paid)


def per_million(usd: float, output_tokens: float) -> float | None:
    """Return US dollars per million output tokens, or None where there are no tokens to divide by."""
    return usd * 1e6 / output_tokens if output_tokens > 0 else None


def loaded_per_million(price_per_hour: float, replicas: float, tokens_per_second: float) -> float | None:
    """Return the loaded cost per million output tokens, or None without traffic."""
    return per_million(price_per_hour * replicas / 3600, tokens_per_second)


def slot_time(tokens: float, terms: Terms, acceptance_length: float | None = None) -> float:
    """Return the seconds that an answer of so many tokens holds a slot, at the terms' acceptance length or another."""
    length = terms.acceptance_length if acceptance_length is None else acceptance_length
    return terms.ttft_seconds + max(0.0, tokens - 1) * terms.step_seconds / min(max(length, 1.0), terms.most)


def estimate(tokens: float, terms: Terms) -> Estimate:
    """Return what an answer of so many tokens would cost at these terms, with the band that the acceptance leaves."""
    price, length = terms.price_per_slot_second, terms.acceptance_length
    usd = attributed(slot_time(tokens, terms), price)
    if terms.spread == 0.0:
        return Estimate(usd, usd, usd)
    factor = math.exp(_BAND * terms.spread)
    low, high = slot_time(tokens, terms, length * factor), slot_time(tokens, terms, length / factor)
    return Estimate(usd, attributed(low, price), attributed(high, price))


def counterfactuals(
    *,
    tokens: int,
    paid: float,
    ran_on: str,
    terms: Mapping[str, Terms],
    score: float | None,
    threshold: float = FIXED_THRESHOLD,
) -> dict[str, float]:
    """Return what one finished call would have cost under each policy, in US dollars, named as in `COUNTERFACTUALS`.

    `ran_on` is "baseline" or "speculative", `paid` the attributed cost there, and `terms` the terms by kind of pool; a
    policy whose pool is missing keeps the call where it ran. "threshold" sends scores from `threshold` up to the
    speculative pool.
    """
    here = Estimate(paid, paid, paid)
    baseline = estimate(tokens, terms["baseline"]) if ran_on != "baseline" and "baseline" in terms else here
    speculative = estimate(tokens, terms["speculative"]) if ran_on != "speculative" and "speculative" in terms else here
    chosen = speculative if score is not None and score >= threshold else baseline
    return {
        "threshold": chosen.usd,
        "baseline": baseline.usd,
        "baseline_low": baseline.low,
        "baseline_high": baseline.high,
        "speculative": speculative.usd,
        "speculative_low": speculative.low,
        "speculative_high": speculative.high,
    }
