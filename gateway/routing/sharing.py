"""What processes tell each other: sums under keys that name everything they belong to, so that adding them is all it takes.

A delta is namespace → key → numbers, as the Store adds them up: [weight, tokens, model, calls]. A key is a JSON list whose
last element is the time of the sums' face value (a grid time, see `evidence`); sums of another block of time have another
key, so old keys come to rest and may be dropped. Numbers are never negative. Exactly-once delivery is the Store's affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.routing.evidence import Clock, Sums
from gateway.routing.prior import BINS, BUCKETS

if TYPE_CHECKING:
    from gateway.routing.curve import Curve
    from gateway.routing.templates import Key, Templates

Deltas = Mapping[str, Mapping[str, Sequence[float]]]
About = tuple[str, int, str | None]  # revision, window, drafter

NAMESPACES = ("bins", "drift", "fits", "templates")
FITS = ("trust", "slope", "scatter", "stray")
SUMS = 4  # numbers under a key

MAX_PENDING = 50_000  # keys that wait to be told; a Store that is away for longer costs the oldest


class Outbox:
    """What this process has learned and not yet told. `add` is on the path of every finished call."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: dict[tuple[object, ...], list[float]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, key: tuple[object, ...], sums: Sums) -> None:
        """Add sums to what waits under a key: (namespace, …, time of face value)."""
        held = self._pending.get(key)
        if held is None:
            self._pending[key] = list(sums)
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
        else:
            held[0] += sums[0]
            held[1] += sums[1]
            held[2] += sums[2]
            held[3] += sums[3]

    def take(self) -> dict[str, dict[str, list[float]]]:
        """Return all that waits, and wait for nothing any more."""
        pending, self._pending = self._pending, {}
        return told(pending)


def told(pending: Mapping[tuple[object, ...], Sequence[float]]) -> dict[str, dict[str, list[float]]]:
    """Return sums by tuple keys as plain dicts and lists."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, sums in pending.items():
        name = msgspec.json.encode(key[1:]).decode()
        found.setdefault(str(key[0]), {})[name] = list(sums)
    return found


def everything(
    curves: Mapping[str, Curve], templates: Templates, *, slow: Clock, fast: Clock
) -> dict[str, dict[str, list[float]]]:
    """Return all that is known, as if it had just been learned."""
    found: dict[tuple[object, ...], Sums] = {}
    for revision, curve in curves.items():
        about = (revision, curve.window, curve.drafter)
        found["drift", *about, curve.drift.grid * fast.half_life] = curve.drift.sums
        for name, fit in curve.fits.items():
            found["fits", *about, name, fit.evidence.grid * slow.half_life] = fit.evidence.sums
        for heat, table in enumerate(curve.tables):
            for index, evidence in enumerate(table.bins):
                found["bins", *about, heat, index, evidence.grid * slow.half_life] = evidence.sums
    for key, template in templates.items():
        for revision, entry in template.by_revision.items():
            at = entry.slow.grid * slow.half_life
            found["templates", *key, revision, entry.generation, at] = entry.slow.sums
    return told({key: sums for key, sums in found.items() if sums[0] > 0.0})


def heard_bins(deltas: Deltas, *, latest: float) -> Iterator[tuple[About, int, int, float, Sequence[float]]]:
    """Yield (revision, window, drafter), bucket, bin, time of face value and sums."""
    for key, at, sums in _heard(deltas, "bins", latest):
        match key:
            case [str(revision), int(window), str() | None as drafter, int(heat), int(index)]:
                if 0 <= heat < len(BUCKETS) and 0 <= index < BINS and window > 0:
                    yield (revision, window, drafter), heat, index, at, sums


def heard_drift(deltas: Deltas, *, latest: float) -> Iterator[tuple[About, float, Sequence[float]]]:
    """Yield (revision, window, drafter), time of face value and sums."""
    for key, at, sums in _heard(deltas, "drift", latest):
        match key:
            case [str(revision), int(window), str() | None as drafter] if window > 0:
                yield (revision, window, drafter), at, sums


def heard_fits(deltas: Deltas, *, latest: float) -> Iterator[tuple[About, str, float, Sequence[float]]]:
    """Yield (revision, window, drafter), name of the fit, time of face value and sums."""
    for key, at, sums in _heard(deltas, "fits", latest):
        match key:
            case [str(revision), int(window), str() | None as drafter, str(name)] if window > 0 and name in FITS:
                yield (revision, window, drafter), name, at, sums


def heard_templates(deltas: Deltas, *, latest: float) -> Iterator[tuple[Key, str, int, float, Sequence[float]]]:
    """Yield (tenant, model, fingerprint), revision, generation, time of face value and sums."""
    for key, at, sums in _heard(deltas, "templates", latest):
        match key:
            case [str(tenant), str(model), str(template), str(revision), int(generation)] if generation >= 0:
                yield (tenant, model, template), revision, generation, at, sums


def _heard(deltas: Deltas, namespace: str, latest: float) -> Iterator[tuple[list[object], float, Sequence[float]]]:
    """Yield key without its time, time of face value and sums, leaving out what is not well-formed."""
    for name, sums in deltas.get(namespace, {}).items():
        try:
            key = msgspec.json.decode(name)
        except (msgspec.DecodeError, UnicodeEncodeError):
            continue
        if not isinstance(key, list) or not key or len(sums) != SUMS:
            continue
        at = key.pop()
        if isinstance(at, (int, float)) and at <= latest and all(0.0 <= number < math.inf for number in sums):
            yield key, float(at), sums
