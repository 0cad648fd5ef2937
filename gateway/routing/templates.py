"""Templates: calls that share a system prompt and tools behave alike, so each keeps its own residual over the curve.

A bounded table, least recently used out first. A template's residual is shrunk towards none by its evidence. Beside the slow
sums it keeps fast ones, which this process alone knows. When they contradict the slow ones by more than three standard
errors, and the drift of the whole curve does not explain it, the template has changed: the fast sums take the place of the
slow ones under the next *generation*, and whoever merges forgets older generations too.

Calls without a template share one entry per tenant, which knows how they drift but has no residual: the curve is their mean.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import msgspec

from gateway.routing.curve import NO_DRIFT, SPREAD_OF_RATIO, Drift, drift_of
from gateway.routing.evidence import Clock, Evidence, Sums

if TYPE_CHECKING:
    from gateway.routing.curve import Curve

Key = tuple[str, str, str]  # tenant, model, fingerprint

SLOPE_CALLS = 5.0  # calls after which half of the correction for the slope inside a template applies
USUAL_CALLS = 50.0  # calls over which a template's usual place on the curve is a mean
CONTRADICTION = 3.0  # standard errors between fast and slow at which a template has changed
FEWEST_CALLS = 0.9  # fast evidence that may contradict: two calls of usual length
BORROWED = 0.5  # of a residual known from another revision: rankings under two drafts correlate at about 0.55
MAX_REVISIONS = 4  # of one template; the one that learned longest ago goes


class Residual(msgspec.Struct, frozen=True, gc=False):
    """What a template adds to the curve: log residual, its variance, calls and samples behind it.

    `drift` is how its own recent calls compare with that. `raw` is the residual before it is trusted as far as residuals have
    come true, and `off` by how much (log) the curve here exceeds the template's usual place.
    """

    value: float
    variance: float
    calls: float = 0.0
    samples: float = 0.0
    drift: Drift = NO_DRIFT
    raw: float = 0.0
    off: float = 0.0


class Entry:
    """One template on one revision.

    `slow.model` is what curve and drift expected, `fast.model` what curve and residual expected without drift.
    """

    __slots__ = ("fast", "generation", "places", "seen", "slow", "usual")

    def __init__(self) -> None:
        self.slow = Evidence()
        self.fast = Evidence()
        self.generation = 0
        self.seen = 0.0
        self.usual = 0.0  # mean log of what the curve says of its calls, of as many as `places`
        self.places = 0.0

    def __repr__(self) -> str:
        return f"<Entry {self.slow!r} generation={self.generation}>"

    def settle(self, place: float) -> None:
        """Take the log of what the curve says of one more call into the usual place."""
        self.places = min(USUAL_CALLS, self.places + 1.0)
        self.usual += (place - self.usual) / self.places

    def succeed(self, generation: int) -> None:
        """Forget what belongs to older generations."""
        self.slow = Evidence()
        self.fast = Evidence()
        self.generation = generation


class Template:
    """One template: its entries by revision, and how much traffic it brings (finished calls, slowly discounted)."""

    __slots__ = ("by_revision", "traffic")

    def __init__(self) -> None:
        self.by_revision: dict[str, Entry] = {}
        self.traffic = Evidence()

    def entry(self, revision: str) -> Entry:
        """Return what is known of the template on a revision, begun if it is new there."""
        entry = self.by_revision.get(revision)
        if entry is None:
            if len(self.by_revision) >= MAX_REVISIONS:
                del self.by_revision[min(self.by_revision, key=lambda name: self.by_revision[name].seen)]
            entry = self.by_revision[revision] = Entry()
        return entry


class Templates:
    """The bounded table. The fingerprint "" stands for all calls of a tenant without a template."""

    __slots__ = ("_curve_samples", "_fast", "_limit", "_slow", "_table")

    def __init__(self, *, limit: int, slow: Clock, fast: Clock, curve_samples: float) -> None:
        self._limit = limit
        self._slow, self._fast = slow, fast
        self._curve_samples = curve_samples
        self._table: OrderedDict[Key, Template] = OrderedDict()  # a dict would search for its oldest

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"<Templates {len(self._table)}/{self._limit}>"

    def items(self) -> list[tuple[Key, Template]]:
        """Return all templates, least recently used first."""
        return list(self._table.items())

    def touch(self, key: Key) -> Template:
        """Return the template, created if it is new, as the most recently used; the least recently used one may go."""
        template = self._table.pop(key, None) or Template()
        self._table[key] = template
        if len(self._table) > self._limit:
            self._table.popitem(last=False)
        return template

    def traffic(self, key: Key, now: float) -> float:
        """Return how many calls the template brought lately."""
        template = self._table.get(key)
        return 0.0 if template is None else template.traffic.calls * self._slow.worth(template.traffic.grid, now)

    def residual(self, key: Key, revision: str, mean: float, now: float, *, curve: Curve) -> Residual:
        """Return what is known of a template on a revision where its curve says `mean` tokens per step."""
        template = self._table.get(key)
        prior_variance = curve.stray + curve.unknown
        if template is None:
            return Residual(0.0, prior_variance)
        entry = template.by_revision.get(revision)
        others = len(template.by_revision) > (entry is not None)
        start = self._borrowed(template, revision, now) if others and key[2] else 0.0
        if entry is None:
            return Residual(start, prior_variance)
        slow = entry.slow
        worth = self._slow.worth(slow.grid, now)
        calls = slow.calls * worth
        own = drift_of(entry.fast, self._fast.worth(entry.fast.grid, now), remembered=calls, prior_calls=1.0)
        if not key[2]:  # a mixed crowd, and the curve is its mean
            return Residual(0.0, prior_variance, drift=own)
        shrink = self._curve_samples * mean
        raw = log((slow.tokens * worth + shrink * exp(start)) / (slow.model * worth + shrink))
        off = (log(mean) - entry.usual) * calls / (calls + SLOPE_CALLS) if entry.places else 0.0
        value = curve.trust * raw + (curve.slope - 1.0) * off
        faded = curve.stray * (1.0 - exp(min(0.0, entry.seen - now) / self._slow.half_life))
        variance = 1.0 / (1.0 / prior_variance + calls / curve.scatter) + faded
        return Residual(value, variance, calls, slow.weight * worth, own, raw, off)

    def learn(
        self, key: Key, revision: str, now: float, sums: Sums, *, place: float, unadapted: float, factor: float
    ) -> tuple[Entry, Sums | None]:
        """Add what a call taught to both clocks of a template.

        `sums.model` counts what curve and drift expected; `place` is the log of what the curve says alone, `unadapted` what
        curve and residual expected of the call without drift, and `factor` what drift makes of that. Returns the entry, and
        its sums if it began a generation.
        """
        entry = self.touch(key).entry(revision)
        entry.settle(place)
        weight, tokens, model, calls = sums
        grid, scale = self._slow.place(now)
        entry.slow.add(grid, (scale * weight, scale * tokens, scale * model, scale * calls))
        grid, scale = self._fast.place(now)
        entry.fast.add(grid, (scale * weight, scale * tokens, scale * weight * unadapted, scale * calls))
        entry.seen = now
        if not key[2] or not self._changed(entry, now, factor):
            return entry, None
        return entry, self._begin_generation(entry, now, model / weight)

    def _changed(self, entry: Entry, now: float, factor: float) -> bool:
        fast, slow = entry.fast, entry.slow
        recent = fast.calls * self._fast.worth(fast.grid, now)
        calls = slow.calls * self._slow.worth(slow.grid, now)
        if recent < FEWEST_CALLS or calls < 1.5 * recent:  # too few, or both speak of the same calls
            return False
        difference = log(fast.tokens * slow.weight / (fast.weight * slow.tokens))
        chance = CONTRADICTION * SPREAD_OF_RATIO * sqrt(1.0 / recent + 1.0 / calls)
        return abs(difference) > chance and abs(difference - log(factor)) > chance

    def _begin_generation(self, entry: Entry, now: float, expected: float) -> Sums:
        factor = self._fast.worth(entry.fast.grid, now)
        weight, tokens, _, calls = entry.fast.sums
        sums = (factor * weight, factor * tokens, factor * weight * expected, factor * calls)
        entry.succeed(entry.generation + 1)
        grid, scale = self._slow.place(now)
        weight, tokens, model, calls = sums
        entry.slow.add(grid, (scale * weight, scale * tokens, scale * model, scale * calls))
        return sums

    def _borrowed(self, template: Template, revision: str, now: float) -> float:
        """Return the residual that other revisions suggest."""
        calls = value = 0.0
        for name, entry in template.by_revision.items():
            if name != revision and entry.slow.model > 0.0 and entry.slow.tokens > 0.0:
                weight = entry.slow.calls * self._slow.worth(entry.slow.grid, now)
                calls += weight
                value += weight * log(entry.slow.tokens / entry.slow.model)
        return BORROWED * value / (calls + 1.0)

    def merge(self, key: Key, revision: str, generation: int, grid: int, sums: Sequence[float], at: float) -> None:
        """Add another process's slow sums; a later generation replaces what is known, an earlier one is past."""
        entry = self.touch(key).entry(revision)
        if generation > entry.generation:
            entry.succeed(generation)
        if generation == entry.generation:
            entry.slow.add(grid, sums)
            entry.seen = max(entry.seen, at)
            if not entry.places and entry.slow.model > 0.0:
                entry.settle(log(entry.slow.model / entry.slow.weight))
