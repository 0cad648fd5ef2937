"""Curves: what is learned per pool revision, how it fades, how it drifts, and how processes share it."""

from __future__ import annotations

import json
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import NOW, REFERENCE, curves, expected, score, speculative, teach

from gateway.routing import Curves, Settings
from gateway.routing.curve import monotone
from gateway.routing.evidence import Clock, Evidence
from gateway.routing.prior import BINS, at_window, axis, bucket, length_of, prior, rate_of

places = st.floats(0.0, 1.0)
lengths = st.floats(1.0, 8.0)
lessons = st.lists(
    st.tuples(places, lengths, st.floats(5.0, 300.0), st.floats(0.0, 100_000.0)), min_size=1, max_size=12
)


def learn(made: Curves, found: list[tuple[float, float, float, float]], **facts: Any) -> Curves:
    """Teach (score, m, steps, seconds after NOW) one after the other."""
    for place, m, steps, after in found:
        teach(made, m=m, calls=1, now=NOW + after, score=score(place), steps=steps, **facts)
    return made


def face(made: Curves, now: float = NOW + 200_000.0) -> list[tuple[float, float]]:
    """The curve as numbers."""
    return [(point.mean, point.samples) for point in made.points(speculative(), 0.0, now)]


# Prior


@given(lengths, st.integers(1, 15))
def test_a_prior_at_another_window_stays_within_it(length: float, window: int) -> None:
    """An acceptance length carried to another window lies between 1 and window + 1, and grows with the window."""
    carried = at_window(length, window)

    assert 1.0 <= carried <= window + 1.0 + 1e-9
    assert carried <= at_window(length, window + 1) + 1e-9


@given(st.floats(0.0, 0.999), st.integers(1, 15))
def test_rate_inverts_length(rate: float, window: int) -> None:
    """The acceptance probability found for a length is the one that made it."""
    assert length_of(rate_of(length_of(rate, window), window), window) == pytest.approx(length_of(rate, window))


@given(st.integers(1, 15), st.sampled_from(["draft_model", "ngram", "eagle", None]), st.integers(0, 3))
def test_every_prior_is_a_curve(window: int, drafter: str | None, heat: int) -> None:
    """A prior has ten non-decreasing values between 1 and window + 1, whatever the pool and the temperature."""
    found = prior(REFERENCE, window=window, drafter=drafter, heat=heat)

    assert len(found) == BINS
    assert all(1.0 <= value <= window + 1.0 for value in found)
    assert all(low <= high for low, high in pairwise(found))


def test_heat_lowers_the_prior() -> None:
    """The hotter the sampling, the less is expected, and mildly more than the reference at temperature 0."""
    cold, warm, hot, hottest = (prior(REFERENCE, window=7, drafter="draft_model", heat=heat) for heat in range(4))

    assert all(a > b > c > d for a, b, c, d in zip(cold, warm, hot, hottest, strict=True))
    assert all(mine >= theirs for mine, theirs in zip(cold, REFERENCE, strict=True))


@pytest.mark.parametrize(("temperature", "heat"), [(0.0, 0), (1e-6, 0), (0.3, 1), (0.7, 2), (None, 2), (1.5, 3)])
def test_temperatures_fall_into_buckets(temperature: float | None, heat: int) -> None:
    """An absent temperature counts as the engine's default, never as greedy."""
    assert bucket(temperature) == heat


def test_prompt_lookup_has_an_axis_of_its_own() -> None:
    """A call's place on an n-gram pool's curve follows its n-gram estimate, not its score."""
    assert axis(score(0.9, ngram=1.0), "ngram") == 0.0
    assert axis(score(0.1, ngram=3.0), "ngram") == pytest.approx(8 / 9)
    assert axis(score(0.9, ngram=1.0), "draft_model") == 0.9


# Posterior


@given(st.lists(st.tuples(st.floats(1, 8), st.floats(0.1, 100)), min_size=1, max_size=10))
def test_the_monotone_fit_keeps_the_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    """The fit is non-decreasing and has the same weighted mean as what it was fitted to."""
    values, weights = zip(*pairs, strict=True)
    fitted = monotone(values, weights)

    assert all(low <= high + 1e-9 for low, high in pairwise(fitted))
    assert sum(a * w for a, w in zip(fitted, weights, strict=True)) == pytest.approx(
        sum(a * w for a, w in zip(values, weights, strict=True))
    )


