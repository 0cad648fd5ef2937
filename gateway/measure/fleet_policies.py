"""The policies that a fleet simulation compares. Each sees what a gateway sees, the oracle excepted, and names a pool.

`draftlane` and `static-prior` are the gateway's own routing code, with and without learning; `oracle` is the same decision
made in the knowledge of what the draft will achieve on this very call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from classifier.scorer import Score
from gateway.measure.fleet_traffic import Call
from gateway.routing import Ask, Curves, Estimate, Needs, PoolView, Settings, plan
from gateway.routing.thresholds import Thresholds

Name = Literal[
    "baseline",
    "speculative",
    "random",
    "keyword",
    "fixed-threshold",
    "acceptance-target",
    "static-prior",
    "draftlane",
    "oracle",
]
POLICIES: tuple[Name, ...] = Name.__args__  # type: ignore[attr-defined]

EPOCH = 1_800_000_000.0  # simulated seconds count from here, as Unix times do
KEYWORDS = re.compile(
    r"\b(json|csv|ya?ml|xml|sql|tables?|lists?|count|repeat|code|function|class|python|java|rename|rewrite|format|convert)\b"
)
FIXED_THRESHOLD = 0.5
TARGET_LENGTH = 3.0  # tokens per step that the acceptance target tries to hold on its speculative pool
TARGET_STEP = 0.01  # by which it moves its threshold after a call
TARGET_SHARE = 0.05  # of a call in its running mean


@dataclass(frozen=True, slots=True)
class Choice:
    """The pool's name, whether it was taken to learn, and the acceptance length foreseen there (0: none was)."""

    pool: str
    explored: bool = False
    expected: float = 0.0


class Policy(Protocol):
    """Chooses a pool for a call, and hears how calls ended."""

    def choose(self, call: Call, views: Sequence[PoolView], now: float) -> Choice:
        """Return where the call goes."""

    def learn(self, call: Call, view: PoolView, acceptance: float, steps: float, now: float) -> None:
        """Take in a finished call: tokens per step over `steps` steps on the pool of `view`."""


class Rule:
    """A policy that looks at the call alone."""

    def __init__(self, speculates: Callable[[Call], bool]) -> None:
        self._speculates = speculates

    def choose(self, call: Call, views: Sequence[PoolView], now: float) -> Choice:  # noqa: ARG002 - a rule needs no more
        """Return the first pool of the kind that the rule names."""
        return Choice(_first(views, "speculative" if self._speculates(call) else "baseline"))

    def learn(self, call: Call, view: PoolView, acceptance: float, steps: float, now: float) -> None:
        """Learn nothing."""


class AcceptanceTarget:
    """Speculates above a threshold that it moves so that the speculative pool accepts as much as it should."""

    def __init__(self) -> None:
        self.threshold = FIXED_THRESHOLD
        self._mean = TARGET_LENGTH

    def choose(self, call: Call, views: Sequence[PoolView], now: float) -> Choice:  # noqa: ARG002 - load is not its concern
        """Return the pool of the kind that the score stands for."""
        return Choice(_first(views, "speculative" if call.row.score.value >= self.threshold else "baseline"))

    def learn(self, call: Call, view: PoolView, acceptance: float, steps: float, now: float) -> None:  # noqa: ARG002
        """Move the threshold against the error of the acceptance length."""
        if view.speculative:
            self._mean += TARGET_SHARE * (acceptance - self._mean)
            step = TARGET_STEP if self._mean < TARGET_LENGTH else -TARGET_STEP
            self.threshold = min(0.95, max(0.0, self.threshold + step))


class Draftlane:
    """The gateway's routing."""

    def __init__(
        self, curves: Curves, chance: Random, *, cost_weight: float, learns: Literal["yes", "no"] = "yes"
    ) -> None:
        self.curves = curves
        self.thresholds = Thresholds()
        self._chance = chance.random
        self._cost_weight = cost_weight
        self._learns = learns == "yes"
        self._refreshed = float("-inf")
        self.history: list[tuple[float, float]] = []  # (time, published threshold)

    def choose(self, call: Call, views: Sequence[PoolView], now: float) -> Choice:
        """Ask `plan`."""
        now += EPOCH
        if now - self._refreshed >= 1.0:
            self.thresholds.refresh(views, self.curves, now=now)
            self._refreshed = now
            shown = next(view.name for view in views if view.speculative)
            self.history.append((now - EPOCH, self.thresholds[shown].threshold))
        found = plan(
            asked(call, call.row.score, cost_weight=self._cost_weight, explore=self._learns),
            views,
            self.curves,
            now=now,
            chance=self._chance,
            published=self.thresholds,
        )
        taken = next(option for option in found.options if option.pool == found.pools[0])
        return Choice(taken.pool, found.explored, taken.acceptance_length)

    def learn(self, call: Call, view: PoolView, acceptance: float, steps: float, now: float) -> None:
        """Teach the curves what a gateway would see of the call."""
        if not self._learns:
            return
        now += EPOCH
        self.curves.saw(tenant=call.tenant, model="model", template=call.template, now=now)
        if view.speculative:
            self.curves.observe(
                revision=view.revision,
                temperature=0.0,
                tenant=call.tenant,
                model="model",
                template=call.template,
                score=call.row.score,
                m=acceptance,
                steps=steps,
                now=now,
                source="engine",
            )


