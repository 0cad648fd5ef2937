"""A sweep as people read it: the curve as a table per category, the best window of each, and what to be wary of."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.measure.windows.candidate import Candidate
from gateway.measure.windows.result import ALL_WORDS, Best, Figure, Row, Sweep

_HEAD = ("window", "prompts", "tokens/step", "step ms", "ms/token", "met", "goodput tokens/s")


def text(found: Sweep) -> str:
    """Return the whole of it."""
    lines: list[str] = []
    for category in dict.fromkeys(row.category for row in found.windows):
        rows = [row for row in found.windows if row.category == category]
        best = found.best.get(category)
        lines += [category or ALL_WORDS, *_table(rows, best), *_best(best), ""]
    for draft, model in sorted(found.step_model.items()):
        whose = f" of {draft}" if draft else ""
        lines.append(
            f"step time{whose}: {1000 * model.base_seconds:.1f} ms + {1000 * model.per_token_seconds:.2f} ms per drafted token "
            f"({model.source})"
        )
    lines += [f"warning: {warning}" for warning in found.warnings]
    if found.ended is not None:
        lines.append(f"ended early: {found.ended}")
    return "\n".join(lines)


def _table(rows: list[Row], best: Best | None) -> Iterator[str]:
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(_HEAD))]
    marks = ["", *(_mark(row, best) for row in rows)]
    for line, mark in zip(cells, marks, strict=True):
        yield ("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + mark).rstrip()


def _mark(row: Row, best: Best | None) -> str:
    if best is None:
        return ""
    if (row.window, row.draft) == (best.window, best.draft):
        return "  ← best"
    return "  ≈" if str(Candidate(row.window, row.draft or "")) in best.flat_with else ""


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(Candidate(row.window, row.draft or "")),
        str(row.n),
        _told(row.acceptance_length, 1.0, 2),
        _told(row.step_seconds, 1000.0, 1),
        _told(row.tpot_seconds, 1000.0, 1),
        f"{row.met_share:.0%}",
        _told(row.goodput_tokens_per_s, 1.0, 1),
    )


def _told(figure: Figure | None, scale: float, digits: int) -> str:
    if figure is None:
        return "n/a"
    value = f"{figure.value * scale:.{digits}f}"
    if figure.interval is None:
        return value
    return f"{value} [{figure.interval[0] * scale:.{digits}f}, {figure.interval[1] * scale:.{digits}f}]"


def _best(best: Best | None) -> Iterator[str]:
    if best is None:
        return
    chosen = Candidate(best.window, best.draft or "")
    what = "no speculation" if not best.window else f"window {chosen}"
    gain = f", {_told(best.gain_over_baseline, 1.0, 2)} times baseline" if best.gain_over_baseline is not None else ""
    yield f"  best: {what} by {'time per token' if best.by == 'tpot' else 'goodput'}{gain}"
