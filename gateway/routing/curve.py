"""One pool revision's curve: score → expected acceptance length per temperature bucket, and how it drifts.

Ten bins hold discounted sums with a slow half-life. The posterior of a bin is (n0·prior + tokens) / (n0 + weight), made
monotone and interpolated. On top, sums with a fast half-life compare what calls brought with what the slow part (bins and
templates) had expected of them: when the two differ by more than chance explains, all expectations are corrected at once.
So a redeployed draft is noticed after a handful of calls although the slow part remembers an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import msgspec

from gateway.routing.evidence import CALL_DEVIATION, Clock, Evidence, Sums
from gateway.routing.prior import BINS, BUCKETS, prior

BIN_DEVIATION = 0.3  # of calls' log acceptance length about the curve, on labels scored by a shipped artefact
TEMPLATE_DEVIATION = (
    0.25  # of templates' log residuals over the curve: 0.13 on training labels, new traffic strays more
)
LEVEL_DEVIATION = 0.4  # of a draft's log level about the prior, before anything was seen of it
LEVEL_CALLS = 0.25  # calls after which the level is known as well as before by guessing
OUTDATED = 0.15  # log standard deviation that a bin regains while nothing is seen of it
CHANCE = 2.0  # standard errors that are still chance
OWN_CALLS = 2.0  # calls of one kind that say as much about its drift as all the others do
FEWEST_CALLS = 0.7  # one long call, or two short ones, may say that something drifts
SPREAD_OF_RATIO = 1.2 * CALL_DEVIATION  # a ratio of sums scatters a little more than a mean of logs
LOWER = 1.64  # standard deviations below the mean: 95 % one-sided


@dataclass(frozen=True, slots=True)
class Point:
    """One bin of a curve: score at its centre, mean acceptance length, lower confidence bound, effective samples."""

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


class Table:
    """One temperature bucket: its evidence, and the means, variances and samples that were computed from it."""

    __slots__ = ("bins", "built", "means", "prior", "samples", "seen", "variances")

    def __init__(self, believed: tuple[float, ...]) -> None:
        self.prior = believed
        self.bins = [Evidence() for _ in range(BINS)]
        self.seen = [0.0] * BINS  # when each bin last learned
        self.built = float("-inf")
        self.means: list[float] = list(believed)
        self.variances = [0.0] * BINS
        self.samples = [0.0] * BINS

    def believed(self, place: float) -> float:
        """Return what the prior says, interpolated between the centres of the bins."""
        position = min(BINS - 1.0, max(0.0, place * BINS - 0.5))
        index = min(BINS - 2, int(position))
        return self.prior[index] + (self.prior[index + 1] - self.prior[index]) * (position - index)

    def at(self, place: float) -> tuple[float, float, float]:
        """Return mean, log variance and samples, interpolated between the centres of the bins."""
        position = place * BINS - 0.5
        if position <= 0.0:
            return self.means[0], self.variances[0], self.samples[0]
        if position >= BINS - 1:
            return self.means[-1], self.variances[-1], self.samples[-1]
        index = int(position)
        part = position - index
        mean, variance, samples = self.means[index], self.variances[index], self.samples[index]
        after = index + 1
        return (
            mean + (self.means[after] - mean) * part,
            variance + (self.variances[after] - variance) * part,
            samples + (self.samples[after] - samples) * part,
        )


class Curve:
    """What is known of one pool revision as a whole."""

    __slots__ = (
        "_drift", "_drift_at", "_fast", "_n0", "_slow", "drafter", "drift", "fits", "level", "memory", "scatter", "slope",
        "stray", "tables", "trust", "unknown", "window",
    )  # fmt: skip

    def __init__(
        self, reference: Sequence[float], *, window: int, drafter: str | None, slow: Clock, fast: Clock, n0: float
    ) -> None:
        self.window = window
        self.drafter = drafter
        self.tables = tuple(
            Table(prior(reference, window=window, drafter=drafter, heat=heat)) for heat in range(len(BUCKETS))
        )
        self.level = Evidence()  # all bins of all buckets together; `model` is what the prior expected
        self.drift = Evidence()  # fast; `model` is what bins and templates expected
        self.memory = Evidence()  # the same calls on the slow clock, undamped
        # How much of a template's residual comes true, and how much of the curve's slope holds inside a template (0.65 in a
        # regression within the categories of labels). A strength of 0.5 is what some thirty calls bring.
        self.fits = {
            "trust": Fit(1.0, strength=0.5, bounds=(0.1, 1.2)),
            "slope": Fit(0.65, strength=0.5, bounds=(0.0, 1.6)),
            # Variances: of a long call's log length about what its template promised, and of templates' residuals.
            "scatter": Fit(CALL_DEVIATION**2, strength=20.0, bounds=(0.03**2, 0.4**2)),
            "stray": Fit(TEMPLATE_DEVIATION**2, strength=5.0, bounds=(0.05**2, 0.6**2)),
        }
        self.trust, self.slope = 1.0, 0.65
        self.scatter, self.stray = CALL_DEVIATION**2, TEMPLATE_DEVIATION**2
        self.unknown = LEVEL_DEVIATION**2  # log variance of the level
        self._slow, self._fast, self._n0 = slow, fast, n0
        self._drift = 1.0
        self._drift_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Curve window={self.window} {self.level.weight:.3g} samples drift={self._drift:.2f}>"

    @property
    def ceiling(self) -> float:
        """The most tokens that one step can bring."""
        return self.window + 1.0

    def learn(self, heat: int, index: int, grid: int, sums: Sequence[float]) -> None:
        """Add slow evidence to a bin."""
        table = self.tables[heat]
        table.bins[index].add(grid, sums)
        weight, tokens, _, calls = sums
        self.level.add(grid, (weight, tokens, weight * table.prior[index], calls))
        for each in self.tables:  # the level moves the prior of every bucket
            each.built = float("-inf")

    def learn_drift(self, grid: int, sums: Sequence[float]) -> None:
        """Add fast evidence."""
        self.drift.add(grid, sums)
        self.memory.add(*self._slow.convert(grid * self._fast.half_life, sums))
        self._drift_at = float("-inf")

    def learn_fit(self, name: str, grid: int, sums: Sequence[float]) -> None:
        """Add evidence to one of the fits."""
        self.fits[name].evidence.add(grid, sums)

    def table(self, heat: int, now: float, *, refresh: float = 1.0) -> Table:
        """Return the table of a bucket, rebuilt when it has learned or is older than `refresh` seconds."""
        table = self.tables[heat]
        if not 0.0 <= now - table.built < refresh:
            self._build(table, now)
        return table

    def drift_factor(self, now: float, *, refresh: float = 1.0) -> float:
        """Return by what m − 1 of every expectation has to be multiplied: 1 while the difference may be chance."""
        if not 0.0 <= now - self._drift_at < refresh:
            worth = self._fast.worth(self.drift.grid, now)
            remembered = self.memory.calls * self._slow.worth(self.memory.grid, now)
            self._drift = drift_of(self.drift, worth, remembered=remembered).sure
            self._drift_at = now
        return self._drift

    def typical(self, now: float) -> float:
        """Return the tokens per step of an ordinary call, for what waits in the pool's queue."""
        worth = self._slow.worth(self.level.grid, now)
        middle = self.tables[0].prior[BINS // 2]
        mean = (self._n0 * middle + self.level.tokens * worth) / (self._n0 + self.level.weight * worth)
        return corrected(mean, self.drift_factor(now), self.ceiling)

    def _build(self, table: Table, now: float) -> None:
        worth = self._slow.worth(self.level.grid, now)
        n0 = self._n0
        few = 2.0 * n0 + 1e-9  # two bins' worth of believing in the prior's level
        level = (self.level.tokens * worth + few) / (self.level.model * worth + few)
        self.unknown = LEVEL_DEVIATION**2 / (1.0 + self.level.calls * worth / LEVEL_CALLS)
        self.trust, self.slope, self.scatter, self.stray = (
            fit.value(self._slow.worth(fit.evidence.grid, now)) for fit in self.fits.values()
        )
        values, weights = [], []
        for index, evidence in enumerate(table.bins):
            worth = self._slow.worth(evidence.grid, now)
            weight = evidence.weight * worth
            weights.append(weight + n0)
            values.append((n0 * level * table.prior[index] + evidence.tokens * worth) / (n0 + weight))
            age = max(0.0, now - table.seen[index]) / self._slow.half_life
            faded = OUTDATED**2 * (1.0 - exp(-age)) if table.seen[index] else 0.0
            table.variances[index] = BIN_DEVIATION**2 / (2.0 + evidence.calls * worth) + self.unknown + faded
            table.samples[index] = weight
        table.means = monotone(values, weights)
        table.built = now


class Fit:
    """A coefficient or a variance that is learned by least squares, from sums that several processes can add up.

    Of a coefficient `weight` holds the sum of x², `tokens` that of x·y where it is positive, `model` that of −x·y where it is
    not; of a variance `weight` holds the weights, `tokens` the weighted squares.
    """

    __slots__ = ("_at_first", "_bounds", "_strength", "evidence")

    def __init__(self, at_first: float, *, strength: float, bounds: tuple[float, float]) -> None:
        self._at_first, self._strength, self._bounds = at_first, strength, bounds
        self.evidence = Evidence()

    def value(self, worth: float) -> float:
        """Return it, with what was believed at first weighing `strength`."""
        found = self.evidence
        slope = self._strength * self._at_first + (found.tokens - found.model) * worth
        low, high = self._bounds
        return min(high, max(low, slope / (self._strength + found.weight * worth)))


def square(error: float, weight: float, calls: float) -> Sums:
    """Return what one call adds to the fit of a variance: its squared error times its weight."""
    return (weight, weight * error * error, 0.0, calls)


def pair(x: float, y: float, calls: float) -> Sums:
    """Return what one call adds to the fit of a coefficient: its x and y, weighted by how much of a long call it is."""
    product = calls * x * y
    return (calls * x * x, max(0.0, product), max(0.0, -product), calls)


class Drift(msgspec.Struct, frozen=True, gc=False):
    """By what m − 1 of expectations must be multiplied: as `seen`, as far as chance does not explain it, in `calls` calls."""

    seen: float
    sure: float
    calls: float


NO_DRIFT = Drift(1.0, 1.0, 0.0)


def drift_of(recent: Evidence, worth: float, *, remembered: float, prior_calls: float = 2.0) -> Drift:
    """Return how what calls recently brought compares with what was expected of them.

    `sure` is 1 where chance explains the difference and grows out of it without a jump. It is damped by `prior_calls` calls
    that are supposed to have brought what was expected, and by the share of the recent calls in all that are `remembered`:
    what has only just begun to learn follows by itself.
    """
    calls = recent.calls * worth
    if calls < FEWEST_CALLS or calls >= remembered or recent.model <= 0.0 or recent.tokens <= 0.0:
        return NO_DRIFT
    floor = 0.05 * recent.weight  # acceptance near nothing at all would make the factor of little numbers wild
    seen = max(floor, recent.tokens - recent.weight) / max(floor, recent.model - recent.weight)
    difference = abs(recent.tokens / recent.model - 1.0)
    chance = CHANCE * SPREAD_OF_RATIO / sqrt(calls)
    if difference <= chance:
        return Drift(seen, 1.0, calls)
    strength = calls / (calls + prior_calls) * (1.0 - calls / remembered) ** 2 * (1.0 - (chance / difference) ** 4)
    return Drift(seen, float(seen**strength), calls)


def blended(common: float, own: Drift) -> float:
    """Return the factor for calls of a kind whose own recent calls are `own`, where all calls together say `common`.

    A kind whose own calls show less of a drift than the others' is spared accordingly; one whose own calls surely drift more,
    or the other way, goes its own way.
    """
    if common == 1.0 or own.calls == 0.0:
        return own.sure if own.sure != 1.0 else common
    shared = log(common)
    mine = min(max(log(own.seen), min(0.0, shared)), max(0.0, shared))
    share = own.calls / (own.calls + OWN_CALLS)
    factor = shared + share * (mine - shared)
    sure = log(own.sure)
    return exp(sure if abs(sure) > abs(factor) else factor)


def corrected(length: float, factor: float, ceiling: float) -> float:
    """Return an acceptance length whose m − 1 is multiplied by `factor`, within 1 and `ceiling`."""
    return min(ceiling, max(1.0, 1.0 + (length - 1.0) * factor))


def lower_bound(mean: float, variance: float) -> float:
    """Return the lower confidence bound of an acceptance length with a log variance."""
    return max(1.0, mean * exp(-LOWER * sqrt(variance)))


def crossing(means: Sequence[float], needed: float) -> float:
    """Return the score at which a non-decreasing curve of bin centres reaches `needed`: 0 is always, 1 is never."""
    after = bisect_left(means, needed)
    if after == 0:
        return 0.0
    if after == len(means):
        return 1.0
    low, high = means[after - 1], means[after]
    return (after - 0.5 + (needed - low) / (high - low)) / BINS