class Oracle:
    """The gateway's decision with the truth in place of the curve."""

    def __init__(self, truth: Callable[[Call, PoolView], float], *, cost_weight: float) -> None:
        self._knowing = Knowing(truth)
        self._cost_weight = cost_weight

    def choose(self, call: Call, views: Sequence[PoolView], now: float) -> Choice:
        """Ask `plan`, knowing how long the answer gets and what the draft achieves."""
        self._knowing.call = call
        score = Score(call.row.score.value, 1.0, 0.0, 1.0, float(call.row.tokens))
        ask = asked(call, score, cost_weight=self._cost_weight, explore=False)
        return Choice(plan(ask, views, self._knowing, now=now, chance=_never).pools[0])  # type: ignore[arg-type]

    def learn(self, call: Call, view: PoolView, acceptance: float, steps: float, now: float) -> None:
        """Learn nothing: all is known."""


class Knowing:
    """What `plan` asks of curves, answered with the truth about one call."""

    def __init__(self, truth: Callable[[Call, PoolView], float]) -> None:
        self.settings = Settings()
        self.call: Call | None = None
        self._truth = truth

    def expected(self, pool: PoolView, **_: object) -> Estimate:
        """Return the truth without doubt."""
        assert self.call is not None
        return Estimate(self._truth(self.call, pool), 0.0, 1.0, 0.0, 0.0, "prior")

    def threshold(self, *_: object, **__: object) -> float:
        """Return nothing of use: the oracle knows no scores."""
        return 0.0

    def of(self, pool: PoolView) -> Knowing:  # noqa: ARG002 - one level for all pools
        """Return itself as the curve of a pool."""
        return self

    def typical(self, now: float) -> float:  # noqa: ARG002 - it does not change
        """Return what an ordinary call in a speculative queue achieves."""
        return 3.0


def asked(call: Call, score: Score, *, cost_weight: float, explore: bool) -> Ask:
    """Return a call as the question that routing answers."""
    return Ask(
        model="model",
        tenant=call.tenant,
        policy="auto",
        route=None,
        cost_weight=cost_weight,
        explore=explore,
        needs=_NEEDS,
        score=score,
        template=call.template,
    )


def build(
    name: Name,
    *,
    reference: Sequence[float],
    seed: int,
    cost_weight: float,
    truth: Callable[[Call, PoolView], float],
) -> Policy:
    """Return a policy as it is before the first call; `reference` is the prior curve, `truth` what only the oracle sees."""
    chance = Random(seed + 1)
    policies: dict[Name, Callable[[], Policy]] = {
        "baseline": lambda: Rule(lambda _: False),
        "speculative": lambda: Rule(lambda _: True),
        "random": lambda: Rule(lambda _: chance.random() < 0.5),
        "keyword": lambda: Rule(lambda call: KEYWORDS.search(call.row.words) is not None),
        "fixed-threshold": lambda: Rule(lambda call: call.row.score.value >= FIXED_THRESHOLD),
        "acceptance-target": AcceptanceTarget,
        "static-prior": lambda: Draftlane(Curves(reference), chance, cost_weight=cost_weight, learns="no"),
        "draftlane": lambda: Draftlane(Curves(reference), chance, cost_weight=cost_weight),
        "oracle": lambda: Oracle(truth, cost_weight=cost_weight),
    }
    return policies[name]()


_NEEDS = Needs(frozenset(), 0, None, 0.0)


def _first(views: Sequence[PoolView], kind: Literal["speculative", "baseline"]) -> str:
    return next(view.name for view in views if view.speculative == (kind == "speculative"))


def _never() -> float:
    return 1.0 - 2**-53
