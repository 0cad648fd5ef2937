"""The decision: deterministic, never across a constraint, monotone in the score, with honest reasons and propensities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from routed import ALL, NOW, ask, baseline, curves, score, speculative, teach

from gateway.errors import BadRequest, Unavailable
from gateway.routing import FEATURES, REASONS, Affinity, Ask, Needs, Plan, PoolView, Thresholds, explain, plan, unfit
from gateway.routing.explore import propensities, share
from gateway.routing.weigh import bids

places = st.floats(0.0, 1.0)
chances = st.floats(0.0, 1.0, exclude_max=True)
kinds = st.sampled_from([baseline, speculative])


@st.composite
def pools(draw: st.DrawFn) -> list[PoolView]:
    """One to four pools of any kind and state."""
    found = []
    for index in range(draw(st.integers(1, 4))):
        live = draw(st.integers(0, 3))
        running = draw(st.integers(0, 4 * live))
        window = draw(st.integers(1, 10))
        made = draw(kinds)
        pool = made(
            name=f"pool-{index}",
            supports=draw(st.frozensets(st.sampled_from(FEATURES), min_size=8)),
            max_model_len=draw(st.sampled_from([None, 50, 4096])),
            live_replicas=live,
            slots=4 * live,
            running=running,
            queued=draw(st.integers(0, 9)) if running == 4 * live else 0,
            available=live > 0 and draw(st.booleans()),
            why_unavailable="switched off",
            step_seconds=draw(st.floats(0.01, 0.3)),
            price_per_slot_second=draw(st.floats(0.0, 0.01)),
            step_growth=draw(st.floats(0.0, 0.1)),
        )
        found.append(replace(pool, window=window, revision=f"r{index}-{window}") if pool.speculative else pool)
    return found


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Any call under any policy."""
    return ask(
        policy=draw(st.sampled_from(["auto", "speculative", "baseline", "shadow"])),
        route=draw(st.sampled_from([None, "auto", "speculative", "baseline"])),
        cost_weight=draw(places),
        explore=draw(st.booleans()),
        needs=Needs(
            draw(st.frozensets(st.sampled_from(FEATURES), max_size=2)),
            draw(st.integers(0, 5000)),
            draw(st.one_of(st.none(), st.integers(1, 2000))),
            draw(st.sampled_from([None, 0.0, 0.7])),
        ),
        score=score(draw(places), tokens=draw(st.floats(1.0, 2000.0))),
        template=draw(st.sampled_from(["", "abc"])),
        affinity=draw(st.sampled_from([None, Affinity(pool="pool-0", tokens=3000, seconds_per_token=0.0005)])),
    )


def decide(question: Ask, views: Sequence[PoolView], chance: float = 0.999, **facts: Any) -> Plan:
    """Ask `plan` with curves that have learned nothing."""
    return plan(question, views, facts.pop("made", None) or curves(), now=NOW, chance=lambda: chance, **facts)


def unexpected() -> float:
    """A source of chance that nobody may draw from."""
    raise AssertionError("chance was drawn")


# Laws


@given(asks(), pools(), chances)
def test_a_plan_obeys_its_laws(question: Ask, views: list[PoolView], chance: float) -> None:
    """Whatever is asked: fitting, available pools only, each once; a known reason; a probability; one option per pool."""
    try:
        found = decide(question, views, chance)
    except (Unavailable, BadRequest):
        assert not [pool for pool in views if pool.available and unfit(pool, question.needs) is None]
        return
    by_name = {pool.name: pool for pool in views}

    assert len(set(found.pools)) == len(found.pools) >= 1
    for name in found.pools:
        assert by_name[name].available
        missing = question.needs.features - by_name[name].supports
        assert not missing
    assert found.reason in REASONS
    assert 0.0 < found.propensity <= 1.0
    assert 0.0 <= found.threshold <= 1.0
    assert [option.pool for option in found.options] == [pool.name for pool in views]
    assert found.detail.endswith(".")
    assert found.explored == (found.reason == "explore")
    assert not (found.explored and not question.explore)


@given(asks(), pools(), chances)
def test_the_same_question_has_the_same_answer(question: Ask, views: list[PoolView], chance: float) -> None:
    """A plan follows from its arguments alone, and changes nothing that the next one sees."""
    made = curves()

    def answer() -> dict[str, object] | str:
        try:
            found = plan(question, views, made, now=NOW, chance=lambda: chance)
            return {name: getattr(found, name) for name in (*found.__struct_fields__, "detail") if name != "_told"}
        except (Unavailable, BadRequest) as error:
            return str(error)

    assert answer() == answer()


