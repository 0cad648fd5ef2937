"""A sweep over windows as one HTML file that needs nothing else, and its charts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.measure.paired.words import number
from gateway.measure.publish.results import Best, Row, Sweep
from gateway.measure.report_charts import BASELINE, DIM, GOOD, INK, MOST_BARS, SPECULATIVE, Draw, as_png, as_svg
from gateway.measure.report_page import document, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES: Final = (  # field, chart's title, axis, scale, table's head
    ("goodput_tokens_per_s", "Goodput by window", "output tokens per second", 1.0, "Goodput, tokens/s"),
    ("tpot_seconds", "Time per output token", "ms per token", 1e3, "TPOT, ms"),
    ("acceptance_length", "Tokens per verification step", "tokens per step", 1.0, "Tokens per step"),
    ("step_seconds", "Time per step", "ms per step", 1e3, "Step, ms"),
)
_LINES: Final = (*SPECULATIVE, *BASELINE, DIM, GOOD)


def charts(found: Sweep) -> Mapping[str, Draw[Sweep]]:
    """Return the charts that a sweep has figures for, by title."""
    return {
        title: partial(_curve, field=field, label=label, scale=scale)
        for field, title, label, scale, _ in _FIGURES
        if any(getattr(row, field) is not None for row in found.windows)
    }


def page(found: Sweep) -> str:
    """Return the page."""
    pictures = "".join(figure(title, _said(title, found), as_svg(draw, found)) for title, draw in charts(found).items())
    warnings = "".join(f"<li>{escape(warning)}</li>" for warning in found.warnings or ())
    main = (
        f"<p><b>{escape(headline(found))}</b></p>"
        f"<h2>In pictures</h2><div class='charts'>{pictures}</div>"
        f"<h2>By window</h2>{_table(found)}"
        + (f"<h2>To know before you rely on it</h2><ul>{warnings}</ul>" if warnings else "")
        + f"<h2>How to read this</h2>{_NOTES}"
    )
    return document("Draftlane, a sweep over windows", "Windows", _load(found), main)


def _load(found: Sweep) -> str:
    said = [found.load] if found.load else []
    said += [f"{name} {value}" for name, value in found.settings.items() if isinstance(value, str | int | float)]
    return "; ".join(said) or "The load is not told."


def picture(found: Sweep, path: Path) -> None:
    """Write all charts as one picture.

    Raises:
        OSError: the file cannot be written.
    """
    as_png(charts(found), found, path, f"Draftlane, windows: {headline(found)}")


def headline(found: Sweep) -> str:
    """Return the best windows in a sentence."""
    if not found.windows:
        return "No window was measured."
    categories = sorted({row.line[0] for row in found.windows} - {""})
    told = [
        f"{category or 'all together'} {_best(best)}"
        for category in ("", *categories)
        if (best := found.best_of(category)) is not None
    ]
    return f"Best windows: {'; '.join(told)}." if told else "No best window is told."


def _best(best: Best) -> str:
    window = str(best.window) if best.window else "no speculation"
    draft = f" with {best.draft}" if best.draft else ""
    flat = f" (flat: {', '.join(best.flat_with)} may be as good)" if best.flat_with else ""
    return f"{window}{draft}{flat}"


def _curve(axes: Axes, found: Sweep, *, field: str, label: str, scale: float) -> None:
    for name, color in zip(found.lines[:MOST_BARS], cycle(_LINES), strict=False):
        known = [(row.window, figure) for row in found.rows(name) if (figure := row.figure(field)) is not None]
        shade = color if name[0] else INK
        axes.plot(
            [window for window, _ in known],
            [scale * figure.value for _, figure in known],
            marker="o",
            color=shade,
            label=_name(name),
        )
        ends = [(window, figure.interval) for window, figure in known if figure.interval is not None]
        if ends:
            lows, highs = ([scale * interval[end] for _, interval in ends] for end in (0, 1))
            axes.fill_between([window for window, _ in ends], lows, highs, color=shade, alpha=0.12, linewidth=0)
    axes.set_xticks(sorted({row.window for row in found.windows}))
    axes.set_xlabel("drafted tokens per step")
    axes.set_ylabel(label)
    if len(found.lines) > 1:
        axes.legend(loc="best")


def _name(line: tuple[str, str]) -> str:
    category, draft = line
    return ", ".join(part for part in (category or "all together", draft) if part)


def _table(found: Sweep) -> str:
    heads = ["Category", "Window", "n", *(head for *_, head in _FIGURES)]
    rows = sorted(found.windows, key=lambda row: (row.line, row.window))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row, found))}</tr>" for row in rows)
    head = "".join(f"<th scope='col'>{escape(each)}</th>" for each in heads)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cells(row: Row, found: Sweep) -> list[str]:
    best = found.best_of(row.line[0])
    chosen = best is not None and best.window == row.window and best.draft in (None, row.draft)
    cells = [_name(row.line), f"{row.window}{' (best)' if chosen else ''}", "–" if row.n is None else f"{row.n:,}"]
    for field, _, _, scale, _ in _FIGURES:
        figure = row.figure(field)
        shown = "–" if figure is None else number(scale * figure.value)
        if figure is not None and figure.interval is not None:
            shown += f" ({number(scale * figure.interval[0])}–{number(scale * figure.interval[1])})"
        cells.append(shown)
    return cells


def _said(title: str, found: Sweep) -> str:
    """Return a chart in words, for those who do not see it."""
    return f"{title}: {headline(found)} The table below holds the figures"


_NOTES: Final = """
<p><b>Window</b> is the number of tokens that the draft proposes per verification step; 0 is baseline. <b>Tokens per step</b>
counts the one that verification itself adds. <b>Goodput</b> is output tokens per second at the stated load.</p>
<p>A larger window drafts more and wastes more: goodput rises while further tokens are often accepted, and falls when they are
not. Where the curve is flat, take the smaller window. Shades are intervals.</p>
"""
