"""All that routing has learned: the curves of all pool revisions, and the templates. The one mutable thing in this package.

Nothing here reads a clock or draws chance. `observe` is how a call teaches; `expected` is what a decision asks; `deltas` and
`merge` are how several processes learn together (see `sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import TYPE_CHECKING

from gateway.routing import sharing
from gateway.routing.curve import LEVEL_DEVIATION, Curve, Point, corrected, lower_bound
from gateway.routing.economics import NEVER
from gateway.routing.evidence import Clock, Sums, lesson
from gateway.routing.prior import BINS, BUCKETS, axis, bucket
from gateway.routing.templates import Templates
from gateway.routing.view import Settings

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.routing.view import PoolView

Layer = str  # "prior", "curve" or "template"

TIMING_TRUST = 0.25  # timing knows the step time only roughly: a quarter of a sample
_TRUST = {"engine": 1.0, "events": 1.0, "timing": TIMING_TRUST}
AHEAD_SECONDS = 300.0  # clocks of processes may differ by this much; what comes from further ahead is not believed


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is believed of one call on one pool.

    `mean` is tokens per step, `variance` that of the logarithm of the mean (not of single calls), `factor` by what the
    mean exceeds the curve there, `samples` the effective samples behind it, `traffic` how many such calls came lately,
    `templated` whether the call has a template.
    """

    mean: float
    variance: float
    factor: float
    samples: float
    traffic: float
    layer: Layer
    templated: bool = False

    @property
    def deviation(self) -> float:
        """The relative standard deviation of the mean."""
        return sqrt(self.variance)

    @property
    def lower(self) -> float:
        """The lower confidence bound of the mean."""
        return lower_bound(self.mean, self.variance)


