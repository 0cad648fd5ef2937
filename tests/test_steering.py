"""Steering: published thresholds, windows of facts, guards that hold and release pools."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from harness import config_for
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from classifier.scorer import Scorer
from gateway.control import Control
from gateway.learning import Learning
from gateway.metrics import Metrics
from gateway.pools import Pools
from gateway.record import Finished
from gateway.routing import REASONS, Curves
from gateway.routing.guards import WINDOWS
from gateway.routing.thresholds import Thresholds
from gateway.scrape import Scrape
from gateway.steering import Steering

CALL = Finished(
    request_id="r",
    time=1.0,
    endpoint="chat",
    tenant="tester",
    model="demo",
    stream=True,
    status=200,
    outcome="ok",
    pool="spec",
    revision="demo||7|",
    speculative=True,
    break_even=2.33,
    acceptance=1.2,
    steps=40.0,
    source="events",
)


class Wheel:
    """A steering with its parts, over pools that nothing stands behind."""

    def __init__(self, **settings: Any) -> None:
        self.config = config_for({"spec": ["http://127.0.0.1:9"], "base": ["http://127.0.0.1:10"]}, **settings)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, self.config, reasons=REASONS)
        self.pools = Pools(self.config, {})
        self.curves = Curves(Scorer.load().prior_curve)
        self.thresholds = Thresholds()
        self.now = 1000.0
        self.steering = Steering(
            config=lambda: self.config,
            pools=self.pools,
            curves=self.curves,
            thresholds=self.thresholds,
            scrape=Scrape(self.pools, Control(self.pools), clock=lambda: self.now),
            clock=lambda: self.now,
            window_seconds=30.0,
        )

    def window(self, *calls: Finished, count: int = 10) -> None:
        """Let a window pass in which these calls finished, so many times each."""
        for call in calls:
            for _ in range(count):
                self.steering(call)
        self.now += 30.0
        self.steering.tick(self.now, self.now)

    def sample(self, name: str, **labels: str) -> float | None:
        """Read a metric, as it is set when it is read."""
        self.steering.show(self.metrics)
        return self.registry.get_sample_value(name, labels)


BASELINE = replace(CALL, pool="base", speculative=False, acceptance=1.0)


def test_thresholds_are_published_and_shown() -> None:
    """A tick publishes break-even and threshold of each speculative pool, and the metrics say the same."""
    wheel = Wheel()
    wheel.steering.tick(wheel.now, wheel.now)
    found = wheel.thresholds["spec"]

    assert 2.0 < found.break_even < 2.7  # 105 ms against 45 ms a step
    assert 0.0 < found.threshold < 1.0
    for name, value in (("break_even_acceptance_length", found.break_even), ("threshold", found.threshold)):
        assert wheel.sample(f"draftlane_{name}", model="demo", pool="spec") == pytest.approx(value)


def test_a_pool_below_break_even_falls_back_to_the_prior_and_then_out(caplog: pytest.LogCaptureFixture) -> None:
    """Five windows below break-even make the prior decide, five more take the pool out; each is one line in the log."""
    wheel = Wheel()
    with caplog.at_level(logging.WARNING, "gateway.steering"):
        for _ in range(WINDOWS + 1):
            wheel.window(CALL, BASELINE)
        assert wheel.pools["spec"].view(wheel.now).belief == "prior"
        for _ in range(WINDOWS):
            wheel.window(CALL, BASELINE)
    view = wheel.pools["spec"].view(wheel.now)

    assert not view.available
    assert view.guard == "below_break_even"
    assert view.why_unavailable is not None
    assert "below break-even" in view.why_unavailable
    assert wheel.sample("draftlane_guard_active", guard="below_break_even", pool="spec") == 1.0
    assert len(caplog.messages) == 1  # the guard is the same; only what follows from it has changed
    assert "guard below_break_even" in caplog.messages[0]


def test_a_control_that_misreads_suspends_learning() -> None:
    """When the estimator does not read 1.00 on baseline, what it says of speculation is not learned."""
    wheel = Wheel()
    learning = Learning(wheel.pools, wheel.curves)
    for _ in range(3):
        wheel.window(replace(CALL, acceptance=4.0), replace(BASELINE, acceptance=1.3))
    view = wheel.pools["spec"].view(wheel.now)
    before = wheel.curves.points(view, 0.0, wheel.now)
    learning(replace(CALL, acceptance=7.0, scored=None))

    assert view.guard == "control"
    assert view.belief == "prior"
    assert not wheel.pools["spec"].verdict.learns
    assert wheel.curves.points(view, 0.0, wheel.now) == before


def test_good_windows_hold_nothing() -> None:
    """A pool above break-even with a control of 1.00 is free."""
    wheel = Wheel()
    for _ in range(2 * WINDOWS):
        wheel.window(replace(CALL, acceptance=4.0), BASELINE)

    assert wheel.pools["spec"].view(wheel.now).guard is None
    assert wheel.steering.guards.active() == {}


def test_biased_and_failed_calls_are_no_facts() -> None:
    """Only whole, unbiased observations by engine or events enter a window."""
    wheel = Wheel()
    for _ in range(3 * WINDOWS):
        wheel.window(replace(CALL, biased="parser"), replace(CALL, outcome="truncated"), replace(CALL, source="timing"))

    assert wheel.pools["spec"].view(wheel.now).guard is None


def test_a_dead_pool_is_guarded_and_released() -> None:
    """A pool without a live replica is out by its guard, and free again once one lives."""
    wheel = Wheel()
    replica = wheel.pools["spec"].replicas[0]
    replica.healthy = False
    wheel.window()
    dead = wheel.pools["spec"].verdict.guard
    replica.healthy = True
    wheel.window()

    assert dead == "replicas"
    assert wheel.pools["spec"].verdict.guard is None
    assert wheel.pools["spec"].view(wheel.now).available


@pytest.mark.parametrize("reason", ["explore", "header", "policy", "pool_down"])
def test_calls_that_were_not_chosen_to_win_accuse_nobody(reason: str) -> None:
    """A pool is not held because calls were forced onto it, or tried there to learn, and did badly as expected."""
    wheel = Wheel()
    for _ in range(3 * WINDOWS):
        wheel.window(replace(CALL, reason=reason), BASELINE)

    assert wheel.pools["spec"].view(wheel.now).belief == "learned"
    assert wheel.pools["spec"].view(wheel.now).available
