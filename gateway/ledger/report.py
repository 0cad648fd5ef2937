"""What the ledger says, per day, tenant, model or pool: rows for people, spreadsheets and programs. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.ledger.cost import per_million
from gateway.ledger.totals import MEASURES, totalled
from gateway.store.contract import Row

Format = Literal["table", "csv", "json"]
FORMATS: Final[tuple[Format, ...]] = ("table", "csv", "json")
FIELDS: Final = ("day", "tenant", "model", "pool")

_ANSWERED: Final = "outcome_ok"
# Heading of the table, measure or derived figure, how it is written.
_COLUMNS: Final = (
    ("calls", "calls", ",.0f"),
    ("ok", _ANSWERED, ",.0f"),
    ("prompt tok", "prompt_tokens", ",.0f"),
    ("output tok", "completion_tokens", ",.0f"),
    ("estimated", "estimated_tokens", ",.0f"),
    ("slot s", "slot_seconds", ",.1f"),
    ("cost $", "cost_usd", ",.4f"),
    ("$/1M out", "usd_per_million_output_tokens", ",.3f"),
    ("all baseline $", "counterfactual_baseline_usd", ",.4f"),
    ("all speculative $", "counterfactual_speculative_usd", ",.4f"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The ledger of a span of days, added up by `by` (some of day, tenant, model, pool)."""

    first: str
    last: str
    by: tuple[str, ...]
    rows: tuple[Row, ...]
    total: Row

    @classmethod
    def of(cls, rows: Sequence[Row], *, first: str, last: str, by: Iterable[str] = FIELDS) -> Report:
        """Add rows up; `by` is put into the order day, tenant, model, pool."""
        fields = tuple(name for name in FIELDS if name in frozenset(by))
        nothing = Row("", "", "", "", {})
        return cls(first, last, fields, tuple(totalled(rows, fields)), next(iter(totalled(rows, ())), nothing))

    def render(self, form: Format) -> str:
        """Return the report as text in one of `FORMATS`, without a line end."""
        return {"table": self._table, "csv": self._csv, "json": self._json}[form]()

    def _json(self) -> str:
        rows = [self._named(row) | figures(row.measures) for row in self.rows]
        whole = {
            "from": self.first,
            "to": self.last,
            "by": self.by,
            "rows": rows,
            "total": figures(self.total.measures),
        }
        return json.dumps(whole)

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        heads = [*self.by, *figures({})]
        writer.writerow(heads)
        for row in self.rows:
            amounts = figures(row.measures).values()
            writer.writerow([*self._named(row).values(), *("" if amount is None else amount for amount in amounts)])
        return text.getvalue().rstrip("\n")

    def _table(self) -> str:
        heads = [*self.by, *(head for head, _, _ in _COLUMNS)]
        cells = [[*(value or "-" for value in self._named(row).values()), *_cells(row.measures)] for row in self.rows]
        total = ["total", *[""] * (len(self.by) - 1)] if self.by else []
        cells.append([*total, *_cells(self.total.measures)])
        widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
        justify = [str.ljust] * len(self.by) + [str.rjust] * len(_COLUMNS)
        return "\n".join(
            "  ".join(put(cell, width) for put, cell, width in zip(justify, line, widths, strict=True)).rstrip()
            for line in (heads, *cells)
        )

    def _named(self, row: Row) -> dict[str, str]:
        named = dict(zip(FIELDS, row.key, strict=True))
        return {name: named[name] for name in self.by}


def figures(measures: Mapping[str, float]) -> dict[str, float | None]:
    """Return every measure, 0 where nothing was counted, and what follows from them; None where one cannot divide."""
    cost, output = measures.get("cost_usd", 0.0), measures.get("completion_tokens", 0.0)
    saved = {}
    for policy in ("baseline", "speculative"):
        elsewhere = measures.get(f"counterfactual_{policy}_usd")
        saved[f"saved_against_{policy}_usd"] = None if elsewhere is None else elsewhere - cost
    counted = {name: measures.get(name, 0.0) for name in MEASURES}
    return {**counted, "usd_per_million_output_tokens": per_million(cost, output), **saved}


def _cells(measures: Mapping[str, float]) -> list[str]:
    told = figures(measures)
    amounts = [(told[name], form) for _, name, form in _COLUMNS]
    return ["-" if amount is None else format(amount, form) for amount, form in amounts]
