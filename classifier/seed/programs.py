"""Requests whose exact answers a program knows: conversions, sequences, edits, extractions, and answers nobody can foresee.

Every task is a function of a random generator that returns a prompt and its answer. Phrasings vary, so that a model
learns the task and not the sentence. Nothing here is taken from another collection.

It is long because it is a collection: no task needs another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable

Task = Callable[[random.Random], tuple[str, str]]
NAMES = "Ada Bram Chloe Dmitri Elif Farid Greta Hugo Ines Jonas Kaito Lena Mateo Nadia Otto Priya Quinn Rosa Sven Tomasz".split()
CITIES = "Porto Kraków Lyon Osaka Bergen Turin Quito Leipzig Ghent Split Tartu Bilbao".split()
GOODS = "lamp chair kettle monitor notebook jacket backpack router blender tent".split()
FIELDS = "status owner region priority weight colour stock rating".split()
WORDS = "amber basil cedar delta ember fjord grove harbor island jasmine kernel lagoon meadow nectar orchid pebble quartz river saffron timber".split()
SENTENCES = (
    "The ferry leaves at noon and returns before dark.",
    "Our server room is too warm in the summer months.",
    "She packed three apples, a map and a torch.",
    "The committee postponed its vote until next Tuesday.",
    "A small leak can sink a very large ship.",
    "He repaired the clock that had been silent for years.",
    "The new release fixes two bugs in the export dialog.",
    "Rain delayed the match, but nobody left the stadium.",
    "The library opens an hour later on public holidays.",
    "Please store the samples below four degrees.",
)


def records(r: random.Random, low: int = 3, high: int = 7) -> list[dict[str, object]]:
    """A few rows of a small invented table."""
    extra = r.sample(FIELDS, 2)
    return [
        {"id": r.randint(100, 999), "name": r.choice(NAMES), "city": r.choice(CITIES), "item": r.choice(GOODS)}
        | {extra[0]: r.choice(WORDS), extra[1]: r.randint(1, 90)}
        for _ in range(r.randint(low, high))
    ]


def as_csv(rows: list[dict[str, object]], sep: str = ",") -> str:
    """Rows as delimited text with a header."""
    return "\n".join([sep.join(rows[0]), *(sep.join(str(v) for v in row.values()) for row in rows)])


def as_yaml(rows: list[dict[str, object]]) -> str:
    """Rows as a YAML list of mappings."""
    return "\n".join(
        f"{'- ' if i == 0 else '  '}{key}: {value}" for row in rows for i, (key, value) in enumerate(row.items())
    )


def as_xml(rows: list[dict[str, object]]) -> str:
    """Rows as indented XML."""
    body = "\n".join(
        "  <row>\n" + "\n".join(f"    <{k}>{v}</{k}>" for k, v in row.items()) + "\n  </row>" for row in rows
    )
    return f"<rows>\n{body}\n</rows>"


def as_html(rows: list[dict[str, object]]) -> str:
    """Rows as an HTML table."""
    head = "".join(f"<th>{key}</th>" for key in rows[0])
    body = "\n".join("  <tr>" + "".join(f"<td>{v}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table>\n  <tr>{head}</tr>\n{body}\n</table>"


def as_markdown(rows: list[dict[str, object]]) -> str:
    """Rows as a Markdown table."""
    lines = ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0]), *lines])


_FORMS: dict[str, Callable[[list[dict[str, object]]], str]] = {
    "CSV": as_csv,
    "TSV": lambda rows: as_csv(rows, "\t"),
    "YAML": as_yaml,
    "XML": as_xml,
    "an HTML table": as_html,
    "a Markdown table": as_markdown,
    "JSON": lambda rows: json.dumps(rows, ensure_ascii=False),
    "indented JSON": lambda rows: json.dumps(rows, indent=2, ensure_ascii=False),
}


def convert(r: random.Random) -> tuple[str, str]:
    """One notation into another."""
    rows = records(r)
    source, target = r.sample(list(_FORMS), 2)
    ask = r.choice(
        [
            f"Turn this into {target}:",
            f"Here is some {source.removeprefix('a ').removeprefix('an ')}. I need it as {target}, nothing else.",
            f"Reformat the following as {target}.",
            f"Please transform the data below into {target} without commentary.",
        ]
    )
    return f"{ask}\n\n{_FORMS[source](rows)}", _FORMS[target](rows)


# What the first number is, given a start and a count; how the pattern is called; and the number at place i.
_PATTERNS: list[tuple[Callable[[int, int], int], str, Callable[[int, int], int]]] = [
    (lambda start, _: 2 * start, "even numbers starting at", lambda first, i: first + 2 * i),
    (lambda start, n: start + n, "numbers counting down from", lambda first, i: first - i),
    (lambda start, _: start % 9 + 1, "perfect squares starting with the square of", lambda first, i: (first + i) ** 2),
    (lambda start, _: start, "multiples of seven beginning with 7 times", lambda first, i: 7 * (first + i)),
    (lambda start, _: 2 * start, "odd numbers after", lambda first, i: first + 1 + 2 * i),
]


def sequence(r: random.Random) -> tuple[str, str]:
    """Numbers in a pattern."""
    start, n = r.randint(1, 60), r.randint(20, 70)
    base, kind, make = r.choice(_PATTERNS)
    first = base(start, n)
    joiner, how = r.choice([("\n", "one per line"), (" ", "separated by spaces"), (", ", "comma-separated")])
    return f"Give me {n} {kind} {first}, {how}.", joiner.join(str(make(first, i)) for i in range(n))


def formula_lines(r: random.Random) -> tuple[str, str]:
    """A table of one calculation, a line each."""
    step, n = r.randint(2, 15), r.randint(12, 25)
    return r.choice(
        [
            (
                f"Show a conversion table from kilometres to metres for 1 to {n} km, one per line.",
                "\n".join(f"{i} km = {i * 1000} m" for i in range(1, n + 1)),
            ),
            (
                f"List the running total when adding {step} each time, {n} steps, written like '2 + 2 = 4'.",
                "\n".join(f"{i * step} + {step} = {(i + 1) * step}" for i in range(1, n + 1)),
            ),
            (
                f"Print the squares of 1 to {n} in the form n^2 = m.",
                "\n".join(f"{i}^2 = {i * i}" for i in range(1, n + 1)),
            ),
        ]
    )


def repeat(r: random.Random) -> tuple[str, str]:
    """The same thing many times."""
    line, n = r.choice(SENTENCES), r.randint(6, 14)
    ask = r.choice(
        [
            f"Write the following {n} times, numbered:\n{line}",
            f"As a punishment, write out '{line}' {n} times with line numbers.",
        ]
    )
    return ask, "\n".join(f"{i}. {line}" for i in range(1, n + 1))


def sort_lines(r: random.Random) -> tuple[str, str]:
    """A list in another order."""
    words = r.sample(WORDS, r.randint(8, 16))
    how, out = r.choice(
        [
            ("alphabetically", sorted(words)),
            ("in reverse order", words[::-1]),
            ("by length, shortest first", sorted(words, key=len)),
        ]
    )
    return f"Sort this list {how} and print one word per line:\n" + ", ".join(words), "\n".join(out)


def echo(r: random.Random) -> tuple[str, str]:
    """The material again, or nearly."""
    text = " ".join(r.sample(SENTENCES, r.randint(3, 6)))
    word = r.choice([w for w in text.split() if len(w) > 4 and w.isalpha()])
    ask, out = r.choice(
        [
            ("Repeat the text below word for word.", text),
            (
                f"Replace every '{word}' by '{word.upper()}' in this text and give me the whole text back.",
                text.replace(word, word.upper()),
            ),
            ("Put each sentence of this paragraph on a line of its own.", text.replace(". ", ".\n")),
            ("Rewrite this paragraph in capital letters.", text.upper()),
            ("Turn the sentences into a bulleted list.", "- " + text.replace(". ", ".\n- ")),
        ]
    )
    return f"{ask}\n\n{text}", out


def fix_typos(r: random.Random) -> tuple[str, str]:
    """A text with slips, and the text without."""
    text = " ".join(r.sample(SENTENCES, r.randint(2, 5)))
    words = text.split()
    for _ in range(max(2, len(words) // 8)):
        i = r.randrange(len(words))
        if len(words[i]) > 4:
            words[i] = words[i][0] + words[i][2] + words[i][1] + words[i][3:]
    ask = r.choice(
        [
            "Correct the spelling mistakes:",
            "Proofread this and return the corrected version only.",
            "Fix the typos in my text please",
        ]
    )
    return f"{ask}\n{' '.join(words)}", text


def extract_json(r: random.Random) -> tuple[str, str]:
    """Facts out of a sentence into JSON."""
    row = {"name": r.choice(NAMES), "city": r.choice(CITIES), "item": r.choice(GOODS), "quantity": r.randint(2, 40)}
    text = f"Hello, this is {row['name']} writing from {row['city']}. We would like to order {row['quantity']} units of the {row['item']} by Friday."
    ask = r.choice(
        [
            "Extract name, city, item and quantity as JSON.",
            "Return a JSON object with the keys name, city, item, quantity for this message.",
        ]
    )
    return f"{ask}\n\n{text}", json.dumps(row, ensure_ascii=False)


def extract_list(r: random.Random) -> tuple[str, str]:
    """All addresses of one kind in a text."""
    people = r.sample(NAMES, r.randint(3, 6))
    mails = [f"{p.lower()}.{r.choice(WORDS)}@example.org" for p in people]
    text = " ".join(f"{p} ({m}) will join from {r.choice(CITIES)}." for p, m in zip(people, mails, strict=True))
    return f"List all e-mail addresses that occur in this text, one per line.\n\n{text}", "\n".join(mails)


def sql(r: random.Random) -> tuple[str, str]:
    """Statements for a small schema."""
    table, columns = r.choice(GOODS) + "s", r.sample(FIELDS, r.randint(3, 6))
    if r.random() < 0.5:
        lines = ",\n".join(
            f"    {c} {r.choice(['TEXT NOT NULL', 'INTEGER', 'NUMERIC(10, 2)', 'TIMESTAMP'])}" for c in columns
        )
        return (
            f"Write a PostgreSQL CREATE TABLE statement for {table} with an id and these columns: {', '.join(columns)}.",
            f"CREATE TABLE {table} (\n    id SERIAL PRIMARY KEY,\n{lines}\n);",
        )
    limit = r.randint(5, 50)
    return (
        f"SQL query: the {limit} rows of {table} with the highest {columns[0]} where {columns[1]} is not null; show {columns[0]} and {columns[1]}.",
        f"SELECT {columns[0]}, {columns[1]}\nFROM {table}\nWHERE {columns[1]} IS NOT NULL\nORDER BY {columns[0]} DESC\nLIMIT {limit};",
    )


def boilerplate(r: random.Random) -> tuple[str, str]:
    """A class with its fields, in one of several languages."""
    name, fields = r.choice(GOODS).title(), r.sample(FIELDS, r.randint(3, 6))
    python = f"from dataclasses import dataclass\n\n\n@dataclass\nclass {name}:\n" + "\n".join(
        f"    {f}: str" for f in fields
    )
    script = f"export interface {name} {{\n" + "\n".join(f"  {f}: string;" for f in fields) + "\n}"
    java = f"public class {name} {{\n" + "\n".join(f"    private String {f};" for f in fields)
    java += "\n" + "".join(
        f"\n    public String get{f.title()}() {{\n        return {f};\n    }}\n\n    public void set{f.title()}(String {f}) {{\n        this.{f} = {f};\n    }}\n"
        for f in fields
    )
    language, code = r.choice(
        [
            ("a Python dataclass", python),
            ("a TypeScript interface", script),
            ("a Java class with getters and setters", java + "}"),
        ]
    )
    return f"Write {language} called {name} with the string fields {', '.join(fields)}.", code


def code_edit(r: random.Random) -> tuple[str, str]:
    """A function changed in one place and returned whole."""
    a, b, c = r.sample(WORDS, 3)
    lines = [
        f"def total_{a}({b}s, limit=10):",
        f"    {c} = 0",
        f"    for {b} in {b}s:",
        f"        if {b}.price > limit:",
        "            continue",
    ]
    lines += [f"        {c} += {b}.price * {b}.count", f"    return {c}"]
    code = "\n".join(lines)
    ask, out = r.choice(
        [
            (f"Rename {c} to result in this function and show the full code.", code.replace(c, "result")),
            ("Change the default limit to 25 and give me the complete function.", code.replace("limit=10", "limit=25")),
            (
                "Add type hints to the signature, keep everything else.",
                code.replace(f"({b}s, limit=10)", f"({b}s: list[Item], limit: int = 10) -> float"),
            ),
            (
                "Translate this Python to JavaScript.",
                f"function total_{a}({b}s, limit = 10) {{\n  let {c} = 0;\n  for (const {b} of {b}s) {{\n    if ({b}.price > limit) {{\n      continue;\n    }}\n    {c} += {b}.price * {b}.count;\n  }}\n  return {c};\n}}",
            ),
        ]
    )
    return f"{ask}\n\n```python\n{code}\n```", f"```{'javascript' if 'JavaScript' in ask else 'python'}\n{out}\n```"


def settings(r: random.Random) -> tuple[str, str]:
    """A configuration file from a list of wishes."""
    pairs = [
        (k, r.choice([r.randint(1, 9000), r.choice(WORDS), "true", "false"])) for k in r.sample(FIELDS, r.randint(3, 6))
    ]
    wish = ", ".join(f"{k} = {v}" for k, v in pairs)
    form, text = r.choice(
        [
            ("a .env file", "\n".join(f"{k.upper()}={v}" for k, v in pairs)),
            (
                "a TOML section [service]",
                "[service]\n"
                + "\n".join(
                    f"{k} = {v if not str(v).isalpha() or v in ('true', 'false') else json.dumps(v)}" for k, v in pairs
                ),
            ),
            ("a YAML file under the key service", "service:\n" + "\n".join(f"  {k}: {v}" for k, v in pairs)),
        ]
    )
    return f"Produce {form} with these settings: {wish}.", text


def label_lines(r: random.Random) -> tuple[str, str]:
    """A class for each of several lines."""
    items = [(w, "plant") for w in ("oak", "fern", "tulip", "moss")] + [
        (w, "animal") for w in ("otter", "heron", "badger", "newt")
    ]
    chosen = r.sample(items, r.randint(4, 8))
    return (
        "Label each as plant or animal, in the form word: label.\n" + "\n".join(w for w, _ in chosen),
        "\n".join(f"{w}: {kind}" for w, kind in chosen),
    )


def one_word(r: random.Random) -> tuple[str, str]:
    """An answer of a token or two."""
    a, b = r.randint(11, 99), r.randint(11, 99)
    row = r.choice(SENTENCES)
    return r.choice(
        [
            (f"What is {a} times {b}? Reply with the number only.", str(a * b)),
            (f"Is {a} a multiple of {b % 7 + 2}? Answer yes or no.", "Yes" if a % (b % 7 + 2) == 0 else "No"),
            (f"How many words are in this sentence? Just the number.\n{row}", str(len(row.split()))),
            (f"Classify the sentiment of this review as positive, negative or neutral: '{row}'", "neutral"),
        ]
    )


def unforeseeable(r: random.Random) -> tuple[str, str]:
    """Answers without a pattern: digests, passwords, encodings, ciphers."""
    text = " ".join(r.sample(WORDS, 4))
    rot = text.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm"))
    alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789!$%&?"
    return r.choice(
        [
            (f"Encode in Base64: {text}", base64.b64encode(text.encode()).decode()),
            (f"Compute the SHA-256 of the string '{text}'.", hashlib.sha256(text.encode()).hexdigest()),
            (f"Apply ROT13 to: {text}", rot),
            (
                "Generate eight strong random passwords of 16 characters.",
                "\n".join("".join(r.choice(alphabet) for _ in range(16)) for _ in range(8)),
            ),
            (f"Write '{text}' backwards, letter by letter.", text[::-1]),
            (
                "Roll a die 40 times and list the results separated by spaces.",
                " ".join(str(r.randint(1, 6)) for _ in range(40)),
            ),
            (
                "Make up ten random hexadecimal colour codes.",
                "\n".join(f"#{r.randrange(1 << 24):06x}" for _ in range(10)),
            ),
        ]
    )


def calendar(r: random.Random) -> tuple[str, str]:
    """Dates and days in order."""
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    month, start, n = r.choice([("March", 0), ("July", 2), ("October", 3)]), r.randint(0, 6), r.randint(10, 28)
    lines = [f"{month[0]} {i + 1}: {days[(start + i) % 7]}" for i in range(n)]
    return (
        f"If {month[0]} 1 is a {days[start]}, list the weekday of each date up to {month[0]} {n}, one per line.",
        "\n".join(lines),
    )


TASKS: dict[str, Task] = {
    task.__name__: task
    for task in (
        *(convert, sequence, formula_lines, repeat, sort_lines, echo, fix_typos, extract_json, extract_list, sql),
        *(boilerplate, code_edit, settings, label_lines, one_word, unforeseeable, calendar),
    )
}
