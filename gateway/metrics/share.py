"""One metrics page for several worker processes: each leaves its own in a folder, whoever is scraped adds them up.

Counters and histograms are sums, and a worker that has ended keeps counting by its last page, so that no sum goes backwards.
Of the gauges `draftlane_inflight` is a sum; the others say the same in every worker, or differ by a moment, and the largest
stands.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

SUMMED_GAUGES = frozenset({"draftlane_inflight"})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Share:
    """A folder in which worker `name` leaves its page; a name is one process's, so a restarted worker adds, not replaces."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / f"{name}.prom"

    def leave(self, page: bytes) -> None:
        """Write this worker's page, whole or not at all."""
        part = self._path.with_suffix(f".{os.getpid()}.part")
        with contextlib.suppress(OSError):  # the metrics of a second are not worth a call
            part.write_bytes(page)
            part.replace(self._path)

    def merged(self, own: bytes) -> bytes:
        """Return the page of all workers together, with this one's as it is now."""
        pages = [own.decode()]
        for path in sorted(self._folder.glob("*.prom")):
            if path != self._path:
                with contextlib.suppress(OSError):
                    pages.append(path.read_text())
        return merge(pages)


def merge(pages: Iterable[str]) -> bytes:
    """Add up pages in the Prometheus text format."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found = values.setdefault(family.name, {})
            summed = family.type not in ("gauge", "info", "unknown") or family.name in SUMMED_GAUGES
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                before = found.get(key)
                if before is None:
                    found[key] = sample.value
                elif summed and not sample.name.endswith("_created"):
                    found[key] = before + sample.value
                else:
                    found[key] = max(before, sample.value)
    for name, family in families.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(list(families.values())))
    return generate_latest(registry)


class _Fixed(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