class Curves:
    """The learned state of one gateway process.

    Args:
        reference: the artefact's prior curve, ten acceptance lengths of draft models at window 7.
        settings: the dials; a later assignment to `settings` keeps what was learned unless a half-life changes.
        artefact: version of the artefact; what was learned on another one's scores is not merged.
    """

    def __init__(self, reference: Sequence[float], settings: Settings | None = None, *, artefact: str = "") -> None:
        if len(reference) != BINS:
            raise ValueError(f"a prior curve has {BINS} values, not {len(reference)}")
        self._reference = tuple(reference)
        self._names = {name: f"{name}:{artefact}" if artefact else name for name in ("bins", "drift", "templates")}
        self._settings = settings or Settings()
        self._begin()

    def __repr__(self) -> str:
        return f"<Curves {len(self._curves)} revisions, {len(self._templates)} templates, {len(self._outbox)} untold>"

    def _begin(self) -> None:
        dials = self._settings
        self._slow = Clock(dials.half_life_seconds)
        self._fast = Clock(dials.fast_half_life_seconds)
        self._curves: dict[str, Curve] = {}
        self._templates = Templates(
            limit=dials.max_templates, slow=self._slow, fast=self._fast, curve_samples=dials.template_samples
        )
        self._outbox = sharing.Outbox()

    @property
    def settings(self) -> Settings:
        """The dials in force."""
        return self._settings

    @settings.setter
    def settings(self, dials: Settings) -> None:
        before, self._settings = self._settings, dials
        if before != dials:
            known = {revision: (curve.window, curve.drafter) for revision, curve in self._curves.items()}
            untold, learned = self._outbox, self.snapshot()
            self._begin()
            for revision, (window, drafter) in known.items():
                self.declare(revision, window=window, drafter=drafter)
            self.merge(learned, now=float("inf"))
            self._outbox = untold

    def declare(self, revision: str, *, window: int, drafter: str | None) -> Curve:
        """Return the curve of a pool's revision, begun from the prior that fits its window and drafter if it is new."""
        curve = self._curves.get(revision)
        if curve is None:
            curve = self._curves[revision] = Curve(
                self._reference,
                window=window,
                drafter=drafter,
                slow=self._slow,
                fast=self._fast,
                n0=self._settings.prior_samples,
            )
        return curve

    def of(self, pool: PoolView) -> Curve:
        """Return the curve of a speculative pool."""
        return self._curves.get(pool.revision) or self.declare(pool.revision, window=pool.window, drafter=pool.drafter)

    def expected(
        self,
        pool: PoolView,
        *,
        score: Score,
        temperature: float | None,
        tenant: str,
        model: str,
        template: str,
        now: float,
    ) -> Estimate:
        """Return what is believed at `now` of a call on a speculative pool."""
        curve = self.of(pool)
        place = axis(score, pool.drafter)
        table = curve.table(bucket(temperature), now)
        if pool.belief == "prior":
            return Estimate(table.believed(place), LEVEL_DEVIATION**2, 1.0, 0.0, 0.0, "prior")
        mean, variance, samples = table.at(place)
        key = (tenant, model, template)
        residual = self._templates.residual(key, pool.revision, mean, now, level_variance=curve.unknown)
        drift = curve.drift_factor(now) if residual.drift is None else residual.drift
        expected = corrected(max(1.0, mean * exp(residual.value)), drift, curve.ceiling)
        layer = "curve" if samples >= 1.0 else "prior"
        if template:
            variance = residual.variance
            if residual.calls > 0.0:
                layer, samples = "template", residual.samples
        return Estimate(expected, variance, expected / mean, samples, self._templates.traffic(key, now), layer, bool(template))

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
        """Learn from one finished call on a speculative pool: `m` tokens per step over `steps` verification steps.

        What cannot be (more than the window allows, no steps, a revision that nothing was ever planned for) is ignored;
        low-confidence sources count less.
        """
        curve, trust = self._curves.get(revision), _TRUST.get(source, 0.0)
        if curve is None or trust == 0.0 or not (steps > 0.0 and 1.0 <= m <= curve.ceiling + 1e-6):
            return
        heat, place = bucket(temperature), axis(score, curve.drafter)
        mean = curve.table(heat, now).at(place)[0]
        key = (tenant, model, template)
        residual = self._templates.residual(key, revision, mean, now, level_variance=curve.unknown)
        drift = curve.drift_factor(now)
        unadapted = max(1.0, mean * exp(residual.value))
        sums = lesson(m, steps, corrected(mean, drift, curve.ceiling), trust=trust)
        index = min(BINS - 1, int(place * BINS))
        curve.tables[heat].seen[index] = now
        self._tell_curve(curve, revision, heat, index, sums, unadapted, now)
        factor = corrected(unadapted, drift, curve.ceiling) / unadapted
        entry, fresh = self._templates.learn(
            self._templates.touch(key), revision, now, sums, unadapted=unadapted, factor=factor
        )
        grid, scale = self._slow.place(now)
        self._outbox.add(
            ("templates", *key, revision, entry.generation, grid * self._slow.half_life), scaled(fresh or sums, scale)
        )

    def saw(self, *, tenant: str, model: str, template: str, now: float) -> None:
        """Count a finished call of a template, whichever pool served it: how much traffic makes learning worth its price."""
        grid, scale = self._slow.place(now)
        self._templates.touch((tenant, model, template)).traffic.add(grid, (0.0, 0.0, 0.0, scale))

    def _tell_curve(
        self, curve: Curve, revision: str, heat: int, index: int, sums: Sums, unadapted: float, now: float
    ) -> None:
        about = (revision, curve.window, curve.drafter)
        grid, scale = self._slow.place(now)
        slow = scaled(sums, scale)
        curve.learn(heat, index, grid, slow)
        self._outbox.add(("bins", *about, heat, index, grid * self._slow.half_life), slow)
        grid, scale = self._fast.place(now)
        weight, tokens, _, calls = sums
        fast = scaled((weight, tokens, weight * unadapted, calls), scale)
        curve.learn_drift(grid, fast)
        self._outbox.add(("drift", *about, grid * self._fast.half_life), fast)

    def points(self, pool: PoolView, temperature: float | None, now: float) -> tuple[Point, ...]:
        """Return the ten bins of a pool's curve, for people and dashboards; drift included."""
        curve = self.of(pool)
        table = curve.table(bucket(temperature), now)
        drift = curve.drift_factor(now)
        found = []
        for index in range(BINS):
            mean = corrected(table.means[index], drift, curve.ceiling)
            lower = lower_bound(mean, table.variances[index])
            found.append(Point((index + 0.5) / BINS, mean, lower, table.samples[index]))
        return tuple(found)

    def threshold(
        self, pool: PoolView, temperature: float | None, needed: float, now: float, *, factor: float | None = None
    ) -> float:
        """Return the score at which the curve times `factor` reaches `needed`: 0 is always, 1 is never.

        Without a factor it is the curve as it drifts, for a call of no template.
        """
        curve = self.of(pool)
        table = curve.table(bucket(temperature), now)
        means = table.prior if pool.belief == "prior" else table.means
        if factor is None:
            needed = corrected(needed, 1.0 / curve.drift_factor(now), NEVER)
        else:
            needed /= factor
        return crossing(means, needed)

    def deltas(self) -> dict[str, dict[str, list[float]]]:
        """Return what this process has learned since the last call, for others to merge; it is told once."""
        return self._named(self._outbox.take())

    def snapshot(self) -> dict[str, dict[str, list[float]]]:
        """Return all that is known, in the form of deltas that add up to it."""
        found: dict[tuple[object, ...], Sums] = {}
        slow, fast = self._slow.half_life, self._fast.half_life
        for revision, curve in self._curves.items():
            about = (revision, curve.window, curve.drafter)
            found["drift", *about, curve.drift.grid * fast] = curve.drift.sums
            for heat, table in enumerate(curve.tables):
                for index, evidence in enumerate(table.bins):
                    found["bins", *about, heat, index, evidence.grid * slow] = evidence.sums
        for key, template in self._templates.items():
            for revision, entry in template.by_revision.items():
                found["templates", *key, revision, entry.generation, entry.slow.grid * slow] = entry.slow.sums
        return self._named(sharing.told({key: sums for key, sums in found.items() if sums[0] > 0.0}))

    def restore(self, state: sharing.Deltas, *, now: float) -> None:
        """Forget everything, then know what a snapshot knew."""
        self._begin()
        self.merge(state, now=now)

    def merge(self, deltas: sharing.Deltas, *, now: float) -> None:
        """Add what others have learned; what is malformed or from a far future is left out."""
        latest = now + AHEAD_SECONDS
        for key, at, sums in sharing.heard(deltas, self._names["bins"], 5):
            match key:
                case [str(revision), int(window), str() | None as drafter, int(heat), int(index)] if (
                    at <= latest and 0 <= heat < len(BUCKETS) and 0 <= index < BINS
                ):
                    curve = self.declare(revision, window=window, drafter=drafter)
                    curve.learn(heat, index, *self._slow.convert(at, sums))
                    seen = curve.tables[heat].seen
                    seen[index] = max(seen[index], at)
        for key, at, sums in sharing.heard(deltas, self._names["drift"], 3):
            match key:
                case [str(revision), int(window), str() | None as drafter] if at <= latest:
                    curve = self.declare(revision, window=window, drafter=drafter)
                    curve.learn_drift(*self._fast.convert(at, sums))
        for key, at, sums in sharing.heard(deltas, self._names["templates"], 5):
            match key:
                case [str(tenant), str(model), str(template), str(revision), int(generation)] if at <= latest:
                    grid, face = self._slow.convert(at, sums)
                    self._templates.merge((tenant, model, template), revision, generation, grid, face, at)

    def _named(self, told: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
        return {self._names[namespace]: sums for namespace, sums in told.items()}


def scaled(sums: Sums, scale: float) -> Sums:
    """Return sums times a factor."""
    weight, tokens, model, calls = sums
    return (scale * weight, scale * tokens, scale * model, scale * calls)


def crossing(means: Sequence[float], needed: float) -> float:
    """Return the score at which a non-decreasing curve of bin centres reaches `needed`: 0 is always, 1 is never."""
    if means[0] >= needed:
        return 0.0
    for index in range(BINS - 1):
        low, high = means[index], means[index + 1]
        if high >= needed:
            return (index + 0.5 + (needed - low) / (high - low)) / BINS
    return 1.0
