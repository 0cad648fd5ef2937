"""A comparison as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.measure.paired.intervals import Estimate
from gateway.measure.paired.result import Comparison, Equality, Group, Level
from gateway.measure.paired.verdict import interval

ROWS: Final = (  # a pool's figure, its ratio, what it is called, what it is multiplied by
    ("ttft_seconds", "ttft", "TTFT, ms", 1e3),
    ("tpot_seconds", "tpot", "TPOT, ms", 1e3),
    ("e2e_seconds", "e2e", "E2E, ms", 1e3),
    ("output_tokens_per_second", "output_tokens_per_second", "output tokens/s", 1.0),
    ("acceptance_length", "", "tokens per step", 1.0),
    ("usd_per_million_output_tokens", "cost", "$ per 1M output tokens", 1.0),
)
_FINDINGS: Final = {"gain": "gain", "loss": "loss", "even": "no difference", "unclear": "unclear", "few": "too few"}
_MOST: Final = 30  # categories; the JSON has all


def as_text(found: Comparison) -> str:
    """Return the whole comparison, the verdict last."""
    parts = [level_text(level, found.names) for level in found.levels]
    pairing = f"Pairs: {found.pairing}." if found.pairing else "No pairs."
    parts.append(f"{pairing} Intervals: 95 %, over prompts. Ended: {found.ended.text}.")
    parts += [f"Warning: {warning}." for warning in found.warnings]
    parts.append(f"Verdict: {found.verdict.text}")
    return "\n\n".join(parts)


def level_text(level: Level, names: tuple[str, str]) -> str:
    """Return one level's tables."""
    whole = level.overall
    count = f"{whole.pairs} pairs of " if whole.pairs else ""
    at = "" if level.concurrency is None else f"concurrency {level.concurrency}: "
    head = [f"{at}{count}{whole.prompts} prompts", *names, "ratio"]
    rows = [
        [title, *(_cell(getattr(pool, field), scale) for pool in whole.pools), _ratio(whole, ratio)]
        for field, ratio, title, scale in ROWS
        if any(getattr(pool, field) is not None for pool in whole.pools)
    ]
    parts = ["\n".join(table([head, *rows]))]
    if level.categories:
        parts.append("\n".join(table([_head(names), *(_row(each) for each in level.categories[:_MOST])])))
    if level.equality is not None:
        parts.append(equality_text(level.equality, names))
    return "\n\n".join(parts)


def equality_text(found: Equality, names: tuple[str, str]) -> str:
    """Return how often outputs were equal, and where the first ones part."""
    heat = "" if found.temperature is None else f" at temperature {found.temperature:g}"
    told = f"Outputs{heat}: {found.equal} of {found.pairs} pairs are equal"
    again = [f"{name} gave {same} of {of} again" for name, (same, of) in found.repeated.items()]
    told += f" ({'; '.join(again)})." if again else "."
    if (first := found.first) is not None:
        told += f" The first that differ: line {first.line} ({first.id})"
        if first.texts is not None:
            told += (
                f", from character {first.character} on: {names[0]} {first.texts[0]!r}, {names[1]} {first.texts[1]!r}"
            )
        told += "."
    return told


def table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return rows with aligned columns, all but the first to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _head(names: tuple[str, str]) -> list[str]:
    return [
        "category",
        "prompts",
        f"TPOT {names[0]}, ms",
        f"{names[1]}, ms",
        "TPOT ratio",
        "E2E ratio",
        "tokens/step",
        "",
    ]


def _row(each: Group) -> list[str]:
    return [
        each.category,
        str(each.prompts),
        *(_cell(pool.tpot_seconds, 1e3) for pool in each.pools),
        interval(each.ratios.tpot),
        interval(each.ratios.e2e),
        _cell(each.pools[1].acceptance_length, 1.0),
        _FINDINGS[each.finding],
    ]


def _ratio(group: Group, name: str) -> str:
    found = getattr(group.ratios, name) if name else None
    return interval(found) if found is not None else ""


def _cell(found: Estimate | None, scale: float) -> str:
    if found is None:
        return "–"
    ends = (end for end in (found.low, found.high) if end is not None)
    shown = [number(scale * value) for value in (found.value, *ends)]
    return shown[0] if len(shown) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def number(value: float) -> str:
    """Return a figure with three significant digits, whole from a thousand on."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
