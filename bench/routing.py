"""Time the routing decision on the CPU: one JSON line per step, microseconds, median and 99th percentile over single calls.

Calls are of a thousand templates with scores of their own, and between any two of them a call finishes and teaches, so that
every decision meets curves that have just changed. The bar is a median of 60 µs for the decision (constraints, curve,
economics, plan) with two pools.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from classifier.scorer import Score
from gateway.routing import FEATURES, Ask, Curves, Needs, PoolView, Thresholds, plan

NOW: Final = 1_800_000_000.0
REFERENCE: Final = (1.8, 2.1, 2.4, 2.6, 2.8, 2.9, 3.0, 3.2, 3.5, 5.2)
TEMPLATES: Final = 1000
BAR_US: Final = 60.0

BASELINE: Final = PoolView(
    name="baseline",
    speculative=False,
    window=1,
    drafter=None,
    revision="baseline-1",
    supports=frozenset(FEATURES),
    max_model_len=32_768,
    slots=16,
    running=6,
    queued=0,
    live_replicas=4,
    step_seconds=0.047,
    step_growth=0.02,
    ttft_seconds=0.1,
    price_per_slot_second=0.0006,
)
SPECULATIVE: Final = replace(
    BASELINE,
    name="speculative",
    speculative=True,
    window=7,
    drafter="draft_model",
    revision="speculative-1",
    supports=frozenset(FEATURES) - {"min_p", "logit_bias"},
    step_seconds=0.112,
)
SHORT: Final = replace(SPECULATIVE, name="short", window=3, revision="short-1", step_seconds=0.075)
FAR: Final = replace(BASELINE, name="far", revision="far-1", price_per_slot_second=0.0004, ttft_seconds=0.4)


class Stand:
    """Curves that have learned for an hour, and an endless queue of calls."""

    def __init__(self, pools: Sequence[PoolView]) -> None:
        self.pools = pools
        self.chance = Random(1)
        self.curves = Curves(REFERENCE)
        self.thresholds = Thresholds()
        self.now = NOW
        for pool in pools:
            if pool.speculative:
                self.curves.of(pool)
        self.asks = [self._ask(index) for index in range(TEMPLATES)]
        for _ in range(5 * TEMPLATES):
            self.learn()
        self.thresholds.refresh(pools, self.curves, now=self.now)
        self.curves.deltas()

    def _ask(self, index: int) -> Ask:
        value = self.chance.random()
        return Ask(
            model="demo",
            tenant=f"tenant-{index % 10}",
            policy="auto",
            route=None,
            cost_weight=0.5,
            explore=True,
            needs=Needs(frozenset(), 200, 400, 0.0),
            score=Score(value, 1.5 + 2.0 * value, 0.25, 1.2, 220.0),
            template=f"{index:016x}",
        )

    def next_ask(self) -> Ask:
        """A call of some template."""
        return self.asks[int(self.chance.random() * TEMPLATES)]

    def learn(self) -> None:
        """Let a call finish on every speculative pool."""
        self.now += 0.7
        ask = self.next_ask()
        for pool in self.pools:
            if pool.speculative:
                self.observe(ask, pool)

    def observe(self, ask: Ask, pool: PoolView) -> None:
        """Let one call finish."""
        self.curves.observe(
            revision=pool.revision,
            temperature=0.0,
            tenant=ask.tenant,
            model=ask.model,
            template=ask.template,
            score=ask.score,
            m=1.0 + self.chance.random() * min(3.0, pool.window),
            steps=80.0,
            now=self.now,
            source="events",
        )

    def decide(self, ask: Ask) -> None:
        """Plan one call."""
        plan(ask, self.pools, self.curves, now=self.now, chance=self.chance.random, published=self.thresholds)


def timed(step: Callable[[], object], between: Callable[[], object], times: int) -> tuple[float, float]:
    """Return median and 99th percentile of the step's CPU time in microseconds, `between` done untimed before each."""
    spent = []
    for _ in range(times):
        between()
        start = time.thread_time_ns()
        step()
        spent.append((time.thread_time_ns() - start) / 1000.0)
    spent.sort()
    return spent[len(spent) // 2], spent[int(0.99 * len(spent))]


def measure(times: int) -> dict[str, tuple[float, float]]:
    """Return the figures of every step by name."""
    two = Stand([BASELINE, SPECULATIVE])
    four = Stand([BASELINE, SPECULATIVE, SHORT, FAR])
    other = Curves(REFERENCE)
    other.of(SPECULATIVE)

    def exchange() -> None:
        other.merge(two.curves.deltas(), now=two.now)

    def hundred_lessons() -> None:
        for _ in range(100):
            two.learn()

    return {
        "decide, two pools": timed(lambda: two.decide(two.next_ask()), two.learn, times),
        "decide, two pools, nothing new": timed(lambda: two.decide(two.next_ask()), _nothing, times),
        "decide, four pools": timed(lambda: four.decide(four.next_ask()), four.learn, times),
        "learn": timed(lambda: two.observe(two.next_ask(), SPECULATIVE), _nothing, times),
        "refresh thresholds": timed(
            lambda: two.thresholds.refresh(two.pools, two.curves, now=two.now), two.learn, times // 10
        ),
        "tell and merge 100 lessons": timed(exchange, hundred_lessons, max(10, times // 200)),
    }


def _nothing() -> None:
    """Do nothing between two steps."""


def main() -> int:
    """Time every step and print it; returns 1 if the decision misses its bar."""
    parser = argparse.ArgumentParser(prog="bench.routing", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=20_000, help="calls per step (default 20000)")
    found = measure(parser.parse_args().times)
    for name, (median, high) in found.items():
        print(json.dumps({"step": name, "median_us": round(median, 1), "p99_us": round(high, 1)}))
    return 0 if found["decide, two pools"][0] <= BAR_US else 1


if __name__ == "__main__":
    sys.exit(main())
