"""Requests for what everybody's references list, for tool calls, for parsing, and for sums worked out in words.

The standard library knows the facts (status codes, characters, errors, keywords), so every answer is exact.
"""

from __future__ import annotations

import errno
import html
import html.entities
import json
import keyword
import os
import random
import string
import unicodedata
from collections.abc import Callable
from http import HTTPStatus

from classifier.seed.programs import CITIES, GOODS, NAMES, SENTENCES, WORDS, Task

_NATO = "Alfa Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo Lima Mike November Oscar Papa Quebec Romeo Sierra Tango Uniform Victor Whiskey Xray Yankee Zulu".split()
_ELEMENTS = "Hydrogen H,Helium He,Lithium Li,Beryllium Be,Boron B,Carbon C,Nitrogen N,Oxygen O,Fluorine F,Neon Ne,Sodium Na,Magnesium Mg,Aluminium Al,Silicon Si,Phosphorus P,Sulfur S,Chlorine Cl,Argon Ar,Potassium K,Calcium Ca".split(
    ","
)
_CAPITALS = "Austria Vienna,Belgium Brussels,Denmark Copenhagen,Finland Helsinki,France Paris,Germany Berlin,Greece Athens,Hungary Budapest,Ireland Dublin,Italy Rome,Netherlands Amsterdam,Norway Oslo,Poland Warsaw,Portugal Lisbon,Spain Madrid,Sweden Stockholm".split(
    ","
)


def _statuses() -> str:
    return "\n".join(f"{s.value} {s.phrase}" for s in HTTPStatus if s.value >= 400)


