"""Records as JSON, CSV, YAML, SQL, INI or a Markdown table: invented ones, and conversions of given ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.engine.writing.lexicon import CITIES, COLOURS, FIRST_NAMES, LAST_NAMES, NOUNS, PRODUCTS, STATUSES
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.request import Record, Request, records

Layout = Callable[[Iterable[Record], Request], Iterator[str]]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NAMED = re.compile(r"\b(?:table|called|named|section)\s+(?:called\s+|named\s+)?[`\"\[]?([A-Za-z_]\w*)", re.IGNORECASE)
_THING = re.compile(
    r"\b(user|person|people|product|item|order|server|customer|employee|book|task|event|city|cities)", re.IGNORECASE
)
_DEFAULT_ROWS = 20


def invented(layout: Layout) -> Callable[[Request, Pen], Iterator[str]]:
    """Return a writer of records that nobody has given, in that layout."""

    def write(request: Request, pen: Pen) -> Iterator[str]:
        return layout(_invent(request, pen), request)

    return write


def converted(layout: Layout) -> Callable[[Request, Pen], Iterator[str]]:
    """Return a writer of the records given in the material, in that layout; invents them if there are none."""

    def write(request: Request, pen: Pen) -> Iterator[str]:
        return layout(records(request.material) or _invent(request, pen), request)

    return write


def as_json(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a JSON array of objects, an object a line."""
    del request
    before = "[\n"
    for row in rows:
        fields = ", ".join(f'"{key}": {_json_value(value)}' for key, value in row.items())
        yield f"{before}  {{{fields}}}"
        before = ",\n"
    yield "\n]"


def as_csv(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a header line and a line per record."""
    del request
    for index, row in enumerate(rows):
        if index == 0:
            yield ",".join(row) + "\n"
        yield ",".join(row.values()) + "\n"


def as_table(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a Markdown table."""
    del request
    for index, row in enumerate(rows):
        if index == 0:
            yield f"| {' | '.join(row)} |\n|{'---|' * len(row)}\n"
        yield f"| {' | '.join(row.values())} |\n"


def as_yaml(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a list of mappings."""
    del request
    for row in rows:
        lines = [f"{key}: {value}" for key, value in row.items()]
        yield "- " + "\n  ".join(lines) + "\n"


def as_sql(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield an INSERT statement per record."""
    found = _NAMED.search(request.instruction)
    table = found[1] if found else "items"
    for row in rows:
        values = ", ".join(value if _NUMBER.fullmatch(value) else f"'{value}'" for value in row.values())
        yield f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values});\n"  # noqa: S608 - text to be read, nothing runs it


def as_ini(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a section of settings."""
    found = re.search(r"\[(\w+)\]", request.instruction)
    yield f"[{found[1] if found else 'main'}]\n"
    for row in rows:
        cells = list(row.values())
        yield f"{cells[0].lower()} = {cells[-1]}\n"


def as_list(rows: Iterable[Record], request: Request) -> Iterator[str]:
    """Yield a numbered list."""
    del request
    for index, row in enumerate(rows):
        yield f"{index + 1}. {' - '.join(list(row.values())[1:])}\n"


def _json_value(value: str) -> str:
    return (
        value
        if _NUMBER.fullmatch(value) or value in ("true", "false", "null")
        else json.dumps(value, ensure_ascii=False)
    )


def _invent(request: Request, pen: Pen) -> Iterator[Record]:
    columns = request.columns()
    thing = _THING.search(request.instruction)
    name = thing[1].capitalize() if thing else "Item"
    for number in range(1, request.many(_DEFAULT_ROWS) + 1):
        if columns:
            yield _row(columns, number - 1, pen)
        else:
            yield {
                "id": str(number),
                "name": f"{name} {number}",
                "status": pen.pick(STATUSES),
                "value": str(10 * number),
            }


def _row(columns: Sequence[str], index: int, pen: Pen) -> Record:
    row: Record = {}
    for column in columns:
        row[column] = _value(column.lower(), index, row, pen)
    return row


def _value(column: str, index: int, row: Record, pen: Pen) -> str:
    number = index + 1
    if column in ("id", "number", "no", "index", "n", "rank", "key"):
        return str(number)
    if column in ("square", "squared", "squares"):
        return str(number * number)
    if column in ("cube", "cubed", "cubes"):
        return str(number**3)
    if "email" in column or "mail" in column:
        return f"{row.get('name', 'user' + str(number)).split()[0].lower()}@example.com"
    if "date" in column or "day" in column:
        return f"2024-{1 + index // 28 % 12:02d}-{1 + index % 28:02d}"
    for words, options in _CHOICES:
        if any(word in column for word in words):
            return pen.pick(options)
    if any(word in column for word in ("price", "cost", "amount", "salary", "total")):
        return f"{pen.roll(90) + 10}.{pen.pick(('00', '50', '99'))}"
    if any(word in column for word in ("age", "quantity", "qty", "count", "stock", "score", "year")):
        return str(pen.roll(80) + 18)
    return pen.pick(NOUNS)


_FLAGS = ("true", "true", "true", "false")
_CHOICES: tuple[tuple[tuple[str, ...], Sequence[str]], ...] = (
    (("last", "surname"), LAST_NAMES),
    (("product", "item", "title"), PRODUCTS),
    (("name", "user", "customer", "person", "author"), FIRST_NAMES),
    (("city", "location", "place", "country"), CITIES),
    (("colour", "color"), COLOURS),
    (("status", "state"), STATUSES),
    (("active", "enabled", "done", "verified"), _FLAGS),
)
