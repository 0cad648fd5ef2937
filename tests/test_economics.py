"""Time, money and break-even: plain arithmetic that must agree with itself, and the thresholds published from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from routed import NOW, baseline, curves, speculative, teach

from gateway.routing import Affinity, Thresholds
from gateway.routing.economics import (
    NEVER,
    Reference,
    break_even,
    crowding,
    queue_seconds,
    reload_seconds,
    step_with_one_more,
)

weights = st.floats(0.0, 1.0)
prices = st.floats(1e-6, 1.0)
tokens = st.floats(1.0, 4000.0)


def test_the_study_breaks_even_at_its_ratio() -> None:
    """With equal prices and long answers, m* is the ratio of the step times, whatever the weight: 105 / 45 = 2.33."""
    base, spec = baseline(ttft_seconds=0.0), speculative(ttft_seconds=0.0)
    slot = 500 * base.step_seconds
    for weight in (0.0, 0.5, 1.0):
        reference = Reference(slot, slot * base.price_per_slot_second, weight)
        bar = reference.objective(0.0, slot, base.price_per_slot_second, 0.0)

        assert break_even(spec, reference, output_tokens=500, bar=bar, queue=0.0) == pytest.approx(105 / 45)


@given(weights, prices, prices, tokens, st.floats(0.0, 20.0), st.floats(0.0, 5.0))
def test_at_break_even_both_pools_tie(
    weight: float, base_price: float, spec_price: float, output: float, queue: float, reload: float
) -> None:
    """A call at exactly m* has the same objective on both pools; queue, lost prefix and others held up included."""
    base = baseline(price_per_slot_second=base_price)
    spec = speculative(price_per_slot_second=spec_price, running=3, step_growth=0.05)
    slot = base.ttft_seconds + output * base.step_seconds
    reference = Reference(slot, slot * base_price, weight)
    bar = reference.objective(0.0, slot, base_price, 0.0)
    needed = break_even(spec, reference, output_tokens=output, bar=bar, queue=queue, reload=reload)
    there = spec.ttft_seconds + reload + output * step_with_one_more(spec) / needed

    there_too = reference.objective(queue, there, spec_price, crowding(spec))
    assert there_too == pytest.approx(bar, rel=1e-6) if needed < NEVER else there_too >= bar * (1 - 1e-9)


@given(weights, prices, st.floats(1.01, 3.0), tokens)
def test_break_even_rises_with_price_queue_and_step(weight: float, price: float, more: float, output: float) -> None:
    """Whatever makes speculation dearer or slower never lowers what it has to reach."""
    base, spec = baseline(), speculative(price_per_slot_second=price)
    slot = base.ttft_seconds + output * base.step_seconds
    reference = Reference(slot, slot * base.price_per_slot_second, weight)
    bar = reference.objective(0.0, slot, base.price_per_slot_second, 0.0)
    plain = break_even(spec, reference, output_tokens=output, bar=bar, queue=0.0)
    dearer = replace(spec, price_per_slot_second=price * more)
    slower = replace(spec, step_seconds=spec.step_seconds * more)

    assert break_even(dearer, reference, output_tokens=output, bar=bar, queue=0.0) >= plain - 1e-9
    assert break_even(slower, reference, output_tokens=output, bar=bar, queue=0.0) >= plain - 1e-9
    assert break_even(spec, reference, output_tokens=output, bar=bar, queue=more) >= plain - 1e-9


def test_free_pools_are_judged_by_time() -> None:
    """Without prices the objective is the time, and nothing divides by zero."""
    reference = Reference(10.0, 0.0, 0.5)

    assert reference.objective(5.0, 15.0, 0.0, 0.0) == pytest.approx(1.0)


@given(st.integers(0, 40), st.integers(1, 8), st.floats(0.0, 0.2))
def test_one_more_call_never_makes_steps_shorter(running: int, replicas: int, growth: float) -> None:
    """The step with this call added is at least the step now, and equal where steps do not grow or a replica is idle."""
    pool = baseline(running=running, slots=4 * replicas, live_replicas=replicas, step_growth=growth)

    assert step_with_one_more(pool) >= pool.step_seconds * (1 - 1e-12)
    if growth == 0.0 or running + 1 <= replicas:
        assert step_with_one_more(pool) == pool.step_seconds


@given(st.integers(0, 8), st.floats(0.0, 0.2))
def test_crowding_is_what_the_others_lose(running: int, growth: float) -> None:
    """The share by which a call holds up others is the growth of their steps, times their number."""
    pool = baseline(
        running=running, slots=16, step_growth=growth, step_seconds=0.045 * (1.0 + growth * max(0, running - 1))
    )
    after = step_with_one_more(pool)
    slower = (after - pool.step_seconds) / after if running else 0.0

    assert crowding(pool) == pytest.approx(running * slower, abs=1e-9)


@pytest.mark.parametrize(("running", "queued", "wait"), [(0, 0, 0.0), (3, 0, 0.0), (4, 0, 2.0), (4, 3, 8.0)])
def test_a_queue_waits_for_slots(running: int, queued: int, wait: float) -> None:
    """While a slot is free nobody waits; then each call ahead adds a slot's share of the holding time."""
    assert queue_seconds(baseline(running=running, queued=queued), holding=8.0) == pytest.approx(wait)