def recite(r: random.Random) -> tuple[str, str]:
    """A well-known list. Long because it holds the lists."""
    n = r.randint(8, 16)
    pairs = r.sample(_CAPITALS, n)
    options: list[tuple[str, str]] = [
        ("List the HTTP client and server error status codes with their phrases.", _statuses()),
        ("Print the NATO phonetic alphabet, one letter per line.", "\n".join(f"{w[0]} - {w}" for w in _NATO)),
        (
            f"What are the first {n} chemical elements and their symbols?",
            "\n".join(f"{i}. {e.split()[0]} ({e.split()[1]})" for i, e in enumerate(_ELEMENTS[:n], 1)),
        ),
        (
            f"Give the capitals of {', '.join(p.split()[0] for p in pairs)}.",
            "\n".join(f"- {p.split()[0]}: {p.split()[1]}" for p in pairs),
        ),
        ("List all keywords of Python.", "\n".join(keyword.kwlist)),
        ("ASCII codes of the capital letters please", "\n".join(f"{c} = {ord(c)}" for c in string.ascii_uppercase)),
        (
            "Show the Unicode names of the lower-case Greek letters.",
            "\n".join(f"{chr(c)} {unicodedata.name(chr(c))}" for c in range(0x3B1, 0x3C1)),
        ),
        (
            f"What do the errno values 1 to {n} mean on Linux?",
            "\n".join(f"{i} {errno.errorcode[i]}: {os.strerror(i)}" for i in range(1, n + 1)),
        ),
        (
            f"Which HTML entities stand for these characters: {' '.join('&<>©®€£¥')}?",
            "\n".join(
                f"{c} {html.escape(c) if c in '&<>' else '&' + html.entities.codepoint2name[ord(c)] + ';'}"
                for c in "&<>©®€£¥"
            ),
        ),
        ("Write the alphabet backwards separated by commas.", ", ".join(string.ascii_lowercase[::-1])),
        (f"Convert the numbers 1 to {n} to Roman numerals.", "\n".join(f"{i} = {_roman(i)}" for i in range(1, n + 1))),
        (f"Write the numbers from 1 to {n} in binary.", "\n".join(f"{i}: {i:b}" for i in range(1, n + 1))),
        (
            "What are the months of the year and how many days does each have?",
            "\n".join(
                f"{m}: {d} days"
                for m, d in zip(
                    "January February March April May June July August September October November December".split(),
                    (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
                    strict=True,
                )
            ),
        ),
    ]
    return r.choice(options)


def _roman(n: int) -> str:
    out = ""
    for value, sign in ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while n >= value:
            out, n = out + sign, n - value
    return out


_TOOLS: dict[str, tuple[str, dict[str, Callable[[random.Random], object]], str]] = {
    "get_forecast": (
        "Weather forecast for a city",
        {"city": lambda r: r.choice(CITIES), "days": lambda r: r.randint(1, 7)},
        "What will the weather be like in {city} over the next {days} days?",
    ),
    "create_order": (
        "Order goods for a customer",
        {
            "customer": lambda r: r.choice(NAMES),
            "item": lambda r: r.choice(GOODS),
            "quantity": lambda r: r.randint(1, 20),
        },
        "Order {quantity} pieces of the {item} for {customer}.",
    ),
    "send_message": (
        "Send a text message",
        {"recipient": lambda r: r.choice(NAMES), "text": lambda r: r.choice(SENTENCES)},
        "Tell {recipient}: {text}",
    ),
    "book_train": (
        "Book a train ticket",
        {
            "origin": lambda r: r.choice(CITIES),
            "destination": lambda r: r.choice(CITIES),
            "date": lambda r: f"2025-0{r.randint(1, 9)}-{r.randint(10, 28)}",
        },
        "I need a train from {origin} to {destination} on {date}.",
    ),
    "set_thermostat": (
        "Set the temperature of a room",
        {"room": lambda r: r.choice(["kitchen", "office", "bedroom", "hall"]), "celsius": lambda r: r.randint(16, 24)},
        "Please make the {room} {celsius} degrees.",
    ),
    "search_catalogue": (
        "Full text search in the catalogue",
        {"query": lambda r: " ".join(r.sample(WORDS, 2)), "limit": lambda r: r.randint(3, 30)},
        "Find at most {limit} entries about {query}.",
    ),
}


def tool_call(r: random.Random) -> tuple[str, str, list[dict[str, object]]]:
    """One or several calls of functions on offer, as JSON."""
    offered = r.sample(list(_TOOLS), r.randint(1, 4))
    asked = [r.choice(offered) for _ in range(r.choice([1, 1, 2, 3]))]
    said, calls = [], []
    for name in asked:
        arguments = {key: make(r) for key, make in _TOOLS[name][1].items()}
        said.append(_TOOLS[name][2].format(**arguments))
        calls.append({"name": name, "arguments": arguments})
    return " ".join(said), json.dumps(calls, ensure_ascii=False), [_tool(name) for name in offered]


def _tool(name: str) -> dict[str, object]:
    description, arguments, _ = _TOOLS[name]
    properties = {
        key: {"type": "integer" if key in ("days", "quantity", "celsius", "limit") else "string"} for key in arguments
    }
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def parse_log(r: random.Random) -> tuple[str, str]:
    """Log lines into JSON objects."""
    rows = [
        {
            "time": f"{r.randint(10, 23)}:{r.randint(10, 59)}:{r.randint(10, 59)}",
            "level": r.choice(["INFO", "WARN", "ERROR"]),
            "module": r.choice(WORDS),
            "message": r.choice(SENTENCES),
        }
        for _ in range(r.randint(2, 5))
    ]
    text = "\n".join(f"{x['time']} {x['level']} [{x['module']}] {x['message']}" for x in rows)
    return (
        f"Parse these log lines into JSON, one object per line with time, level, module, message.\n\n{text}",
        "\n".join(json.dumps(x) for x in rows),
    )


def invent_rows(r: random.Random) -> tuple[str, str]:
    """Made-up sample rows."""
    n = r.randint(6, 14)
    rows = [(i, r.choice(NAMES), r.choice(CITIES), r.randint(18, 80)) for i in range(1, n + 1)]
    return r.choice(
        [
            (
                f"Generate {n} rows of fake CSV test data with id, name, city and age.",
                "id,name,city,age\n" + "\n".join(",".join(map(str, row)) for row in rows),
            ),
            (
                f"Make up {n} test users as a JSON array (id, name, city, age).",
                json.dumps([dict(zip(("id", "name", "city", "age"), row, strict=True)) for row in rows]),
            ),
            (
                f"Insert {n} sample people into table users(id, name, city, age). SQL only.",
                "INSERT INTO users (id, name, city, age) VALUES\n"
                + ",\n".join(f"({i}, '{a}', '{b}', {c})" for i, a, b, c in rows)
                + ";",
            ),
        ]
    )


def word_problem(r: random.Random) -> tuple[str, str]:
    """A sum told as a story, worked out step by step."""
    who, thing = r.choice(NAMES), r.choice(["apples", "stamps", "marbles", "books", "tickets"])
    a, b, c, price = r.randint(5, 40), r.randint(2, 9), r.randint(2, 30), r.randint(2, 12)
    return r.choice(
        [
            (
                f"{who} has {a} boxes with {b} {thing} each and gives away {c} {thing}. How many {thing} are left?",
                f"{who} starts with {a} * {b} = {a * b} {thing}.\nAfter giving away {c}, there are {a * b} - {c} = {a * b - c} {thing} left.\nThe answer is {a * b - c}.",
            ),
            (
                f"A shop sells {thing} at ${price} each. {who} buys {a} on Monday and {c} on Tuesday. How much does {who} spend in total?",
                f"On Monday {who} spends {a} * ${price} = ${a * price}.\nOn Tuesday {who} spends {c} * ${price} = ${c * price}.\nIn total {who} spends ${a * price} + ${c * price} = ${(a + c) * price}.\nThe answer is {(a + c) * price}.",
            ),
            (
                f"{who} reads {b} pages of a {a * b}-page book every evening. How many evenings does the book last? Explain.",
                f"The book has {a * b} pages and {who} reads {b} pages per evening.\nThe number of evenings is {a * b} / {b} = {a}.\nThe answer is {a}.",
            ),
        ]
    )


def lookup(r: random.Random) -> tuple[str, str]:
    """A question whose answer stands in the text given."""
    facts = [(r.choice(NAMES), r.choice(CITIES), r.choice(GOODS), r.randint(2, 60)) for _ in range(r.randint(3, 6))]
    text = " ".join(f"{n} from {c} bought {q} units of the {g}." for n, c, g, q in facts)
    n, c, g, q = r.choice(facts)
    return r.choice(
        [
            (
                f"{text}\n\nHow many units of the {g} were bought in {c}? Answer in a full sentence.",
                f"{n} from {c} bought {q} units of the {g}.",
            ),
            (f"Answer from the context only.\nContext: {text}\nQuestion: Who bought {q} units?\nAnswer:", n),
            (
                f"List the buyers in this text with their cities.\n\n{text}",
                "\n".join(f"- {a} ({b})" for a, b, _, _ in facts),
            ),
        ]
    )


RECALL: dict[str, Task] = {task.__name__: task for task in (recite, parse_log, invent_rows, word_problem, lookup)}