@given(lessons, places, places)
@settings(max_examples=50)
def test_the_curve_is_monotone_in_the_score(found: list[tuple[float, float, float, float]], a: float, b: float) -> None:
    """Whatever was learned, a higher score never promises less."""
    made = learn(curves(), found)
    low, high = sorted((a, b))

    assert expected(made, score=score(low), now=NOW + 1e5) <= expected(made, score=score(high), now=NOW + 1e5) + 1e-9


def test_what_is_seen_overcomes_the_prior() -> None:
    """After a few dozen calls the expectation is what they brought."""
    made = curves()
    last = teach(made, m=1.4, calls=60)

    assert expected(made, now=last) == pytest.approx(1.4, rel=0.03)


def test_a_pessimistic_prior_recovers_from_what_is_seen() -> None:
    """A prior that believes in nothing gives way to calls that go well, as an optimistic one to calls that do not."""
    made = Curves([1.1] * BINS)
    made.of(speculative())
    last = teach(made, m=4.0, calls=60)

    assert expected(made, now=last) == pytest.approx(4.0, rel=0.05)


def test_steps_of_one_call_are_not_independent() -> None:
    """A call of S steps weighs S / 8.5 samples."""
    made = curves()
    teach(made, m=2.0, calls=1, steps=85.0)

    assert made.points(speculative(), 0.0, NOW)[5].samples == pytest.approx(10.0)


def test_evidence_fades_by_half_in_a_half_life() -> None:
    """A half-life later the same evidence weighs half."""
    made = curves(half_life_seconds=1000.0)
    last = teach(made, m=2.0, calls=5, every=0.0)
    now = made.points(speculative(), 0.0, last)[5].samples
    later = made.points(speculative(), 0.0, last + 1000.0)[5].samples

    assert later == pytest.approx(now / 2)


def test_uncertainty_shrinks_with_evidence_and_grows_with_time() -> None:
    """The deviation falls with every call and rises again while nothing is seen."""
    made = curves(half_life_seconds=1000.0)

    def deviation(now: float) -> float:
        return made.expected(
            speculative(), score=score(), temperature=0.0, tenant="acme", model="demo", template="", now=now
        ).deviation

    before = deviation(NOW)
    last = teach(made, m=2.0, calls=30)
    known = deviation(last)

    assert known < before / 2
    assert known < deviation(last + 5000.0)


def test_the_lower_bound_is_below_the_mean() -> None:
    """Every point of a curve has its lower confidence bound between 1 and its mean."""
    made = curves()
    last = teach(made, m=3.0)

    assert all(1.0 <= point.lower <= point.mean for point in made.points(speculative(), 0.0, last))


def test_temperature_buckets_learn_apart_but_share_the_level() -> None:
    """What is learned at temperature 0 moves the hot curve's level, and the samples stay where they were seen."""
    made = curves()
    before = expected(made, temperature=1.0)
    last = teach(made, m=1.2, calls=60)

    assert expected(made, temperature=1.0, now=last) < before
    assert sum(point.samples for point in made.points(speculative(), 1.0, last)) == 0.0


@pytest.mark.parametrize(
    "facts",
    [
        {"m": 8.5},
        {"m": 0.9},
        {"m": 2.0, "steps": 0.0},
        {"m": 2.0, "source": "none"},
        {"m": 2.0, "revision": "never planned for"},
        {"m": float("nan")},
    ],
)
def test_what_cannot_be_teaches_nothing(facts: dict[str, Any]) -> None:
    """Lengths outside the window, no steps, no source and unknown revisions leave everything as it was."""
    made = curves()
    teach(made, calls=3, **facts)

    assert face(made) == face(curves())
    assert made.deltas() == {}


def test_timing_teaches_a_quarter() -> None:
    """What is known from timing alone weighs a quarter."""
    sure, unsure = curves(), curves()
    teach(sure, m=2.0, calls=1)
    teach(unsure, m=2.0, calls=1, source="timing")

    assert unsure.points(speculative(), 0.0, NOW)[5].samples == pytest.approx(
        sure.points(speculative(), 0.0, NOW)[5].samples / 4
    )