def test_a_prefix_is_lost_elsewhere_only() -> None:
    """The pool that holds the conversation prefills nothing again."""
    held = Affinity(pool="base", tokens=5000, seconds_per_token=0.0002)

    assert reload_seconds(baseline(), held) == 0.0
    assert reload_seconds(speculative(), held) == pytest.approx(1.0)
    assert reload_seconds(speculative(), None) == 0.0


# Published thresholds


def refreshed(thresholds: Thresholds, spec_step: float = 0.105, now: float = NOW) -> float:
    """Refresh with a speculative step, and return the published break-even."""
    pools = [baseline(), speculative(step_seconds=spec_step)]
    thresholds.refresh(pools, curves(), now=now)
    return thresholds["spec"].break_even


def test_the_published_figures_are_those_of_the_reference_call() -> None:
    """An idle fleet publishes the ratio of the step times, and the score at which the curve reaches it."""
    thresholds = Thresholds()
    refreshed(thresholds)
    published = thresholds["spec"]

    assert published.break_even == pytest.approx(105 / 45)
    assert curves().threshold(speculative(), 0.0, published.break_even, NOW) == pytest.approx(published.threshold)
    assert thresholds.break_even("unknown") is None


def test_jitter_within_the_hysteresis_moves_nothing() -> None:
    """Steps that vary by 4 % leave the published break-even where it was; 6 % move it."""
    thresholds = Thresholds()
    first = refreshed(thresholds)

    assert refreshed(thresholds, 0.105 * 1.04, NOW + 1) == first
    assert refreshed(thresholds, 0.105 * 0.96, NOW + 2) == first
    assert refreshed(thresholds, 0.105 * 1.06, NOW + 3) == pytest.approx(first * 1.06, rel=0.01)
    assert thresholds["spec"].now == pytest.approx(thresholds["spec"].break_even)


@given(st.lists(st.tuples(st.floats(0.04, 0.5), st.floats(0.1, 20.0)), min_size=2, max_size=30))
def test_a_threshold_moves_one_bin_in_thirty_seconds_at_most(moves: list[tuple[float, float]]) -> None:
    """However the steps jump, the published threshold moves by at most a tenth per thirty seconds."""
    thresholds, made, now = Thresholds(), curves(), NOW
    before: tuple[float, float] | None = None
    for step, seconds in moves:
        now += seconds
        thresholds.refresh([baseline(), speculative(step_seconds=step)], made, now=now)
        after = (now, thresholds["spec"].threshold)
        if before is not None:
            assert abs(after[1] - before[1]) <= 0.1 * (after[0] - before[0]) / 30.0 + 1e-9
        before = after


def test_the_threshold_follows_what_is_learned() -> None:
    """When the draft turns out poor, the threshold climbs, step by step, to where nothing is sent there."""
    thresholds, made = Thresholds(), curves()
    pools = [baseline(), speculative()]
    thresholds.refresh(pools, made, now=NOW)
    start = thresholds["spec"].threshold
    last = teach(made, m=1.2, calls=100)
    for index in range(400):
        thresholds.refresh(pools, made, now=last + index)

    assert start < 0.5
    assert thresholds["spec"].threshold > 0.8


def test_without_baseline_nothing_is_published() -> None:
    """A model with speculative pools only has no break-even."""
    thresholds = Thresholds()
    thresholds.refresh([speculative()], curves(), now=NOW)

    assert not thresholds.published
    assert "m*" not in repr(thresholds)
