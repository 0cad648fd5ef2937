"""The overhead run as a picture: CPU per request and per event, one bar per system with the rounds' spread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.figures import DIRECT, Figures

_PANELS: Final = (
    ("CPU µs per request, 64 at once", "json-c64", "cpu_us_per_request"),
    ("CPU µs per event, 32 streams", "sse-c32", "cpu_us_per_event"),
    ("added latency p50, ms, one at a time", "json-c1", "added_p50_ms"),
)


def draw(summary: Mapping[str, Mapping[str, Figures]], path: Path) -> None:
    """Write the picture; the file's ending chooses its format. Scales are logarithmic: the systems lie decades apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(_PANELS), figsize=(5 * len(_PANELS), 3.6), layout="constrained")
    for panel, (title, workload, name) in zip(panels, _PANELS, strict=True):
        shown = {
            system: found
            for system, workloads in summary.items()
            if system != DIRECT and (found := workloads.get(workload, {}).get(name)) and found.median > 0
        }
        middles = [found.median for found in shown.values()]
        errors = [[f.median - f.least for f in shown.values()], [f.greatest - f.median for f in shown.values()]]
        colours = ["#c2410c" if system.startswith("draftlane") else "#64748b" for system in shown]
        panel.barh(list(shown), middles, xerr=errors, color=colours, ecolor="#0f172a", capsize=2)
        panel.set_xscale("log")
        panel.invert_yaxis()
        panel.set_title(title, fontsize=10)
        for row, middle in enumerate(middles):
            shown_as = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
            panel.annotate(f" {shown_as}", (middle, row), va="bottom", fontsize=8)
        panel.margins(x=0.15)
    figure.savefig(path)
    plt.close(figure)
