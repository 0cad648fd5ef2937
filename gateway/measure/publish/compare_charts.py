"""A comparison's charts: ratios with their intervals, seconds per token, tokens per step, and what load does to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Final

from gateway.measure.paired.intervals import Estimate
from gateway.measure.paired.result import Comparison, Group, Level
from gateway.measure.report_charts import BASELINE, DIM, GOOD, INK, MOST_BARS, SPECULATIVE, Draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAD: Final = "#b8232f"
_COLORS: Final = {"gain": GOOD, "loss": BAD}
_LINES: Final = (*SPECULATIVE, *BASELINE, DIM, GOOD)


def charts(found: Comparison) -> Mapping[str, Draw[Comparison]]:
    """Return the charts that a comparison has figures for, by title."""
    chosen: dict[str, Draw[Comparison]] = {
        "Decode time per token, ratio": _tpot_ratios,
        "End to end, ratio": _e2e_ratios,
        "Time per output token": _tpots,
    }
    if any(pool.acceptance_length for level in found.levels for pool in level.overall.pools):
        chosen["Tokens per verification step"] = _acceptances
    if sum(level.overall.ratios.tpot is not None for level in found.levels) > 1:
        chosen["With load"] = _with_load
    return chosen


def rows(found: Comparison) -> list[tuple[str, Group]]:
    """Return the groups that charts show, with their labels: all together, then categories, level by level."""
    several = len(found.levels) > 1
    shown = []
    for level in found.levels:
        groups = [level.overall, *level.categories[: MOST_BARS // len(found.levels) or 1]]
        shown += [(_name(group, level if several else None), group) for group in groups]
    return shown


def _name(group: Group, level: Level | None) -> str:
    return (group.category or "all together") + (f" at {level.concurrency}" if level is not None else "")


def _tpot_ratios(axes: Axes, found: Comparison) -> None:
    _forest(axes, found, [(name, group, group.ratios.tpot) for name, group in rows(found)])


def _e2e_ratios(axes: Axes, found: Comparison) -> None:
    _forest(axes, found, [(name, group, group.ratios.e2e) for name, group in rows(found)])


def _forest(axes: Axes, found: Comparison, shown: Sequence[tuple[str, Group, Estimate | None]]) -> None:
    axes.axvline(1, color=INK, linewidth=1)
    axes.axvspan(1 - found.precision, 1 + found.precision, color=DIM, alpha=0.12, linewidth=0)
    for place, (_, group, estimate) in enumerate(shown):
        if estimate is None:
            continue
        color = _COLORS.get(group.finding, DIM)
        axes.plot([estimate.value], [place], marker="o", color=color, linestyle="")
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [place, place], color=color, linewidth=2)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(f"{found.names[1]} over {found.names[0]}; below 1 it is faster")


def _tpots(axes: Axes, found: Comparison) -> None:
    _bars(axes, found, [group for _, group in rows(found)], "tpot_seconds", 1e3)
    axes.set_ylabel("ms per token")


def _acceptances(axes: Axes, found: Comparison) -> None:
    _bars(axes, found, [group for _, group in rows(found)], "acceptance_length", 1.0)
    axes.set_ylabel("tokens per step")


def _bars(axes: Axes, found: Comparison, groups: Sequence[Group], field: str, scale: float) -> None:
    for half, color in enumerate((BASELINE[0], SPECULATIVE[0])):
        known = [(place, getattr(group.pools[half], field)) for place, group in enumerate(groups)]
        values = [(place, estimate) for place, estimate in known if estimate is not None]
        lows = [scale * (each.value - (each.low if each.low is not None else each.value)) for _, each in values]
        highs = [scale * ((each.high if each.high is not None else each.value) - each.value) for _, each in values]
        axes.bar(
            [place + 0.4 * half - 0.2 for place, _ in values],
            [scale * each.value for _, each in values],
            width=0.38,
            yerr=[lows, highs],
            ecolor=INK,
            capsize=2,
            color=color,
            label=found.names[half],
        )
    names = [name for name, _ in rows(found)]
    axes.set_xticks(
        range(len(names)), names, rotation=30 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.2)
    axes.legend(loc="upper right", ncols=2)


def _with_load(axes: Axes, found: Comparison) -> None:
    names = ["", *sorted({group.category for level in found.levels for group in level.categories})][:MOST_BARS]
    for name, color in zip(names, cycle(_LINES), strict=False):
        points = [
            (level.concurrency or 0, group.ratios.tpot)
            for level in found.levels
            for group in (level.overall, *level.categories)
            if group.category == name
        ]
        known = [(at, estimate) for at, estimate in points if estimate is not None]
        axes.plot(
            [at for at, _ in known],
            [estimate.value for _, estimate in known],
            marker="o",
            color=INK if not name else color,
            label=name or "all together",
        )
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        [level.concurrency or 1 for level in found.levels], [str(level.concurrency) for level in found.levels]
    )
    axes.set_xlabel("calls under way at once")
    axes.set_ylabel("decode time per token, ratio")
    axes.legend(loc="best")