def test_under_a_guard_only_the_prior_speaks() -> None:
    """A pool whose learning is not trusted is judged by the prior."""
    made = curves()
    last = teach(made, m=1.2, calls=60)

    assert expected(made, now=last, pool=speculative(belief="prior")) == pytest.approx(expected(curves()))


# Drift


def test_a_redeployed_draft_is_noticed_within_forty_calls() -> None:
    """After an hour at 4.0, forty calls at 2.8 bring the expectation most of the way, untaught scores included."""
    made = curves()
    last = teach(made, m=4.0, calls=360, every=10.0)
    far = expected(made, score=score(0.75), now=last)
    last = teach(made, m=2.8, calls=40, now=last + 10.0, every=10.0)

    assert expected(made, now=last) == pytest.approx(2.8, rel=0.08)
    assert expected(made, score=score(0.75), now=last) < 0.9 * far


def test_chance_is_no_drift() -> None:
    """Calls that scatter as calls do leave the drift at exactly 1."""
    made = curves()
    for index, m in enumerate([2.4, 2.7, 2.5, 2.8, 2.6] * 20):
        teach(made, m=m, calls=1, now=NOW + index * 10.0)

    assert made.of(speculative()).drift_factor(NOW + 1000.0) == 1.0


# Sharing


@given(lessons, lessons, lessons)
@settings(max_examples=30)
def test_merging_is_commutative_and_associative(
    a: list[tuple[float, float, float, float]],
    b: list[tuple[float, float, float, float]],
    c: list[tuple[float, float, float, float]],
) -> None:
    """Three processes' deltas, merged in any order or grouping, make the same curves."""
    deltas = [learn(curves(), found).deltas() for found in (a, b, c)]
    results = []
    for order in permutations(deltas):
        made = curves()
        for delta in order:
            made.merge(delta, now=NOW + 200_000.0)
        results.append(face(made))
    first, grouped = curves(), curves()
    first.merge(deltas[1], now=NOW + 200_000.0)
    first.merge(deltas[2], now=NOW + 200_000.0)
    grouped.merge(deltas[0], now=NOW + 200_000.0)
    grouped.merge(first.snapshot(), now=NOW + 200_000.0)
    results.append(face(grouped))

    assert all(result == [pytest.approx(each) for each in results[0]] for result in results)


@given(lessons, lessons)
@settings(max_examples=30)
def test_merging_equals_joint_observation(
    mine: list[tuple[float, float, float, float]], theirs: list[tuple[float, float, float, float]]
) -> None:
    """Two processes that tell each other know what one process knows that has seen everything."""
    one, other, joint = curves(), curves(), curves()
    learn(one, mine)
    learn(other, theirs)
    learn(joint, mine + theirs)
    one.merge(other.deltas(), now=NOW + 200_000.0)

    assert face(one) == [pytest.approx(each) for each in face(joint)]


@given(lessons)
@settings(max_examples=30)
def test_decay_does_not_depend_on_when_things_meet(found: list[tuple[float, float, float, float]]) -> None:
    """Evidence merged half a day late weighs what it would have weighed at once."""
    delta = learn(curves(), found).deltas()
    early, late = curves(), curves()
    early.merge(delta, now=NOW + 200_000.0)
    teach(early, m=3.0, calls=1, now=NOW + 150_000.0)
    teach(late, m=3.0, calls=1, now=NOW + 150_000.0)
    late.merge(delta, now=NOW + 200_000.0)

    assert face(early) == [pytest.approx(each) for each in face(late)]


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 100.0)), max_size=20), st.randoms())
def test_sums_on_the_grid_are_the_discounted_sums(found: list[tuple[float, float]], order: Any) -> None:
    """A sum on the grid is worth the sum of its weights, each halved per half-life, in whatever order they came."""
    clock, evidence, now = Clock(3600.0), Evidence(), NOW + 1e6
    order.shuffle(found)
    for after, weight in found:
        grid, scale = clock.place(NOW + after)
        evidence.add(grid, (scale * weight, 0.0, 0.0, 0.0))

    exact = sum(weight * 2.0 ** ((after - 1e6) / 3600.0) for after, weight in found)
    assert evidence.weight * clock.worth(evidence.grid, now) == pytest.approx(exact, rel=1e-8, abs=1e-12)


