"""Templates: each keeps its own residual over the curve, notices its own changes, and the table stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import NOW, curves, expected, score, speculative, teach

from gateway.routing import Curves


def estimate(made: Curves, template: str, now: float) -> tuple[float, float, str]:
    """Mean, deviation and layer of what is believed of a template's call."""
    found = made.expected(
        speculative(), score=score(), temperature=0.0, tenant="acme", model="demo", template=template, now=now
    )
    return found.mean, found.deviation, found.layer


def settled() -> tuple[Curves, float]:
    """Curves of a busy hour: many calls without template at 2.6, one template at 1.5, one at 4.5."""
    made = curves()
    for index in range(120):
        teach(made, m=2.6, calls=1, now=NOW + index * 30.0)
        teach(made, m=1.5, calls=1, now=NOW + index * 30.0, template="poor")
        teach(made, m=4.5, calls=1, now=NOW + index * 30.0, template="rich")
    return made, NOW + 3600.0


def test_templates_are_told_apart() -> None:
    """At the same score each template is expected to do what it did, and calls of none what the curve says."""
    made, now = settled()

    assert estimate(made, "poor", now)[0] == pytest.approx(1.5, rel=0.1)
    assert estimate(made, "rich", now)[0] == pytest.approx(4.5, rel=0.1)
    assert estimate(made, "", now)[0] == pytest.approx(2.6, rel=0.1)
    assert estimate(made, "poor", now)[2] == "template"


def test_a_new_template_has_the_curve_alone() -> None:
    """A template never seen is believed to be like calls without one, only less surely."""
    made, now = settled()
    fresh, none = estimate(made, "fresh", now), estimate(made, "", now)

    assert fresh[0] == pytest.approx(none[0])
    assert fresh[1] > none[1]
    assert fresh[2] == "curve"


def test_a_residual_is_shrunk_by_its_evidence() -> None:
    """One call moves the expectation some of the way, ten calls nearly all of it."""
    made, now = settled()
    before = estimate(made, "fresh", now)[0]
    teach(made, m=1.3, calls=1, now=now, template="fresh")
    once = estimate(made, "fresh", now)[0]
    last = teach(made, m=1.3, calls=9, now=now + 30.0, every=30.0, template="fresh")

    assert 1.3 < estimate(made, "fresh", last)[0] < once < before
    assert estimate(made, "fresh", last)[0] == pytest.approx(1.3, rel=0.15)


def test_one_template_does_not_speak_for_the_others() -> None:
    """A template that brings all the traffic leaves others nearer to what was believed of them than to itself."""
    made = curves()
    before = estimate(made, "fresh", NOW)[0]
    last = teach(made, m=1.2, calls=500, every=5.0, template="loud")
    after = estimate(made, "fresh", last)[0]

    assert estimate(made, "loud", last)[0] == pytest.approx(1.2, rel=0.05)
    assert after - 1.2 > 0.3 * (before - 1.2)


@pytest.mark.parametrize(("lengths", "spread"), [((1.6, 2.4, 3.6), "wide"), ((2.4, 2.4, 2.4), "none")])
def test_how_much_the_score_tells_inside_a_template_is_learned(lengths: tuple[float, ...], spread: str) -> None:
    """Where calls of one template differ as their scores say, or more, their expectations come to differ too; else not."""
    made = curves()
    for index in range(300):
        for place, m in zip((0.15, 0.5, 0.85), lengths, strict=True):
            teach(made, m=m, calls=1, now=NOW + index * 30.0, score=score(place), template=f"t{index % 5}")
    low, high = (expected(made, score=score(place), template="t0", now=NOW + 9000.0) for place in (0.15, 0.85))

    assert (high / low > 1.8) == (spread == "wide")
    assert (high / low < 1.3) == (spread == "none")


def test_surprises_widen_what_is_held_possible() -> None:
    """Where templates scatter, a known one stays less certain than where they do what was expected."""
    calm, wild = curves(), curves()
    for index in range(200):
        for made, lengths in ((calm, (2.5, 2.5)), (wild, (1.5, 4.5))):
            teach(made, m=lengths[index % 2], calls=1, now=NOW + index * 60.0, template=f"t{index // 2 % 4}")

    assert estimate(wild, "t0", NOW + 12_000.0)[1] > 1.5 * estimate(calm, "t0", NOW + 12_000.0)[1]


