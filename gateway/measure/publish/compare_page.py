"""A comparison as one HTML file that needs nothing else: the verdict, charts, tables, and how the figures came about."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from gateway.measure.paired.intervals import Estimate
from gateway.measure.paired.result import Comparison, Group, Level
from gateway.measure.paired.verdict import interval
from gateway.measure.paired.words import ROWS, equality_text, number
from gateway.measure.publish.compare_charts import charts, rows
from gateway.measure.report_charts import as_png, as_svg
from gateway.measure.report_page import document, figure

Cell = str | tuple[str, str]  # text, or text and its state
_FINDINGS: Final = {
    "gain": ("gain", "good"),
    "loss": ("loss", "bad"),
    "even": ("no difference", ""),
    "unclear": ("unclear", ""),
    "few": ("too few prompts", ""),
}


def page(found: Comparison) -> str:
    """Return the page."""
    first, second = found.names
    pictures = "".join(figure(title, _said(title, found), as_svg(draw, found)) for title, draw in charts(found).items())
    warnings = "".join(f"<li>{escape(warning)}</li>" for warning in found.warnings)
    main = (
        f"<p><b>{escape(found.verdict.text)}</b></p>{_tiles(found)}"
        f"<h2>In pictures</h2><div class='charts'>{pictures}</div>"
        + "".join(_level(level, found) for level in found.levels)
        + (f"<h2>To know before you rely on it</h2><ul>{warnings}</ul>" if warnings else "")
        + f"<h2>How to read this</h2>{_notes(found)}"
    )
    return document(f"Draftlane, {first} and {second}", f"{second} against {first}", _under(found), main)


def picture(found: Comparison, path: Path) -> None:
    """Write all charts as one picture.

    Raises:
        OSError: the file cannot be written.
    """
    as_png(charts(found), found, path, f"Draftlane, {found.names[1]} against {found.names[0]}: {found.verdict.text}")


def _under(found: Comparison) -> str:
    said = []
    for key, name in (("urls", ""), ("files", ""), ("models", "models"), ("temperature", "temperature")):
        value = found.settings.get(key)
        if value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            said.append(f"{name} {shown}".strip())
    return f"{'; '.join(said)}. Ended: {found.ended.text}."


def _tiles(found: Comparison) -> str:
    tiles = []
    for level in found.levels:
        whole = level.overall
        at = "" if len(found.levels) == 1 else f" at {level.concurrency}"
        for title, ratio in (
            ("Decode time per token", whole.ratios.tpot),
            ("End to end", whole.ratios.e2e),
            ("Cost per token", whole.ratios.cost),
        ):
            if ratio is not None:
                tiles.append((title + at, ratio, f"{whole.prompts} prompts"))
    return (
        "<div class='tiles'>"
        + "".join(
            f"<dl class='tile'><dt>{escape(title)}</dt><dd class='{_state(ratio)}'>× {ratio.value:.2f}</dd>"
            f"<dd>{escape(_range(ratio))}{escape(under)}</dd></dl>"
            for title, ratio, under in tiles
        )
        + "</div>"
    )


def _range(found: Estimate) -> str:
    return "" if found.low is None or found.high is None else f"{found.low:.2f} to {found.high:.2f}; "


def _state(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return ""
    return "good" if found.high < 1 else "bad" if found.low > 1 else ""


def _level(level: Level, found: Comparison) -> str:
    at = "" if level.concurrency is None else f" at concurrency {level.concurrency}"
    lines = [
        [title, *(_cell(getattr(pool, field), scale) for pool in level.overall.pools), _ratio(level.overall, ratio)]
        for field, ratio, title, scale in ROWS
        if any(getattr(pool, field) is not None for pool in level.overall.pools)
    ]
    parts = [
        f"<h2>All together{escape(at)}</h2><p>{escape(level.verdict.text)}</p>",
        _table(["", *found.names, "ratio"], lines),
    ]
    if level.categories:
        head = [
            "Category",
            "Prompts",
            f"TPOT {found.names[0]}, ms",
            f"{found.names[1]}, ms",
            "TPOT ratio",
            "E2E ratio",
            "Cost ratio",
            "Tokens per step",
            "",
        ]
        parts.append(f"<h2>By category{escape(at)}</h2>" + _table(head, [_row(each) for each in level.categories]))
    if level.equality is not None:
        parts.append(f"<p>{escape(equality_text(level.equality, found.names))}</p>")
    return "".join(parts)


def _row(each: Group) -> list[Cell]:
    return [
        each.category,
        str(each.prompts),
        *(_cell(pool.tpot_seconds, 1e3) for pool in each.pools),
        _ratio(each, "tpot"),
        _ratio(each, "e2e"),
        _ratio(each, "cost"),
        _cell(each.pools[1].acceptance_length, 1.0),
        _FINDINGS[each.finding],
    ]


def _ratio(group: Group, name: str) -> str:
    found = getattr(group.ratios, name) if name else None
    return "–" if found is None else interval(found)


def _cell(found: Estimate | None, scale: float) -> str:
    if found is None:
        return "–"
    ends = (
        ""
        if found.low is None or found.high is None
        else f" ({number(scale * found.low)}–{number(scale * found.high)})"
    )
    return number(scale * found.value) + ends


def _table(head: Sequence[str], lines: Sequence[Sequence[Cell]]) -> str:
    heads = "".join(f"<th scope='col'>{escape(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(_td(cell) for cell in line)}</tr>" for line in lines)
    return f"<div class='wide'><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"


def _td(cell: Cell) -> str:
    text, state = cell if isinstance(cell, tuple) else (cell, "")
    return f"<td class='{state}'>{escape(text)}</td>"


def _said(title: str, found: Comparison) -> str:
    """Return a chart in words, for those who do not see it."""
    if "ratio" not in title:
        return f"{title}; the tables below hold the figures"
    of = "e2e" if title.startswith("End") else "tpot"
    return f"{title}: " + "; ".join(f"{name} {_ratio(group, of)}" for name, group in rows(found))


def _notes(found: Comparison) -> str:
    paired = (
        f"Pairs: {found.pairing}." if found.pairing else "The calls have no pairs: each pool's prompts are drawn apart."
    )
    return (
        "<p><b>Ratios</b> are the second pool's over the first's: below 1 it takes less. <b>TPOT</b> is"
        " (E2E − TTFT)/(tokens − 1), weighted by tokens. The verdict is carried by decode time per token, which lengths of"
        " answers do not move, and never against a proven loss end to end.</p>"
        f"<p><b>Intervals</b> hold with 95 % confidence for prompts like these, by a bootstrap over prompts. {escape(paired)}"
        " What judges categories beside each other is wider, so that one in twenty does not win by chance.</p>"
        "<p><b>Output tokens per second</b> are of the whole pool at the load it had. <b>Cost</b> is the time that calls held a"
        " slot, at its price, as if all slots were busy.</p>"
    )
