"""The circuit breaker, by its table: time and chance are arguments, so nothing here waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.breaker import FAILURES_TO_OPEN, FIRST_WAIT, LONGEST_WAIT, STATES, Breaker


def opened(now: float = 0.0, chance: float = 1.0) -> Breaker:
    """Return a breaker that has just opened."""
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker.begin(now)
        breaker.failure(now, chance)
    assert breaker.state == "open"
    return breaker


def probing(now: float = FIRST_WAIT) -> Breaker:
    """Return a breaker whose probe is on its way."""
    breaker = opened()
    breaker.begin(now)
    assert breaker.state == "half-open"
    return breaker


def test_a_new_breaker_is_closed() -> None:
    """A replica that nobody has tried may be tried."""
    breaker = Breaker()

    assert breaker.allows(0.0)
    assert repr(breaker) == "<Breaker closed failures=0>"


def test_the_third_failure_in_a_row_opens_it() -> None:
    """An engine that fails is left alone after three requests, as the table says."""
    breaker = Breaker()
    states = []
    for _ in range(3):
        breaker.failure(0.0, 0.5)
        states.append(breaker.state)

    assert states == ["closed", "closed", "open"]


def test_only_failures_in_a_row_open_it() -> None:
    """A success between failures counts them from zero again."""
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.failure(0.0, 0.5)
        breaker.success()

    assert repr(breaker) == "<Breaker closed failures=0>"
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failure(0.0, 0.5)
    assert breaker.allows(0.0)
    breaker.failure(0.0, 0.5)
    assert breaker.state == "open"
    assert not breaker.allows(0.0)


def test_chance_spreads_the_probes_over_the_last_quarter_of_the_wait() -> None:
    """Gateways that saw the same failure do not all probe at the same moment."""
    early, late = opened(chance=0.0), opened(chance=1.0)

    assert not early.allows(0.74 * FIRST_WAIT)
    assert early.allows(0.75 * FIRST_WAIT)
    assert not late.allows(0.99 * FIRST_WAIT)
    assert late.allows(FIRST_WAIT)


def test_one_probe_goes_out_at_a_time() -> None:
    """While the probe is on its way, nothing else may go."""
    breaker = opened()

    assert breaker.allows(FIRST_WAIT)
    breaker.begin(FIRST_WAIT)
    assert breaker.state == "half-open"
    assert not breaker.allows(FIRST_WAIT + 100)


def test_a_good_probe_closes_it() -> None:
    """The replica is back, and its earlier failures are forgotten."""
    breaker = probing()
    breaker.success()

    assert breaker.state == "closed"
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failure(5.0, 0.5)
    assert breaker.state == "closed"


def test_each_bad_probe_doubles_the_wait_up_to_the_longest() -> None:
    """A replica that stays down is asked ever more rarely, but at least every LONGEST_WAIT seconds."""
    breaker, now, waits = opened(), FIRST_WAIT, []
    for _ in range(8):
        breaker.begin(now)
        breaker.failure(now, 1.0)
        wait = next(step / 4 for step in range(1, 1000) if breaker.allows(now + step / 4))
        waits.append(wait)
        now += wait

    assert waits == [2.0, 4.0, 8.0, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]


def test_a_good_probe_resets_the_wait() -> None:
    """The next outage starts with the first wait again."""
    breaker = probing()
    breaker.failure(FIRST_WAIT, 1.0)
    breaker.begin(FIRST_WAIT + 2)
    breaker.success()
    for _ in range(FAILURES_TO_OPEN):
        breaker.failure(10.0, 1.0)

    assert breaker.allows(10.0 + FIRST_WAIT)


def test_a_probe_without_a_verdict_may_be_tried_again() -> None:
    """A client that left during the probe says nothing about the replica."""
    breaker = probing()
    breaker.abandon()

    assert breaker.state == "half-open"
    assert breaker.allows(FIRST_WAIT)


def test_late_answers_do_not_move_an_open_breaker() -> None:
    """Requests sent before it opened may still succeed or fail: neither closes it nor prolongs the wait."""
    breaker = opened()
    breaker.success()
    assert breaker.state == "open"
    breaker.failure(FIRST_WAIT / 2, 1.0)

    assert breaker.allows(FIRST_WAIT)


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "success", "failure", "abandon"]), st.floats(0, 3), st.floats(0, 1)),
        max_size=60,
    )
)
def test_a_recovered_replica_is_always_found(steps: list[tuple[str, float, float]]) -> None:
    """Whatever happened, LONGEST_WAIT later a request may go out, and its success closes the breaker."""
    breaker, now = Breaker(), 0.0
    for step, passed, chance in steps:
        now += passed
        if step == "begin" and breaker.allows(now):
            breaker.begin(now)
        elif step == "success":
            breaker.success()
        elif step == "failure":
            breaker.failure(now, chance)
        elif step == "abandon":
            breaker.abandon()
        assert breaker.state in STATES
    breaker.abandon()
    now += LONGEST_WAIT

    assert breaker.allows(now)
    breaker.begin(now)
    breaker.success()
    assert breaker.state == "closed"