def test_deltas_are_told_once_and_are_plain_json() -> None:
    """What was told is not told again, and survives JSON."""
    made = curves()
    teach(made, m=2.0)
    told = made.deltas()

    assert told
    assert json.loads(json.dumps(told)) == told
    assert all(number >= 0.0 for keys in told.values() for sums in keys.values() for number in sums)
    assert made.deltas() == {}


@given(lessons)
@settings(max_examples=20)
def test_a_snapshot_restores_what_was_known(found: list[tuple[float, float, float, float]]) -> None:
    """A restored process knows what the other knew, templates included, and has nothing to tell."""
    made = learn(curves(), found, template="abc")
    restored = curves()
    teach(restored, m=7.0)
    restored.restore(made.snapshot(), now=NOW + 200_000.0)

    assert face(restored) == [pytest.approx(each) for each in face(made)]
    assert expected(restored, template="abc", now=NOW + 2e5) == pytest.approx(
        expected(made, template="abc", now=NOW + 2e5), rel=0.01
    )
    assert restored.deltas() == {}


def test_nonsense_from_the_store_is_left_out() -> None:
    """Malformed keys, negative numbers and times that no clock can mean change nothing."""
    made = curves()
    key = json.dumps(["spec-1", 7, "draft_model", 0, 5, NOW])
    bad: list[dict[str, dict[str, list[float]]]] = [
        {"bins": {"no json": [1.0, 2.0, 2.0, 1.0]}},
        {"bins": {key: [1.0, 2.0]}},
        {"bins": {key: [-1.0, -2.0, 2.0, 1.0]}},
        {"bins": {key: [float("inf"), 2.0, 2.0, 1.0]}},
        {"bins": {json.dumps(["spec-1", 7, "draft_model", 9, 99, NOW]): [1.0, 2.0, 2.0, 1.0]}},
        {"bins": {json.dumps(["spec-1", 7, "draft_model", 0, 5, NOW + 1e6]): [1.0, 2.0, 2.0, 1.0]}},
        {"templates": {json.dumps(["acme", 3, "abc", "spec-1", 0, NOW]): [1.0, 2.0, 2.0, 1.0]}},
        {"drift": {json.dumps(NOW): [1.0, 2.0, 2.0, 1.0]}},
        {"elsewhere": {key: [1.0, 2.0, 2.0, 1.0]}},
    ]
    for deltas in bad:
        made.merge(deltas, now=NOW)

    assert face(made) == face(curves())


def test_another_artefact_teaches_nothing() -> None:
    """What was learned on the scores of one artefact is not mixed with another's."""
    one, other = Curves(REFERENCE, artefact="aaaa"), Curves(REFERENCE, artefact="bbbb")
    for made in (one, other):
        made.of(speculative())
    teach(one, m=1.2, calls=50)
    other.merge(one.deltas(), now=NOW + 100.0)

    assert face(other) == face(curves())


def test_a_changed_half_life_keeps_what_was_learned() -> None:
    """New settings take over the evidence at its present worth; others than those of learning touch nothing."""
    made = curves(half_life_seconds=1000.0)
    last = teach(made, m=1.4, calls=60)
    before = expected(made, now=last)
    made.settings = Settings(half_life_seconds=5000.0)

    assert expected(made, now=last) == pytest.approx(before, rel=0.02)
    assert made.settings.half_life_seconds == 5000.0


def test_a_prior_curve_has_ten_values() -> None:
    """Anything else is refused at once."""
    with pytest.raises(ValueError, match="10 values"):
        Curves([2.0, 3.0])


def test_two_processes_come_to_agree() -> None:
    """Two processes that each see half of the calls, and tell each other every second, have thresholds within 2 %."""
    one, other = curves(), curves()
    now = NOW
    for index in range(600):
        now = NOW + index
        made = one if index % 2 else other
        teach(made, m=3.5 if index < 400 else 2.4, calls=1, now=now, score=score((index % 10) / 10 + 0.05))
        told, heard = one.deltas(), other.deltas()
        one.merge(heard, now=now)
        other.merge(told, now=now)
    first, second = (made.threshold(speculative(), 0.0, 2.33, now + 10.0) for made in (one, other))

    assert first == pytest.approx(second, rel=0.02)
    assert face(one, now) == [pytest.approx(each) for each in face(other, now)]
