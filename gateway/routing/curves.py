"""All that routing has learned: the curves of all pool revisions, and the templates. The one mutable thing in this package.

Nothing here reads a clock or draws chance. `observe` is how a call teaches; `expected` is what a decision asks; `deltas` and
`merge` are how several processes learn together (see `sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.routing import sharing
from gateway.routing.curve import (
    BIN_DEVIATION,
    LEVEL_DEVIATION,
    Curve,
    Point,
    blended,
    corrected,
    crossing,
    lower_bound,
    pair,
    square,
)
from gateway.routing.economics import NEVER
from gateway.routing.evidence import Clock, Sums, lesson, scaled
from gateway.routing.prior import BINS, axis, bucket
from gateway.routing.templates import Key, Residual, Templates
from gateway.routing.view import Settings

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.routing.view import PoolView

Layer = Literal["prior", "curve", "template"]

MAX_REVISIONS = 64  # curves kept; revisions long gone come back with others' snapshots
TIMING_TRUST = 0.25  # timing knows the step time only roughly: a quarter of a sample
REPEATS = 1.5  # calls of a template that tell other templates as much as all its calls ever will: 0.15² / 0.125²
FEWEST_CALLS = 2.0  # of a template, before its residual says whether residuals come true
_TRUST = {"engine": 1.0, "events": 1.0, "timing": TIMING_TRUST}
AHEAD_SECONDS = 300.0  # clocks of processes may differ by this much; what comes from further ahead is not believed


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """What is believed of one call on one pool.

    `mean` is tokens per step, `variance` that of the logarithm of the mean (not of single calls), `factor` by what the
    mean exceeds the curve there, `samples` the effective samples behind it, `traffic` how many such calls came lately,
    `scatter` is the variance of a long call's log length about its mean.
    """

    mean: float
    variance: float
    factor: float
    samples: float
    traffic: float
    layer: Layer
    scatter: float = 0.0

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
        settings: the dials; a later assignment to `settings` keeps what was learned.
        artefact: version of the artefact; what was learned on another one's scores is not merged.
    """

    __slots__ = ("_curves", "_fast", "_names", "_outbox", "_reference", "_settings", "_slow", "_templates")

    def __init__(self, reference: Sequence[float], settings: Settings | None = None, *, artefact: str = "") -> None:
        if len(reference) != BINS:
            raise ValueError(f"a prior curve has {BINS} values, not {len(reference)}")
        self._reference = tuple(reference)
        self._names = {name: f"{name}:{artefact}" if artefact else name for name in sharing.NAMESPACES}
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
        if before.learning != dials.learning:
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
            if len(self._curves) >= MAX_REVISIONS:
                del self._curves[next(iter(self._curves))]
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
        residual = self._templates.residual(key, pool.revision, mean, now, curve=curve)
        drift = blended(curve.drift_factor(now), residual.drift)
        expected = corrected(max(1.0, mean * exp(residual.value)), drift, curve.ceiling)
        layer: Layer = "curve" if samples >= 1.0 else "prior"
        if template:
            variance = residual.variance
            if residual.calls > 0.0:
                layer, samples = "template", residual.samples
        traffic = self._templates.traffic(key, now)
        scatter = curve.scatter if template else curve.scatter + BIN_DEVIATION**2
        return Estimate(expected, variance, expected / mean, samples, traffic, layer, scatter)

    def observe(  # noqa: PLR0913 - the facts of one call, each by its name
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
        residual = self._templates.residual(key, revision, mean, now, curve=curve)
        drift = curve.drift_factor(now)
        unadapted = max(1.0, mean * exp(residual.value))
        drifted = corrected(mean, drift, curve.ceiling)
        sums = lesson(m, steps, drifted, trust=trust)
        damping = (REPEATS / (REPEATS + residual.calls)) ** 2 if template else 1.0
        if residual.calls >= FEWEST_CALLS:
            surplus = log(m / drifted)
            error = log(m / corrected(unadapted, drift, curve.ceiling))
            self._tell_fits(curve, revision, residual, sums[3], now, surplus=surplus, error=error, damping=damping)
        self._tell_curve(curve, revision, heat, place, scaled(sums, damping), now)
        self._tell_drift(curve, revision, sums, unadapted, now)
        factor = corrected(unadapted, drift, curve.ceiling) / unadapted
        self._tell_template(key, revision, sums, now, place=log(mean), unadapted=unadapted, factor=factor)

    def saw(self, *, tenant: str, model: str, template: str, now: float) -> None:
        """Count a finished call of a template, whichever pool served it: how much traffic makes learning worth its price."""
        grid, scale = self._slow.place(now)
        self._templates.touch((tenant, model, template)).traffic.add(grid, (0.0, 0.0, 0.0, scale))

    def _tell_curve(self, curve: Curve, revision: str, heat: int, place: float, sums: Sums, now: float) -> None:
        index = min(BINS - 1, int(place * BINS))
        curve.tables[heat].seen[index] = now
        grid, scale = self._slow.place(now)
        slow = scaled(sums, scale)
        curve.learn(heat, index, grid, slow)
        self._outbox.add(
            ("bins", revision, curve.window, curve.drafter, heat, index, grid * self._slow.half_life), slow
        )

    def _tell_drift(self, curve: Curve, revision: str, sums: Sums, unadapted: float, now: float) -> None:
        grid, scale = self._fast.place(now)
        weight, tokens, _, calls = sums
        fast = scaled((weight, tokens, weight * unadapted, calls), scale)
        curve.learn_drift(grid, fast)
        self._outbox.add(("drift", revision, curve.window, curve.drafter, grid * self._fast.half_life), fast)

    def _tell_fits(
        self,
        curve: Curve,
        revision: str,
        residual: Residual,
        calls: float,
        now: float,
        *,
        surplus: float,
        error: float,
        damping: float,
    ) -> None:
        """Learn from `surplus`, log of what came over what curve and drift expected, and `error`, over what all expected."""
        rest = surplus - curve.trust * residual.raw + residual.off
        lessons = {
            "trust": pair(residual.raw, surplus, calls),
            "slope": pair(residual.off, rest, calls),
            "scatter": square(
                error * sqrt(calls), 1.0, calls
            ),  # a short call scatters more, and counts by as much less
            "stray": square(residual.raw, damping, calls),
        }
        grid, scale = self._slow.place(now)
        for name, sums in lessons.items():
            fitted = scaled(sums, scale)
            curve.learn_fit(name, grid, fitted)
            key = ("fits", revision, curve.window, curve.drafter, name, grid * self._slow.half_life)
            self._outbox.add(key, fitted)

    def _tell_template(
        self, key: Key, revision: str, sums: Sums, now: float, *, place: float, unadapted: float, factor: float
    ) -> None:
        entry, fresh = self._templates.learn(key, revision, now, sums, place=place, unadapted=unadapted, factor=factor)
        grid, scale = self._slow.place(now)
        at = grid * self._slow.half_life
        self._outbox.add(("templates", *key, revision, entry.generation, at), scaled(fresh or sums, scale))

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
        return self._named(sharing.everything(self._curves, self._templates, slow=self._slow, fast=self._fast))

    def restore(self, state: sharing.Deltas, *, now: float) -> None:
        """Forget everything, then know what a snapshot knew."""
        self._begin()
        self.merge(state, now=now)

    def merge(self, deltas: sharing.Deltas, *, now: float) -> None:
        """Add what others have learned; what is malformed, or from a future that no clock can mean, is left out."""
        mine = {plain: deltas.get(name, {}) for plain, name in self._names.items()}
        for about, heat, index, at, sums in sharing.heard_bins(mine, latest=now + AHEAD_SECONDS):
            curve = self.declare(about[0], window=about[1], drafter=about[2])
            curve.learn(heat, index, *self._slow.convert(at, sums))
            seen = curve.tables[heat].seen
            seen[index] = max(seen[index], at)
        for about, at, sums in sharing.heard_drift(mine, latest=now + AHEAD_SECONDS):
            curve = self.declare(about[0], window=about[1], drafter=about[2])
            curve.learn_drift(*self._fast.convert(at, sums))
        for about, name, at, sums in sharing.heard_fits(mine, latest=now + AHEAD_SECONDS):
            curve = self.declare(about[0], window=about[1], drafter=about[2])
            curve.learn_fit(name, *self._slow.convert(at, sums))
        for key, revision, generation, at, sums in sharing.heard_templates(mine, latest=now + AHEAD_SECONDS):
            grid, face = self._slow.convert(at, sums)
            self._templates.merge(key, revision, generation, grid, face, at)

    def _named(self, told: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
        return {self._names[namespace]: sums for namespace, sums in told.items()}
