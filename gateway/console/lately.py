"""The last minutes of calls, added up in steps of a few seconds: what the operator's page draws. A sink; bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.record import Finished, Outcome

STEP_SECONDS: Final = 5
KEPT_STEPS: Final = 120  # ten minutes
NOW_SECONDS: Final = 300  # what "now" means where money is told
# How calls end through no fault of the client.
FAILED: Final[frozenset[Outcome]] = frozenset(
    {"unavailable", "upstream_failed", "upstream_timeout", "truncated", "stalled", "internal"}
)
POLICIES: Final = ("baseline", "speculative")


@dataclass(slots=True)
class Step:
    """What the calls that ended within one step came to; `at` is its Unix time."""

    at: int
    calls: int = 0
    failed: int = 0
    free: int = 0  # answers with tokens that cost nothing
    cost_usd: float = 0.0
    elsewhere: dict[str, float] = field(default_factory=lambda: dict.fromkeys(POLICIES, 0.0))
    tokens: dict[str, int] = field(default_factory=dict)  # written, by pool
    break_even: float | None = None
    threshold: float | None = None
    predicted: float = 0.0
    observed: float = 0.0
    speculated: int = 0  # calls behind the two sums

    def take(self, call: Finished) -> None:
        """Add one call."""
        self.calls += 1
        self.failed += call.outcome in FAILED
        cost, elsewhere = call.cost_usd, self.elsewhere
        self.cost_usd += cost
        for policy in POLICIES:
            elsewhere[policy] += call.counterfactual.get(policy, cost)
        if pool := call.pool:
            tokens = call.completion_tokens
            self.tokens[pool] = self.tokens.get(pool, 0) + tokens
            self.free += tokens > 0 and cost == 0.0
        if call.break_even:
            self.break_even, self.threshold = call.break_even, call.threshold
        if call.speculative and call.acceptance is not None and call.expected is not None and not call.biased:
            self.speculated += 1
            self.predicted += call.expected
            self.observed += call.acceptance

    def add(self, other: Step) -> None:
        """Add another process's step of the same time."""
        self.calls += other.calls
        self.failed += other.failed
        self.free += other.free
        self.cost_usd += other.cost_usd
        self.predicted += other.predicted
        self.observed += other.observed
        self.speculated += other.speculated
        for policy, dollars in other.elsewhere.items():
            self.elsewhere[policy] = self.elsewhere.get(policy, 0.0) + dollars
        for pool, tokens in other.tokens.items():
            self.tokens[pool] = self.tokens.get(pool, 0) + tokens
        if self.break_even is None:
            self.break_even, self.threshold = other.break_even, other.threshold


class Lately:
    """Steps of the last minutes, oldest first."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=KEPT_STEPS)

    def __call__(self, call: Finished) -> None:
        """Take a finished call; about a microsecond."""
        at = int(call.time + call.duration) // STEP_SECONDS * STEP_SECONDS
        last = self._steps[-1] if self._steps else None
        if last is None or at > last.at:
            last = Step(at)
            self._steps.append(last)
        last.take(call)  # one that ends a moment late belongs to the running step

    @property
    def steps(self) -> list[Step]:
        """What is kept, oldest first."""
        return list(self._steps)


def together(*several: Iterable[Step]) -> list[Step]:
    """Return the steps of several processes added up, oldest first; the given ones stay as they are."""
    sums: dict[int, Step] = {}
    for steps in several:
        for step in steps:
            sums.setdefault(step.at, Step(step.at)).add(step)
    return [sums[at] for at in sorted(sums)]


def now(steps: Sequence[Step], time: float) -> dict[str, Any]:
    """Return what the last minutes came to: calls, failures, tokens, dollars and dollars per million tokens."""
    steps = [step for step in steps if step.at >= time - NOW_SECONDS]
    cost = sum(step.cost_usd for step in steps)
    tokens = sum(sum(step.tokens.values()) for step in steps)
    # A gateway that has just begun is not idle for the minutes before it.
    seconds = min(NOW_SECONDS, max(STEP_SECONDS, time - steps[0].at)) if steps else NOW_SECONDS
    return {
        "seconds": seconds,
        "calls": sum(step.calls for step in steps),
        "failed": sum(step.failed for step in steps),
        "free": sum(step.free for step in steps),
        "tokens": tokens,
        "cost_usd": cost,
        "usd_per_hour": cost * 3600 / seconds,
        "usd_per_million": cost * 1e6 / tokens if tokens else None,
        "baseline_usd": sum(step.elsewhere["baseline"] for step in steps),
    }


def series(steps: Sequence[Step], time: float) -> dict[str, Any]:
    """Return the last ten minutes step by step, those without calls included and the running one not, for drawing."""
    known = {step.at: step for step in steps}
    last = (int(time) // STEP_SECONDS - 1) * STEP_SECONDS
    times = range(last - (KEPT_STEPS - 1) * STEP_SECONDS, last + STEP_SECONDS, STEP_SECONDS)
    shown = [known.get(at) or Step(at) for at in times]
    pools = sorted({pool for step in shown for pool in step.tokens})
    hourly = 3600 / STEP_SECONDS
    return {
        "step_seconds": STEP_SECONDS,
        "times": [step.at for step in shown],
        "usd_per_hour": [step.cost_usd * hourly for step in shown],
        **{f"{policy}_usd_per_hour": [step.elsewhere[policy] * hourly for step in shown] for policy in POLICIES},
        "tokens_per_second": {pool: [step.tokens.get(pool, 0) / STEP_SECONDS for step in shown] for pool in pools},
        "break_even": [step.break_even for step in shown],
        "threshold": [step.threshold for step in shown],
        "predicted": [step.predicted / step.speculated if step.speculated else None for step in shown],
        "observed": [step.observed / step.speculated if step.speculated else None for step in shown],
    }