def test_templates_belong_to_tenant_and_model() -> None:
    """The same fingerprint under another tenant or model is another template."""
    made = curves()
    last = teach(made, m=1.2, calls=60, template="abc")
    mine = expected(made, template="abc", now=last)

    assert expected(made, template="abc", tenant="other", now=last) > mine
    assert expected(made, template="abc", model="other", now=last) > mine


def test_another_revision_borrows_half_of_a_residual() -> None:
    """Where a new draft has seen nothing of a template, its old residual counts by half."""
    made, now = settled()
    fresh = speculative(revision="spec-2")

    plain = expected(made, pool=fresh, now=now)
    assert expected(made, pool=fresh, template="rich", now=now) > 1.1 * plain
    assert expected(made, pool=fresh, template="poor", now=now) < 0.9 * plain
    assert expected(made, pool=fresh, template="rich", now=now) < estimate(made, "rich", now)[0]


def test_a_template_that_changes_is_followed_within_a_dozen_calls() -> None:
    """A template whose answers become another kind is soon expected to do what it does now, and stays so when left alone."""
    made, last = settled()
    for _ in range(12):
        last = teach(made, m=2.6, calls=1, now=last + 10.0)
        last = teach(made, m=1.4, calls=1, now=last + 10.0, template="rich")

    assert estimate(made, "rich", last)[0] < 2.33
    assert estimate(made, "rich", last + 3600.0)[0] < 2.33
    assert estimate(made, "", last)[0] == pytest.approx(2.6, rel=0.15)


def test_a_new_generation_spreads_by_merging() -> None:
    """Another process that knew the template as it was forgets that when it hears of the change."""
    one, now = settled()
    other = curves()
    other.merge(one.deltas(), now=now)
    last = teach(one, m=1.4, calls=12, now=now + 20.0, every=20.0, template="rich")
    before = estimate(other, "rich", last)[0]
    other.merge(one.deltas(), now=last)

    assert before > 4.0
    assert estimate(other, "rich", last)[0] < 2.33


def test_an_old_generation_does_not_come_back() -> None:
    """Late news of the time before a change is dropped."""
    one, now = settled()
    late = one.deltas()
    last = teach(one, m=1.4, calls=12, now=now + 20.0, every=20.0, template="rich")
    other = curves()
    other.merge(one.deltas(), now=last)
    before = estimate(other, "rich", last)[0]
    other.merge({"templates": late["templates"]}, now=last)

    assert estimate(other, "rich", last)[0] == pytest.approx(before)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40))
@settings(max_examples=30)
def test_the_table_is_bounded_and_keeps_what_was_used_last(used: list[str]) -> None:
    """Of more templates than there is room for, the most recently used ones are known."""
    made = curves(max_templates=3)
    for name in used:
        teach(made, m=5.0, calls=1, template=name)
    kept = list(dict.fromkeys(reversed(used)))[:3]

    for name in "abcdefgh":
        assert (estimate(made, name, NOW)[2] == "template") == (name in kept)


def test_traffic_is_counted_wherever_it_went() -> None:
    """Finished calls of any pool tell how often a template comes, and fade like everything else."""
    made = curves(half_life_seconds=1000.0)
    for index in range(10):
        made.saw(tenant="acme", model="demo", template="abc", now=NOW + index)

    def traffic(now: float) -> float:
        return made.expected(
            speculative(), score=score(), temperature=0.0, tenant="acme", model="demo", template="abc", now=now
        ).traffic

    assert traffic(NOW + 9) == pytest.approx(10.0, rel=0.01)
    assert traffic(NOW + 1009) == pytest.approx(5.0, rel=0.01)


def test_evidence_fades_into_the_curve() -> None:
    """A template unseen for many half-lives is believed to be like any other again, and is uncertain again."""
    made, now = settled()
    later = now + 30 * 21_600.0

    assert estimate(made, "rich", later)[0] == pytest.approx(expected(made, template="fresh", now=later), rel=0.02)
    assert estimate(made, "rich", later)[1] > 4 * estimate(made, "rich", now)[1]
