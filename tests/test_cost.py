"""The cost formulas: what adds up to what, and where they refuse to divide."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from gateway.ledger.cost import (
    COUNTERFACTUALS,
    Terms,
    attributed,
    counterfactuals,
    estimate,
    held,
    idle,
    loaded_per_million,
    per_million,
    price_per_slot_second,
    slot_time,
)

# The study's pools: 45 ms a step without, 105 ms with speculation, window 7, a trn2.48xlarge shared by two pools.
PRICE = price_per_slot_second(17.88, 4)
BASELINE = Terms(price_per_slot_second=PRICE, step_seconds=0.045, ttft_seconds=0.1)
SPECULATIVE = Terms(
    price_per_slot_second=PRICE, step_seconds=0.105, ttft_seconds=0.1, acceptance_length=3.5, spread=0.3, most=8.0
)
BOTH = {"baseline": BASELINE, "speculative": SPECULATIVE}


def test_a_full_pool_pays_for_itself() -> None:
    """Calls that keep every slot busy for an hour pay what the replica costs, and nothing is left idle."""
    paid = sum(attributed(3600.0, PRICE) for _ in range(4))

    assert pytest.approx(paid) == 17.88
    assert pytest.approx(idle(17.88, 1, 3600, paid)) == 0.0


@pytest.mark.parametrize(("running", "seconds"), [(0, 9.0), (1, 9.0), (4, 9.0), (6, 6.0), (12, 3.0)])
def test_an_overfull_pool_is_paid_once(running: int, seconds: float) -> None:
    """With more calls than slots, all of them together pay for the slots that there are, and no more."""
    assert held(9.0, running, 4) == pytest.approx(seconds)
    assert min(running, 4) * 9.0 == pytest.approx(running * held(9.0, running, 4))


def test_an_empty_pool_is_all_idle() -> None:
    """What no call pays is the idle cost, for all replicas, and it is never negative."""
    assert pytest.approx(idle(17.88, 2, 3600, 0.0)) == 2 * 17.88
    assert idle(17.88, 2, 3600, 100.0) == 0.0


def test_cost_per_million_is_guarded() -> None:
    """Dollars per million tokens are None without tokens, attributed and loaded alike."""
    assert per_million(0.0025, 1000) == 2.5
    assert pytest.approx(loaded_per_million(36.0, 2, 100.0)) == 1e6 * 36.0 * 2 / (3600 * 100)
    assert (per_million(1.0, 0), loaded_per_million(36.0, 2, 0.0)) == (None, None)
    assert price_per_slot_second(36.0, 0) == 0.0


def test_the_first_token_comes_with_the_prefill() -> None:
    """One token, or none, takes the time to the first token; each further one a step divided by the acceptance length."""
    assert (slot_time(0, SPECULATIVE), slot_time(1, SPECULATIVE)) == (0.1, 0.1)
    assert pytest.approx(slot_time(601, BASELINE)) == 0.1 + 600 * 0.045
    assert pytest.approx(slot_time(601, SPECULATIVE)) == 0.1 + 600 * 0.105 / 3.5


def test_break_even_costs_the_same() -> None:
    """At 2.33 tokens per step both pools take as long per token, so they cost the same."""
    at_break_even = replace(SPECULATIVE, acceptance_length=0.105 / 0.045)

    assert estimate(500, BASELINE).usd == pytest.approx(estimate(500, at_break_even).usd)


@given(
    tokens=some.integers(0, 100_000),
    length=some.floats(0.0, 20.0),
    spread=some.floats(0.0, 3.0),
    most=some.floats(1.0, 16.0),
)
def test_the_band_encloses_the_estimate(tokens: int, length: float, spread: float, most: float) -> None:
    """Whatever the acceptance, low ≤ estimate ≤ high, and all lie between a token a step and the window's best."""
    terms = replace(SPECULATIVE, acceptance_length=length, spread=spread, most=most)
    told = estimate(tokens, terms)
    best, worst = (attributed(slot_time(tokens, terms, at), PRICE) for at in (most, 1.0))

    assert best <= told.low * (1 + 1e-12)
    assert told.low <= told.usd <= told.high
    assert told.high <= worst * (1 + 1e-12)


def test_a_certain_acceptance_has_no_band() -> None:
    """Without spread the ends of the band are the estimate; a baseline pool is such a case."""
    told = estimate(600, BASELINE)

    assert told.low == told.usd == told.high


def test_where_the_call_ran_is_what_it_cost() -> None:
    """The counterfactual of the policy that sends the call where it went is what it paid, without a band."""
    told = counterfactuals(tokens=600, paid=0.007, ran_on="speculative", terms=BOTH, score=0.9)

    assert 0.007 == told["speculative"] == told["speculative_low"] == told["speculative_high"] == told["threshold"]
    assert estimate(600, BASELINE).usd == told["baseline"]
    assert {*COUNTERFACTUALS} == {*told}


@pytest.mark.parametrize(("score", "pool"), [(0.49, "baseline"), (0.5, "speculative"), (None, "baseline")])
def test_a_fixed_threshold_follows_the_score(score: float | None, pool: str) -> None:
    """The threshold policy takes the speculative pool from its threshold up, and baseline without a score."""
    told = counterfactuals(tokens=600, paid=0.01, ran_on="baseline", terms=BOTH, score=score)

    assert told[pool] == told["threshold"]


def test_a_missing_pool_changes_nothing() -> None:
    """A model with one pool has nowhere else to go: every policy costs what the call paid."""
    told = counterfactuals(tokens=600, paid=0.01, ran_on="baseline", terms={"baseline": BASELINE}, score=1.0)

    assert {0.01} == {*told.values()}
    assert all(math.isfinite(usd) for usd in told.values())
