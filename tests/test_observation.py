"""Observations: what a finished call teaches of acceptance and step time, by the best source that it has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observation import FEWEST_STEPS, Evidence, Observation, observe
from gateway.record import SOURCES
from gateway.usage import Speculation, Usage


def seen(**changes: Any) -> Evidence:
    """Return the evidence of a whole stream of a speculative pool: 41 tokens, 11 events, 10 steps in a second."""
    evidence: dict[str, Any] = {
        "usage": Usage(9, 41),
        "speculation": None,
        "token_events": 11,
        "streamed": True,
        "decode_seconds": 1.0,
        "step_seconds_expected": 0.1,
        "window": 7,
        "several": False,
        "swallowed": False,
        "lagging": False,
    }
    return Evidence(**{**evidence, **changes})


def test_events_tell_tokens_per_step() -> None:
    """One event is one step, but for the first, which carries the prefill's token."""
    assert observe(seen()) == Observation(acceptance=4.0, steps=10.0, step_seconds=0.1, source="events")


def test_the_engine_s_own_word_goes_before_events() -> None:
    """Every step emits one token of the target's own, so steps are the tokens that were not accepted from the draft."""
    found = observe(seen(speculation=Speculation(steps=9, drafted=63, accepted=31)))

    assert found == Observation(acceptance=4.1, steps=10.0, step_seconds=0.1, source="engine")


def test_replies_that_are_not_streamed_are_timed() -> None:
    """Tokens per step follow from the decode time and the step time that is expected at the load."""
    found = observe(seen(streamed=False, token_events=0))

    assert found == Observation(acceptance=4.1, steps=10.0, step_seconds=None, source="timing")


def test_an_engine_s_word_needs_no_stream() -> None:
    """Per-request metrics tell acceptance of whole replies too, but no step time, as the prefill's share is unknown."""
    found = observe(seen(streamed=False, token_events=0, speculation=Speculation(9, 63, 31)))

    assert (found.source, found.acceptance, found.step_seconds) == ("engine", 4.1, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": None},
        {"usage": Usage(9, 0)},
        {"usage": Usage(9, 1)},
        {"token_events": 1},
        {"token_events": 0},
        {"streamed": False, "decode_seconds": None},
        {"streamed": False, "decode_seconds": 0.0},
        {"streamed": False, "decode_seconds": -0.2},
    ],
)
def test_what_teaches_nothing(changes: dict[str, Any]) -> None:
    """Without usage, with a single token, or without time or events, nothing is said."""
    assert observe(seen(**changes)) == Observation()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, ""),
        ({"several": True}, "several"),
        ({"swallowed": True}, "parser"),
        ({"lagging": True}, "lagging"),
        ({"token_events": 60}, "empty_events"),
        ({"token_events": 5}, "above_window"),
        ({"token_events": 6}, ""),
        ({"window": None}, "above_window"),
        ({"usage": Usage(9, 10), "token_events": 4}, "short"),
        ({"usage": Usage(9, 11), "token_events": 1 + FEWEST_STEPS}, ""),
        ({"streamed": False, "decode_seconds": 0.1}, "above_window"),
        ({"streamed": False, "decode_seconds": 0.5, "usage": Usage(9, 41)}, "above_window"),
        ({"streamed": False, "decode_seconds": 0.39, "usage": Usage(9, 20)}, "short"),
        ({"swallowed": True, "speculation": Speculation(9, 63, 31)}, ""),
        ({"lagging": True, "speculation": Speculation(9, 63, 31)}, ""),
        ({"several": True, "speculation": Speculation(9, 63, 31)}, "several"),
        ({"speculation": Speculation(2, 14, 39)}, "short"),
    ],
)
def test_what_must_not_be_learned_from_says_why(changes: dict[str, Any], word: str) -> None:
    """Merged, hidden or empty events, several sequences, short answers and impossible values are observed, not learned."""
    assert observe(seen(**changes)).biased == word


@pytest.mark.parametrize("accepted", [-1, 41, 100])
def test_impossible_metrics_are_not_believed(accepted: int) -> None:
    """An engine cannot have accepted as many tokens as it emitted; events tell instead."""
    assert observe(seen(speculation=Speculation(9, 63, accepted))).source == "events"


def test_a_baseline_stream_reads_one() -> None:
    """Without a draft every event is one token, which checks the estimator itself."""
    found = observe(seen(usage=Usage(9, 41), token_events=41, window=None))

    assert (found.acceptance, found.biased) == (1.0, "")


@given(
    st.builds(
        Evidence,
        usage=st.none() | st.builds(Usage, st.integers(-5, 10**9), st.integers(-5, 10**9)),
        speculation=st.none() | st.builds(Speculation, *[st.integers(-5, 10**9)] * 3),
        token_events=st.integers(-5, 10**6),
        streamed=st.booleans(),
        decode_seconds=st.none() | st.floats(-10, 10**5),
        step_seconds_expected=st.floats(1e-6, 10),
        window=st.none() | st.integers(1, 64),
        several=st.booleans(),
        swallowed=st.booleans(),
        lagging=st.booleans(),
    )
)
def test_whatever_an_engine_says_what_is_learned_is_possible(evidence: Evidence) -> None:
    """An unbiased observation has at least one token per step and a positive number of steps."""
    found = observe(evidence)

    assert found.source in SOURCES
    if found.source != "none" and not found.biased:
        assert found.acceptance is not None
        assert found.acceptance >= 1.0 - 1e-9
        assert found.steps is not None
        assert found.steps >= FEWEST_STEPS
        assert found.step_seconds is None or found.step_seconds > 0
