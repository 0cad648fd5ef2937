"""Quantiles of the last minutes as gauges, for readers that cannot take quantiles of histograms, as CloudWatch's EMF.

They are read off the histograms that calls fill anyway, by comparing their buckets with how they were five minutes ago: a
call pays nothing for them. Within a bucket values are taken to lie evenly, as PromQL's histogram_quantile does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.metrics.tally import Histograms

WINDOW_SECONDS: Final = 300.0
STEP_SECONDS: Final = 15.0  # between two snapshots, so that the window is true to a twentieth
PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95))

Counts = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at: float
    counts: Counts


class Recent(Collector):
    """Quantiles of one histogram by one of its labels; `clock` is monotonic seconds."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        histograms: Histograms,
        *,
        label: str,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._histograms = histograms
        self._label = label
        self._clock = clock
        self._past: deque[_Snapshot] = deque()
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Name the metric without looking at the clock."""
        return [GaugeMetricFamily(self._name, self._documentation)]

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; a pool without calls in the window has none."""
        now = self._clock()
        counts = self._histograms.summed_by(self._label)
        before = self._before(now)
        if not self._past or now - self._past[-1].at >= STEP_SECONDS:
            self._past.append(_Snapshot(now, counts))
        family = GaugeMetricFamily(self._name, self._documentation, labels=(self._label, "percentile"))
        for value, buckets in counts.items():
            then = before.get(value)
            fresh = buckets if then is None else [new - old for new, old in zip(buckets, then, strict=True)]
            for name, share in PERCENTILES:
                found = quantile(share, self._histograms.bounds, fresh)
                if found is not None:
                    family.add_metric((value, name), found)
        yield family

    def _before(self, now: float) -> Counts:
        """Return the counts at the window's beginning, none while the process is younger than the window."""
        while len(self._past) > 1 and now - self._past[1].at >= WINDOW_SECONDS:
            self._past.popleft()
        return self._past[0].counts if self._past and now - self._past[0].at >= WINDOW_SECONDS else {}


def quantile(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the value below which a share of the counted ones lie, None where none were; the last bound is the most."""
    total = sum(counts)
    if total <= 0:
        return None
    rank, seen = share * total, 0
    for index, count in enumerate(counts[:-1]):
        if seen + count >= rank and count:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (rank - seen) / count
        seen += count
    return bounds[-1]
