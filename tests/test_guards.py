"""Guards: a pure state machine that shakes the belief in a pool or takes it out, with a reason, and lets go again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing import GUARDS, Guards, Window
from gateway.routing.guards import LONGEST_PAUSE, PAUSE_WINDOWS, WINDOWS, State, advance, verdict

GOOD = {"calls": 20, "acceptance": 3.0, "break_even": 2.33}
BAD = {"calls": 20, "acceptance": 1.8, "break_even": 2.33}


def after(count: int, state: State | None = None, **facts: Any) -> State:
    """The state after so many windows of the same facts."""
    state = state or State()
    for _ in range(count):
        state = advance(state, Window(**facts))
    return state


windows = st.builds(
    Window,
    calls=st.integers(0, 50),
    acceptance=st.one_of(st.none(), st.floats(1.0, 8.0)),
    break_even=st.one_of(st.none(), st.floats(1.0, 8.0)),
    control=st.one_of(st.none(), st.floats(0.5, 2.0)),
    control_calls=st.integers(0, 50),
    signal_age=st.one_of(st.none(), st.floats(0.0, 100.0)),
    live_replicas=st.integers(0, 3),
    queued=st.integers(0, 100),
    slots=st.integers(0, 16),
)


@given(st.lists(windows, max_size=40))
def test_any_history_has_a_verdict(found: list[Window]) -> None:
    """After whatever windows: a known guard with a reason, or none and everything is relied upon."""
    state = State()
    for window in found:
        state = advance(state, window)
        said = verdict(state)

        assert said.guard is None or said.guard in GUARDS
        assert (said.guard is None) == (said.reason == "")
        if said.guard is None:
            assert said.available
            assert said.learns
            assert said.belief == "learned"


@given(st.lists(windows, max_size=40))
def test_good_windows_release_everything(found: list[Window]) -> None:
    """Whatever happened, a pool that does well long enough is free again."""
    state = State()
    for window in found:
        state = advance(state, window)
    state = after(LONGEST_PAUSE + WINDOWS + 1, state, control=1.0, control_calls=20, **GOOD)

    assert verdict(state).guard is None


def test_four_bad_windows_are_bad_luck() -> None:
    """Only the fifth window in a row below break-even makes the prior decide."""
    assert verdict(after(WINDOWS - 1, **BAD)).guard is None
    said = verdict(after(WINDOWS, **BAD))

    assert said.guard == "below_break_even"
    assert said.belief == "prior"
    assert said.available


def test_a_good_window_starts_the_count_again() -> None:
    """Bad windows count only in a row."""
    state = after(1, after(WINDOWS - 1, **BAD), **GOOD)

    assert verdict(after(WINDOWS - 1, state, **BAD)).guard is None


def test_if_the_prior_does_not_help_the_pool_is_out() -> None:
    """Five more bad windows under the prior take the pool out of the choice."""
    said = verdict(after(2 * WINDOWS, **BAD))

    assert not said.available
    assert "five" in said.reason or str(WINDOWS) in said.reason


def test_a_pause_ends_in_a_trial_and_doubles_when_that_fails() -> None:
    """After its pause a pool is tried on the prior; if it fails again it stays out for twice as long."""
    out = after(2 * WINDOWS, **BAD)
    trial = after(PAUSE_WINDOWS, out)
    again = after(WINDOWS, trial, **BAD)

    assert verdict(trial).available
    assert verdict(trial).belief == "prior"
    assert not verdict(again).available
    assert not verdict(after(2 * PAUSE_WINDOWS - 1, again)).available
    assert verdict(after(2 * PAUSE_WINDOWS, again)).available


def test_few_calls_say_nothing() -> None:
    """Windows with hardly any calls neither accuse nor acquit."""
    assert verdict(after(50, calls=2, acceptance=1.0, break_even=2.33)).guard is None
    assert verdict(after(50, after(WINDOWS, **BAD), calls=2, acceptance=5.0, break_even=2.33)).guard is not None


@pytest.mark.parametrize(
    ("reading", "held"), [(1.0, False), (1.049, False), (0.951, False), (1.06, True), (0.94, True)]
)
def test_the_control_must_read_one(reading: float, held: bool) -> None:  # noqa: FBT001
    """If the estimator is off by more than 5 % on baseline twice, it is not believed and nothing is learned."""
    said = verdict(after(2, control=reading, control_calls=20))

    assert (said.guard == "control") == held
    assert said.learns != held
    assert verdict(after(1, control=reading, control_calls=20)).guard is None


def test_stale_signals_shake_the_belief() -> None:
    """Signals older than three scrapes leave the prior; fresh ones release at once."""
    state = after(1, signal_age=31.0, scrape_seconds=10.0)

    assert verdict(state).guard == "stale"
    assert verdict(state).belief == "prior"
    assert verdict(after(1, state, signal_age=5.0, scrape_seconds=10.0)).guard is None
    assert verdict(after(1, signal_age=None)).guard is None


def test_a_dead_pool_is_out() -> None:
    """Without a live replica the pool is out, whatever else holds."""
    said = verdict(after(1, after(WINDOWS, **BAD), live_replicas=0))

    assert said.guard == "replicas"
    assert not said.available


def test_a_jam_releases_later_than_it_holds() -> None:
    """A pool with four waiting calls per slot is out until fewer than one per slot wait."""
    jammed = after(1, queued=17, slots=4)

    assert verdict(jammed).guard == "queue"
    assert verdict(after(1, jammed, queued=8, slots=4)).guard == "queue"
    assert verdict(after(1, jammed, queued=4, slots=4)).guard is None
    assert verdict(after(1, queued=8, slots=4)).guard is None


def test_guards_keep_pools_apart() -> None:
    """One pool's trouble is not another's; a forgotten pool starts free."""
    guards = Guards()
    for _ in range(WINDOWS):
        guards.window("a", Window(**BAD))
        guards.window("b", Window(**GOOD))

    assert guards.of("a").guard == "below_break_even"
    assert guards.of("b").guard is None
    assert set(guards.active()) == {"a"}
    assert "below_break_even" in repr(guards)
    guards.forget("a")
    assert guards.of("a").guard is None
    assert repr(guards) == "<Guards free>"
