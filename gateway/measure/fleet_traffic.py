"""What happens to a simulated fleet: calls, in order of arrival, and changes of the world at given calls. Seeded, lazy.

`templated` is the ordinary mix: 80 % of the calls come from templates, each as likely as another, its rows drawn with
replacement; 20 % are drawn from all rows and have no template. `steady` draws from all rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log, pi, sin
from random import Random
from typing import Literal

from gateway.measure.fleet_rows import Row, templates
from gateway.measure.fleet_world import PoolSpec

Name = Literal["steady", "templated", "load-swing", "acceptance-drop", "new-tenant", "price-change", "half-pool"]
SCENARIOS: tuple[Name, ...] = Name.__args__  # type: ignore[attr-defined]

TEMPLATED_SHARE = 0.8
DROP = 0.7  # of m − 1 that is left when a worse draft is deployed
USED = 0.6  # of one pool's slots, if it served everything
USED_WHEN_HALVED = 0.9  # the same where a pool is about to lose half its replicas, so that it is missed
SWINGS = 4  # of the load during a run
SWING = 0.8  # relative
DEARER = 1.3  # price of speculative slots after the change
NEW_SHARE = 0.4  # of the calls that are the new tenant's


@dataclass(frozen=True, slots=True)
class Call:
    """One request to come: when, for whom, with what fingerprint ("" without template), and what it really is."""

    index: int
    time: float
    tenant: str
    template: str
    row: Row
    draft: float  # factor on m − 1: how good the draft is by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fleet's size and pace; the defaults are the study's deployment, four replicas of each kind.

    A baseline step takes 45 ms, a speculative one at window 7 `ratio` times as long (105 ms), and each drafted token costs
    the same. Four slots a replica are the study's batch. Every window in `windows` has a speculative pool of its own.
    """

    replicas: int = 4
    slots: int = 4
    base_step: float = 0.045
    ratio: float = 105.0 / 45.0
    base_growth: float = 0.0
    spec_growth: float = 0.0
    ttft_seconds: float = 0.1
    windows: tuple[int, ...] = (7,)
    drafter: str = "draft"
    price_per_hour: float = 4.0

    def spec_step(self, window: int) -> float:
        """Return the seconds of an unloaded speculative step."""
        return self.base_step * (1.0 + (self.ratio - 1.0) * window / 7.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name, a shape and a length; everything else follows from them and the seed."""

    name: Name
    shape: Shape
    requests: int
    seed: int

    @property
    def change_at(self) -> int:
        """The index of the first call after the change."""
        return self.requests // 2

    def pools(self) -> list[PoolSpec]:
        """Return the fleet: one baseline pool, and a speculative one for each window."""
        shape = self.shape
        baseline = PoolSpec(
            name="baseline",
            speculative=False,
            window=1,
            drafter=None,
            replicas=shape.replicas,
            slots=shape.slots,
            step_seconds=shape.base_step,
            growth=shape.base_growth,
            ttft_seconds=shape.ttft_seconds,
            price_per_hour=shape.price_per_hour,
        )
        drafter = "ngram" if shape.drafter == "ngram" else "draft_model"
        return [
            baseline,
            *(
                replace(
                    baseline,
                    name=f"speculative-{window}",
                    speculative=True,
                    window=window,
                    drafter=drafter,
                    step_seconds=shape.spec_step(window),
                    growth=shape.spec_growth,
                )
                for window in shape.windows
            ),
        ]


def shaped(name: Name, shape: Shape) -> Shape:
    """Return the shape that a scenario needs: under swinging load, steps grow, the speculative one faster."""
    if name != "load-swing":
        return shape
    # A verification step computes k + 1 tokens per request, so it meets the compute bound earlier; the growths reproduce a
    # speed-up that falls from 2.15 at one request to about 1.35 when the batch is full.
    return replace(shape, slots=4 * shape.slots, base_growth=0.01, spec_growth=0.05)


def calls(scenario: Scenario, rows: Sequence[Row]) -> Iterator[Call]:
    """Yield the calls of a scenario in order of arrival; the same every time."""
    chance = Random(scenario.seed)
    shape = scenario.shape
    mean_tokens = sum(row.tokens for row in rows) / len(rows)
    slots = shape.replicas * shape.slots
    full = shape.base_step * (1.0 + shape.base_growth * (shape.slots - 1))
    used = USED_WHEN_HALVED if scenario.name == "half-pool" else USED
    rate = used * slots / (shape.ttft_seconds + mean_tokens * full)
    source = _source(scenario, rows, chance)
    time = 0.0
    for index in range(scenario.requests):
        pace = rate
        if scenario.name == "load-swing":
            pace *= 1.0 + SWING * sin(2.0 * pi * SWINGS * index / scenario.requests)
        time -= log(1.0 - chance.random()) / pace
        tenant, template, row = next(source)
        draft = DROP if scenario.name == "acceptance-drop" and index >= scenario.change_at else 1.0
        yield Call(index, time, tenant, template, row, draft)


def _source(scenario: Scenario, rows: Sequence[Row], chance: Random) -> Iterator[tuple[str, str, Row]]:
    """Yield tenant, fingerprint and row of one call after another, for ever."""
    groups = [] if scenario.name == "steady" else list(templates(rows).items())
    newcomers = []
    if scenario.name == "new-tenant":
        groups, newcomers = groups[::2], groups[1::2]
    index = 0
    while True:
        tenant, mine = "first", groups
        if newcomers and index >= scenario.change_at and chance.random() < NEW_SHARE:
            tenant, mine = "second", newcomers
        if mine and chance.random() < TEMPLATED_SHARE:
            fingerprint, found = mine[int(chance.random() * len(mine))]
        else:
            fingerprint, found = "", rows  # type: ignore[assignment]
        yield tenant, fingerprint, found[int(chance.random() * len(found))]
        index += 1


def acceptance(call: Call, drafter: str, window: int) -> float:
    """Return the tokens per step that a draft achieves on a call; a worse one loses its share of m − 1."""
    return 1.0 + (call.row.acceptance[drafter, window] - 1.0) * call.draft