@given(places, places, st.floats(0.03, 0.4), places)
def test_a_higher_score_never_loses_speculation(a: float, b: float, step: float, weight: float) -> None:
    """If a call is sent to speculate, one that scores higher is too."""
    low, high = sorted((a, b))
    views = [baseline(), speculative(step_seconds=step)]
    lower, higher = (decide(ask(score=score(each), cost_weight=weight), views) for each in (low, high))

    assert not (lower.pools[0] == "spec" and higher.pools[0] == "base")
    assert lower.expected <= higher.expected + 1e-9


@given(places, st.floats(0.03, 0.4), st.sampled_from(["", "abc"]))
def test_score_and_threshold_explain_the_decision(place: float, step: float, template: str) -> None:
    """A call speculates exactly when its expectation reaches the break-even, which is when its score reaches the threshold."""
    made = curves()
    teach(made, m=1.7, calls=5, score=score(0.3), template="abc")
    found = decide(ask(score=score(place), template=template), [baseline(), speculative(step_seconds=step)], made=made)
    speculates = found.pools[0] == "spec"

    assert speculates == (found.expected >= found.break_even)
    if found.threshold < 1.0 and abs(found.expected / found.break_even - 1.0) > 1e-9:
        assert speculates == (found.score >= found.threshold)


@given(asks(), pools())
def test_propensities_sum_to_one(question: Ask, views: list[PoolView]) -> None:
    """The probabilities of all that may be chosen sum to one, and chance draws each with its own."""
    made = curves(explore_near=0.4, explore_far=0.05)
    found = [bid for bid in bids(question, views, made, tokens=100.0, now=NOW, published=None) if bid.up]
    if not found:
        return
    winner = min(found, key=lambda bid: bid.full)
    chosen = propensities(winner, found, made.settings, tokens=100.0)

    assert sum(probability for _, probability in chosen) == pytest.approx(1.0)
    assert all(probability > 0.0 for _, probability in chosen)
    assert chosen[-1][0] is winner
    assert all(bid.pool.speculative for bid, _ in chosen[:-1])


# Reasons


def full() -> PoolView:
    """A speculative pool with a long queue."""
    return speculative(running=4, queued=40)


def down(**changes: Any) -> PoolView:
    """A speculative pool that is not there."""
    return speculative(available=False, live_replicas=0, slots=0, why_unavailable="no live replica", **changes)


PREDICTABLE, STORY = score(0.95), score(0.05)


@pytest.mark.parametrize(
    ("reason", "first", "changes", "views"),
    [
        ("predictable", "spec", {"score": PREDICTABLE}, [baseline(), speculative()]),
        ("unpredictable", "base", {"score": STORY}, [baseline(), speculative()]),
        ("constraint", "base", {"score": PREDICTABLE}, [baseline(), speculative(supports=frozenset())]),
        ("policy", "base", {"score": PREDICTABLE, "policy": "baseline"}, [baseline(), speculative()]),
        ("policy", "spec", {"score": STORY, "policy": "speculative"}, [baseline(), speculative()]),
        ("header", "base", {"score": PREDICTABLE, "route": "baseline"}, [baseline(), speculative()]),
        ("header", "spec", {"score": STORY, "route": "speculative", "policy": "baseline"}, [baseline(), speculative()]),
        ("shadow", "base", {"score": PREDICTABLE, "policy": "shadow"}, [baseline(), speculative()]),
        ("only_pool", "base", {"score": PREDICTABLE}, [baseline()]),
        ("only_pool", "spec", {"score": STORY}, [speculative()]),
        ("pool_down", "base", {"score": PREDICTABLE}, [baseline(), down()]),
        ("pool_down", "base", {"score": PREDICTABLE, "route": "speculative"}, [baseline(), down()]),
        ("pool_full", "base", {"score": PREDICTABLE}, [baseline(), full()]),
        ("guard", "base", {"score": PREDICTABLE}, [baseline(), down(guard="below_break_even")]),
        (
            "affinity",
            "base",
            {"score": PREDICTABLE, "affinity": Affinity(pool="base", tokens=60_000, seconds_per_token=0.001)},
            [baseline(), speculative()],
        ),
    ],
)
def test_every_reason_has_its_case(reason: str, first: str, changes: dict[str, Any], views: list[PoolView]) -> None:
    """Each situation leads to the pool it should, under the reason that names it."""
    needs = Needs(frozenset({"sampling"}), 10, None, 0.7)
    found = decide(ask(needs=needs, **changes), views)

    assert (found.reason, found.pools[0]) == (reason, first)


def test_the_reasons_are_a_closed_set() -> None:
    """Labels come from a fixed tuple of twelve."""
    assert len(REASONS) == len(set(REASONS)) == 12


