"""A report's charts, drawn by matplotlib: each as SVG for the page, and all together as a picture."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.measure import writing
from gateway.measure.report_facts import Facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, DIM, LINE, GOOD = "#171a21", "#596273", "#dfe3ea", "#117352"
# Violet speculates and teal is baseline, as in the console; further pools of a kind differ in lightness.
SPECULATIVE: Final = ("#5546d6", "#9d92ff", "#2c2180")
BASELINE: Final = ("#0a7590", "#56c7e2", "#06414f")
MOST_BARS: Final = 12  # tenants in the chart; the table has all
_STYLE: Final[dict[Any, Any]] = {
    "font.family": ["sans-serif"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": DIM,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "legend.frameon": False,
    "text.parse_math": False,  # dollars are dollars
    "svg.fonttype": "none",  # words stay words: they can be found, copied and read aloud
    "svg.hashsalt": "draftlane",  # the same report gives the same file
}
Shown = TypeVar("Shown")  # what a chart is drawn of
Draw = Callable[["Axes", Shown], None]


def spend(axes: Axes, facts: Facts) -> None:
    """Draw dollars per day by pool, and what all-baseline would have cost."""
    _stacked(axes, facts, facts.spent)
    axes.plot(
        range(len(facts.days)), facts.baseline, color=INK, marker="_", markersize=14, linestyle="", label="all baseline"
    )
    axes.set_ylabel("US dollars")
    axes.legend(loc="upper left", ncols=3)  # all baseline at least


def routed(axes: Axes, facts: Facts) -> None:
    """Draw calls per day by pool."""
    _stacked(axes, facts, facts.calls)
    axes.set_ylabel("calls")
    if facts.calls:
        axes.legend(loc="upper left", ncols=3)


def policies(axes: Axes, facts: Facts) -> None:
    """Draw what the calls cost and would have cost, with the band of each estimate."""
    names = [policy.name for policy in facts.policies]
    usd = [policy.usd for policy in facts.policies]
    low = [max(0.0, policy.usd - policy.low) for policy in facts.policies]
    high = [max(0.0, policy.high - policy.usd) for policy in facts.policies]
    axes.barh(names, usd, xerr=[low, high], color=[GOOD, *[DIM] * 3], height=0.6, ecolor=INK, capsize=4)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("US dollars")


def prices(axes: Axes, facts: Facts) -> None:
    """Draw dollars per million output tokens by tenant, the dearest first."""
    known = [(name or "none", price) for name, amounts in facts.by["tenant"] if (price := _price(amounts)) is not None]
    shown = sorted(known, key=lambda each: -each[1])[:MOST_BARS]
    axes.barh([name for name, _ in shown], [price for _, price in shown], color=DIM, height=0.6)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("US dollars per million output tokens")


CHARTS: Final[Mapping[str, Draw[Facts]]] = {
    "Spend by day": spend,
    "What the same calls would have cost": policies,
    "Price of a million output tokens": prices,
    "Where calls went": routed,
}


def as_svg(draw: Draw[Shown], facts: Shown) -> str:
    """Return one chart as an SVG element that stands inside a page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 3.4), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes, facts)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def as_png(charts: Mapping[str, Draw[Shown]], facts: Shown, path: Path, headline: str) -> None:
    """Write charts and a headline as one picture, two charts in a row.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        rows = max(1, -(-len(charts) // 2))
        figure: Figure = Figure(figsize=(15, 4.5 * rows), layout="constrained", facecolor="white")
        figure.suptitle(textwrap.fill(headline, 130), fontsize=13, x=0.01, ha="left")
        for place, (title, draw) in enumerate(charts.items(), 1):
            axes = figure.add_subplot(rows, 2, place)
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
            draw(axes, facts)
        drawn = io.BytesIO()  # a pipe cannot be gone back in, as drawing does
        figure.savefig(drawn, format="png", dpi=120, metadata={"Software": None})
    with writing.whole(path) as part:
        part.write_bytes(drawn.getvalue())


def _stacked(axes: Axes, facts: Facts, amounts: Mapping[str, Any]) -> None:
    under = [0.0] * len(facts.days)
    places = range(len(facts.days))
    for color, (pool, values) in zip(_colors(amounts, facts), amounts.items(), strict=True):
        axes.bar(places, values, bottom=under, color=color, width=0.8, label=pool)
        under = [low + value for low, value in zip(under, values, strict=True)]
    every = max(1, -(-len(facts.days) // 7))
    axes.set_xticks(list(places)[::every], [f"{day.day} {day:%b}" for day in facts.days[::every]])
    axes.set_ylim(0, 1.25 * max([*under, *facts.baseline] if amounts is facts.spent else under, default=1.0) or 1.0)
    axes.grid(visible=False, axis="x")


def _colors(amounts: Mapping[str, Any], facts: Facts) -> list[str]:
    left = {True: cycle(SPECULATIVE), False: cycle(BASELINE)}
    return [next(left[pool in facts.speculative]) for pool in amounts]


def _price(amounts: Mapping[str, float | None]) -> float | None:
    return amounts["usd_per_million_output_tokens"]
