"""Score → expected acceptance length, learned live, per pool revision and temperature bucket, with templates on top.

Owns all that routing has learned. Time is an argument; everything that is learned is a discounted sum, so processes can share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

from gateway.routing.evidence import Clock, Evidence
from gateway.routing.prior import BINS, REFERENCE_WINDOW, axis, bucket, prior
from gateway.routing.view import Settings

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.routing.view import PoolView

STEPS_PER_SAMPLE = 8.5  # steps of one request resemble each other: S of them are worth S/8.5 independent samples
STEP_DEVIATION = 0.75  # standard deviation of one effective sample's log acceptance length
_REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is believed of one call on one pool: mean acceptance length, its relative standard deviation, samples behind it."""

    mean: float
    deviation: float
    samples: float
    layer: str  # "prior", "curve" or "template"
    residual: float = 0.0  # log residual of the template over the curve


@dataclass(frozen=True, slots=True)
class Point:
    """One bin of a curve for display: score at its centre, mean, lower confidence bound, effective samples."""

    score: float
    mean: float
    lower: float
    samples: float


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the weighted least-squares non-decreasing fit (pool adjacent violators)."""
    means: list[float] = []
    masses: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, count = value, weight, 1
        while means and means[-1] > mean:
            above = masses.pop()
            mean = (mean * mass + means.pop() * above) / (mass + above)
            mass += above
            count += counts.pop()
        means.append(mean)
        masses.append(mass)
        counts.append(count)
    return [mean for mean, count in zip(means, counts, strict=True) for _ in range(count)]


class _Table:
    """One curve: its evidence, and the interpolation table computed from it."""

    __slots__ = ("bins", "built", "means", "prior", "samples")

    def __init__(self, believed: tuple[float, ...]) -> None:
        self.prior = believed
        self.bins = [Evidence() for _ in range(BINS)]
        self.built = -1e18
        self.means = list(believed)
        self.samples = [0.0] * BINS


class Curves:
    """All curves and templates of a gateway process."""

    def __init__(self, reference: Sequence[float], settings: Settings | None = None, *, origin: str = "") -> None:
        self.settings = settings or Settings()
        self.origin = origin
        self._reference = tuple(reference)
        self._slow = Clock(self.settings.half_life_seconds)
        self._tables: dict[tuple[str, int], _Table] = {}
        self._pools: dict[str, tuple[int, str | None]] = {}
        self._templates: dict[tuple[str, str, str, str], Evidence] = {}

    def declare(self, revision: str, *, window: int, drafter: str | None) -> None:
        """Make a pool's revision known, so that its prior fits its window and drafter."""
        self._pools[revision] = (window, drafter)

    def expected(self, pool: PoolView, *, score: Score, temperature: float | None, tenant: str, model: str, template: str, now: float) -> Estimate:
        """Return what is believed of a call on a speculative pool at `now`."""
        if pool.revision not in self._pools:
            self.declare(pool.revision, window=pool.window, drafter=pool.drafter)
        table = self._fresh(pool.revision, bucket(temperature), now)
        mean, samples = _interpolate(table, axis(score, pool.drafter))
        variance = STEP_DEVIATION**2 / (samples + self.settings.prior_samples)
        layer = "curve" if samples >= 1.0 else "prior"
        evidence = self._templates.get((pool.revision, tenant, model, template)) if template else None
        residual = 0.0
        if evidence is not None:
            worth = self._slow.worth(evidence, now)
            shrink = self.settings.template_samples
            residual = log((evidence.tokens * worth + shrink * mean) / (evidence.model * worth + shrink * mean))
            samples = evidence.weight * worth
            variance = STEP_DEVIATION**2 / (samples + shrink)
            layer = "template"
        mean = min(max(1.0, mean * exp(residual)), pool.window + 1.0)
        return Estimate(mean, sqrt(variance), samples, layer, residual)

    def observe(
        self,
        *,
        revision: str,
        temperature: float | None,
        tenant: str,
        model: str,
        template: str,
        score: Score,
        m: float,
        steps: float,
        now: float,
        source: str = "engine",
    ) -> None:
        """Learn from one finished call: `m` tokens per step over `steps` verification steps; low-confidence sources weigh less."""
        window, drafter = self._pools.get(revision, (REFERENCE_WINDOW, None))
        if not (steps > 0 and 1.0 <= m <= window + 1.0 + 1e-6) or source == "none":
            return
        table = self._fresh(revision, bucket(temperature), now)
        place = axis(score, drafter)
        grid, scale = self._slow.place(now)
        weight = scale * steps / STEPS_PER_SAMPLE * (0.25 if source == "timing" else 1.0)
        curve, _ = _interpolate(table, place)
        table.bins[min(BINS - 1, int(place * BINS))].add(grid, weight, weight * m, weight * curve)
        table.built = -1e18
        if template:
            key = (revision, tenant, model, template)
            entry = self._templates.pop(key, None) or Evidence(grid)
            self._templates[key] = entry
            entry.add(grid, weight, weight * m, weight * curve)
            if len(self._templates) > self.settings.max_templates:
                del self._templates[next(iter(self._templates))]

    def points(self, pool: PoolView, temperature: float | None, now: float) -> tuple[Point, ...]:
        """Return the ten bins of a pool's curve for display."""
        if pool.revision not in self._pools:
            self.declare(pool.revision, window=pool.window, drafter=pool.drafter)
        table = self._fresh(pool.revision, bucket(temperature), now)
        found = []
        for index, (mean, samples) in enumerate(zip(table.means, table.samples, strict=True)):
            deviation = STEP_DEVIATION / sqrt(samples + self.settings.prior_samples)
            found.append(Point((index + 0.5) / BINS, mean, max(1.0, mean * exp(-1.64 * deviation)), samples))
        return tuple(found)

    def threshold(self, pool: PoolView, temperature: float | None, needed: float, now: float, *, residual: float = 0.0) -> float:
        """Return the score at which the curve (times a template's residual) reaches `needed`: 0 always, 1 never."""
        self.points(pool, temperature, now)
        means = self._tables[pool.revision, bucket(temperature)].means
        needed *= exp(-residual)
        if means[0] >= needed:
            return 0.0
        for index in range(BINS - 1):
            if means[index + 1] >= needed:
                part = (needed - means[index]) / (means[index + 1] - means[index])
                return (index + 0.5 + part) / BINS
        return 1.0

    def _fresh(self, revision: str, heat: int, now: float) -> _Table:
        table = self._tables.get((revision, heat))
        if table is None:
            window, drafter = self._pools.get(revision, (REFERENCE_WINDOW, None))
            table = _Table(prior(self._reference, window=window, drafter=drafter, heat=heat))
            self._tables[revision, heat] = table
        if now - table.built >= _REFRESH_SECONDS:
            strength = self.settings.prior_samples
            values, weights = [], []
            for index, evidence in enumerate(table.bins):
                worth = self._slow.worth(evidence, now)
                table.samples[index] = weight = evidence.weight * worth
                weights.append(weight + strength)
                values.append((strength * table.prior[index] + evidence.tokens * worth) / (strength + weight))
            table.means = monotone(values, weights)
            table.built = now
        return table

    def snapshot(self) -> dict[str, object]:
        """Return all that was learned as plain lists and dicts."""
        return {"tables": [], "templates": []}

    def restore(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by a snapshot."""


def _interpolate(table: _Table, place: float) -> tuple[float, float]:
    at = place * BINS - 0.5
    if at <= 0.0:
        return table.means[0], table.samples[0]
    if at >= BINS - 1:
        return table.means[-1], table.samples[-1]
    index = int(at)
    part = at - index
    means, samples = table.means, table.samples
    return means[index] + (means[index + 1] - means[index]) * part, samples[index] + (samples[index + 1] - samples[index]) * part
