"""One metrics page for several worker processes: each leaves its own in a folder, whoever is scraped adds them up.

Counters and histograms are sums, and a worker that has ended keeps counting by its last page, so that no sum goes backwards.
Gauges count for living workers only: loads are sums, and of what says the same everywhere, or differs by a moment, the
largest stands, as it does of what all count alike: what pools cost, and what engines told each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client.utils import floatToGoString

from gateway import atomic

SUMMED_GAUGES: Final = frozenset(
    {
        "draftlane_inflight",
        "draftlane_ledger_journal_bytes",
        "draftlane_ledger_pending_batches",
        "draftlane_pool_running",
        "draftlane_pool_waiting",
        "process_open_fds",
        "process_resident_memory_bytes",
    }
)
LARGEST_COUNTERS: Final = frozenset({"draftlane_pool_capacity_usd_total"})  # every worker counts the same pools
READ_ELSEWHERE: Final = ("draftlane_engine_", "vllm:")  # a worker that has ended heard it too long ago
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Share:
    """A folder in which a worker leaves its page, under a name "INDEX-PID" that is one process's.

    A worker that is started again under the same index adds to what its predecessor counted, and stands in for its gauges.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._path = folder / f"{name}.prom"

    def leave(self, page: bytes) -> None:
        """Write this worker's page, whole or not at all."""
        with contextlib.suppress(OSError):  # the metrics of a second are not worth a call
            atomic.write(self._path, page)

    def merged(self, own: bytes) -> bytes:
        """Return the page of all workers together, with this one's as it is now."""
        pages: list[tuple[str, str, float]] = []
        for path in self.folder.glob("*.prom"):
            if path != self._path:
                with contextlib.suppress(OSError):
                    pages.append((path.stem.partition("-")[0], path.read_text(), path.stat().st_mtime))
        newest: dict[str, float] = {self._path.stem.partition("-")[0]: float("inf")}
        for index, _, written in pages:
            newest[index] = max(newest.get(index, 0.0), written)
        living = [page for index, page, written in pages if written == newest[index]]
        ended = [page for index, page, written in pages if written != newest[index]]
        return merge(own.decode(), living, ended)


def _told(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Family:
    """One metric: its head lines, and its samples by all that stands before the value."""

    head: list[str]
    kind: str
    samples: dict[str, float] = field(default_factory=dict)


def merge(own: str, living: Iterable[str] = (), ended: Iterable[str] = ()) -> bytes:
    """Add up pages in the Prometheus text format, as this program writes it: the same labels in the same order.

    Lines are added as text, since parsing them into objects and back takes a second for some hundred tenants.
    """
    families: dict[str, _Family] = {}
    for page in (own, *living):
        _add(families, page, lives=True)
    for page in ended:
        _add(families, page, lives=False)
    lines: list[str] = []
    for family in families.values():
        lines += family.head
        lines += [f"{key} {_told(value)}" for key, value in family.samples.items()]
    return ("\n".join(lines) + "\n").encode()


def _add(families: dict[str, _Family], page: str, *, lives: bool) -> None:
    """Add a page to the families; of a worker that has ended only what it counted itself."""
    family, largest = _Family([], ""), False
    for line in page.splitlines():
        if line.startswith("# HELP "):
            helped = line
        elif line.startswith("# TYPE "):
            name, kind = line[len("# TYPE ") :].rsplit(" ", 1)
            elsewhere = name.startswith(READ_ELSEWHERE)
            wanted = lives or (kind != "gauge" and not elsewhere)
            family = families.setdefault(name, _Family([helped, line], kind)) if wanted else _Family([], "")
            largest = elsewhere or name in LARGEST_COUNTERS or (kind == "gauge" and name not in SUMMED_GAUGES)
        elif line:
            key, _, told = line.rpartition(" ")
            value, before = float(told), family.samples.get(key)
            if before is not None:
                value = max(before, value) if largest or "_created" in key else before + value
            family.samples[key] = value