def test_a_forced_route_never_breaks_a_constraint() -> None:
    """Header and policy choose among what fits; what does not fit is not even tried after a failure."""
    needs = Needs(frozenset({"min_p"}), 10, None, 0.0)
    views = [baseline(), speculative(supports=ALL - {"min_p"})]
    for changes in ({"route": "speculative"}, {"policy": "speculative"}):
        found = decide(ask(needs=needs, **changes), views)

        assert found.pools == ("base",)
        assert found.reason == "constraint"


def test_failover_tries_the_other_kind_next() -> None:
    """The pools that fit follow in the order of what they cost the call."""
    views = [speculative(), baseline(name="far", price_per_slot_second=0.01), baseline()]

    assert decide(ask(score=PREDICTABLE), views).pools == ("spec", "base", "far")


def test_shadow_records_what_it_would_have_done() -> None:
    """Under policy shadow the call is served from baseline, and the pool that auto would have taken is noted."""
    assert decide(ask(score=PREDICTABLE, policy="shadow"), [baseline(), speculative()]).shadow == "spec"
    assert decide(ask(score=STORY, policy="shadow"), [baseline(), speculative()]).shadow == "base"


# Refusals


def test_what_no_pool_serves_is_the_clients_error() -> None:
    """A feature that no pool of the model has is refused by name, as nothing would change by waiting."""
    with pytest.raises(BadRequest, match="min_p") as caught:
        decide(ask(needs=Needs(frozenset({"min_p"}), 1, None, 0.0)), [speculative(supports=ALL - {"min_p"})])

    assert caught.value.param == "min_p"


def test_what_is_away_is_unavailable() -> None:
    """When all pools that fit are away, the error says which and why, and when to come back."""
    with pytest.raises(Unavailable, match="'spec': no live replica") as caught:
        decide(ask(), [down()])

    assert caught.value.retry_after is not None


def test_a_model_without_pools_is_unavailable() -> None:
    """No pool at all is no crash."""
    with pytest.raises(Unavailable, match="no pool"):
        decide(ask(), [])


def test_a_call_too_long_for_all_is_left_to_the_longest_baseline() -> None:
    """The prompt's length is an estimate, so the engine itself says what does not fit."""
    needs = Needs(frozenset(), 9000, 100, 0.0)
    views = [speculative(max_model_len=8192), baseline(max_model_len=4096), baseline(name="long", max_model_len=8192)]

    assert decide(ask(needs=needs), views).pools == ("long",)


# Economics in the decision


def test_a_price_moves_the_decision() -> None:
    """The same call goes to baseline when speculative slots get dear, if the tenant cares for cost."""
    dear = speculative(price_per_slot_second=0.003)

    assert decide(ask(score=score(0.7)), [baseline(), speculative()]).pools[0] == "spec"
    assert decide(ask(score=score(0.7), cost_weight=1.0), [baseline(), dear]).pools[0] == "base"
    assert decide(ask(score=score(0.7), cost_weight=0.0), [baseline(), dear]).pools[0] == "spec"


def test_several_windows_compete() -> None:
    """Of two speculative pools the short window serves middling calls, the long one predictable ones."""
    made = curves()
    short = speculative(name="short", window=3, step_seconds=0.0707, revision="spec-k3")
    views = [baseline(), speculative(), short]

    assert decide(ask(score=score(0.35)), views, made=made).pools[0] == "short"
    assert decide(ask(score=score(0.99)), views, made=made).pools[0] == "spec"
    assert decide(ask(score=score(0.0)), [baseline(), speculative()], made=made).pools[0] == "base"


def test_several_pools_of_a_kind_share_the_load() -> None:
    """A full pool's calls go to its twin before they change kind."""
    twin = speculative(name="twin")
    found = decide(ask(score=PREDICTABLE), [baseline(), speculative(running=4, queued=5), twin])

    assert found.pools[0] == "twin"
    assert found.reason == "predictable"


def test_the_published_break_even_holds_within_its_hysteresis() -> None:
    """Steps that jitter by 4 % do not turn a call around; 10 % do."""
    made, thresholds = curves(), Thresholds()
    thresholds.refresh([baseline(), speculative()], made, now=NOW)
    place = thresholds["spec"].threshold + 0.01
    question = ask(score=score(place, tokens=500.0))

    def first(step: float) -> str:
        return decide(question, [baseline(), speculative(step_seconds=step)], made=made, published=thresholds).pools[0]

    assert [first(0.105 * jitter) for jitter in (1.0, 1.04, 0.96, 1.10)] == ["spec", "spec", "spec", "base"]


