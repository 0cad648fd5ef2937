"""Hard limits: what a pool cannot serve with the same meaning never goes there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed import ALL, baseline, speculative

from gateway.routing import FEATURES, Needs, unfit
from gateway.routing.constraints import missing

features = st.frozensets(st.sampled_from(FEATURES))


def needs(*wanted: str, prompt: int = 100, limit: int | None = None) -> Needs:
    """What a greedy call with these features needs."""
    return Needs(frozenset(wanted), prompt, limit, 0.0)


@given(features, features)
def test_a_pool_serves_exactly_what_it_supports(wanted: frozenset[str], supported: frozenset[str]) -> None:
    """A call fits if and only if all the features that it needs are among those that the pool supports."""
    pool = speculative(supports=supported)

    assert (unfit(pool, needs(*wanted)) is None) == (wanted <= supported)


@pytest.mark.parametrize("feature", FEATURES)
def test_the_reason_names_the_feature(feature: str) -> None:
    """The words that say why a pool is unfit name what it lacks."""
    reason = unfit(speculative(supports=ALL - {feature}), needs(feature))

    assert reason is not None
    assert feature in reason


def test_the_first_lacking_feature_is_named_in_a_fixed_order() -> None:
    """With several lacking features the same one is always named, so that labels do not flicker."""
    assert missing(speculative(supports=frozenset()), needs("lora", "n", "min_p")) == "min_p"


def test_an_unknown_feature_is_lacking() -> None:
    """A feature that a later version asks for is not silently taken for supported."""
    assert missing(speculative(), needs("telepathy")) == "telepathy"


@pytest.mark.parametrize(
    ("prompt", "limit", "fits"), [(900, 117, True), (900, 118, False), (1016, None, True), (1017, None, False)]
)
def test_speculation_needs_room_for_its_window(prompt: int, limit: int | None, fits: bool) -> None:  # noqa: FBT001
    """Prompt and answer must leave a window's room below the length of a speculative pool: 1024 − 7."""
    pool = speculative(max_model_len=1024)

    assert (unfit(pool, needs(prompt=prompt, limit=limit)) is None) == fits


def test_baseline_uses_its_whole_length() -> None:
    """A baseline pool needs no room for drafts."""
    assert unfit(baseline(max_model_len=1024), needs(prompt=1000, limit=24)) is None
    assert unfit(baseline(max_model_len=1024), needs(prompt=1000, limit=25)) is not None