def test_max_tokens_bounds_what_is_expected() -> None:
    """A call that may write ten tokens is not priced by its template's usual hundreds."""
    found = decide(ask(needs=Needs(frozenset(), 10, 10, 0.0)), [baseline(), speculative()])

    assert found.output_tokens == 10.0


def test_a_guarded_pool_is_judged_by_the_prior() -> None:
    """What was learned of a pool does not count while its belief is the prior."""
    made = curves()
    teach(made, m=1.1, calls=200)
    views = [baseline(), speculative(belief="prior")]

    assert decide(ask(score=score(0.5)), [baseline(), speculative()], made=made).pools[0] == "base"
    assert decide(ask(score=score(0.5)), views, made=made).pools[0] == "spec"


# Exploration


def test_exploration_needs_consent_and_a_speculative_pool() -> None:
    """Chance is not even drawn for tenants that opted out, nor where the better pool speculates."""
    question = ask(score=STORY)
    views = [baseline(), speculative()]

    assert not plan(question, views, curves(), now=NOW, chance=unexpected).explored
    assert not plan(
        replace(question, explore=True, score=PREDICTABLE), views, curves(), now=NOW, chance=unexpected
    ).explored
    assert decide(replace(question, explore=True), views, 0.0).explored


def test_nobody_explores_into_a_queue_or_away_from_a_prefix() -> None:
    """A lesson is not worth a wait or a lost conversation."""
    question = ask(score=STORY, explore=True)
    held = replace(question, affinity=Affinity(pool="base", tokens=100, seconds_per_token=0.001))

    assert not plan(question, [baseline(), full()], curves(), now=NOW, chance=unexpected).explored
    assert not plan(held, [baseline(), speculative()], curves(), now=NOW, chance=unexpected).explored


def test_the_propensity_is_that_of_what_was_chosen() -> None:
    """Explored and greedy choices of one call have probabilities that complement each other."""
    question = ask(score=STORY, explore=True)
    tried, not_tried = (decide(question, [baseline(), speculative()], chance) for chance in (0.0, 0.999))

    assert tried.reason == "explore"
    assert tried.propensity + not_tried.propensity == pytest.approx(1.0)


def test_certainty_ends_exploration() -> None:
    """What is tried often at first is hardly tried once it is known."""
    made = curves()
    question = ask(score=score(0.3), explore=True, template="abc")
    at_first = 1.0 - decide(question, [baseline(), speculative()], made=made).propensity
    last = teach(made, m=1.5, calls=30, template="abc", score=score(0.3))
    found = plan(question, [baseline(), speculative()], made, now=last, chance=lambda: 0.999)

    assert at_first > 0.5 * made.settings.explore_near
    assert 0.0 < 1.0 - found.propensity <= made.settings.explore_far


@given(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(0.0, 500.0), st.floats(0.01, 0.5), st.floats(0.0, 0.01))
def test_a_share_stays_between_its_bounds(gap: float, variance: float, traffic: float, near: float, far: float) -> None:
    """How often is tried lies between a tenth of far and near, falls with the gap, and grows with traffic."""

    def tried(gap: float, traffic: float) -> float:
        return share(gap, variance, steps=60.0, traffic=traffic, scatter=0.0225, near=near, far=far)

    assert far / 10 <= tried(gap, traffic) <= near
    assert tried(gap + 0.1, traffic) <= tried(gap, traffic) + 1e-12
    assert tried(gap, traffic) <= tried(gap, traffic + 100.0) + 1e-12


# Explanation


def test_a_dry_run_tells_everything_and_touches_nothing() -> None:
    """An explanation is plain data, never explores, and leaves curves and deltas as they were."""
    made = curves()
    last = teach(made, m=3.0, template="abc")
    made.deltas()
    found = explain(ask(explore=True, template="abc", score=STORY), [baseline(), speculative()], made, [], now=last)

    assert found["pool"] in ("base", "spec")
    assert found["reason"] != "explore"
    assert len(found["beliefs"][0]["curve"]) == 10
    assert found["beliefs"][0]["layer"] == "template"
    assert {"threshold", "break_even", "detail", "features", "options", "score"} <= set(found)
    assert made.deltas() == {}


@pytest.mark.parametrize("chance", [lambda: 0.0, lambda: 0.5, lambda: 0.999])
def test_an_explanation_agrees_with_the_plan(chance: Callable[[], float]) -> None:
    """Where nothing is explored, the dry run names the pool that the call gets."""
    for place in (0.05, 0.4, 0.95):
        question = ask(score=score(place))
        views = [baseline(), speculative()]
        real = plan(question, views, curves(), now=NOW, chance=chance)

        assert explain(question, views, curves(), [], now=NOW)["pool"] == real.pools[0]
