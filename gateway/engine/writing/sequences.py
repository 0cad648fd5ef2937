"""Sequences: counting, tables of multiplication, repetition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as naturals

from gateway.engine.writing.pen import Pen
from gateway.engine.writing.request import Request

_RANGE = re.compile(r"(-?\d+)\s*(?:to|through|until|up to|and|\.\.\.?|-|–)\s*(-?\d+)", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\s+(-?\d+)", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d+)\s+numbers", re.IGNORECASE)
_UP_TO = re.compile(r"\b(?:up\s+)?to\s+(\d+)|\bfirst\s+(\d+)", re.IGNORECASE)
_STEPS = re.compile(r"\b(?:steps? of|by|every)\s+(\d+)", re.IGNORECASE)
_TIMES = re.compile(r"(\d+)\s*(?:times|x\b)", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“'`]([^\"”`\n]{1,300}?)[\"”'`](?!\w)")
_AFTER_COLON = re.compile(r":\s*(\S[^\n]*)")
_TABLE = re.compile(r"(?:table (?:of|for)\s+(\d+)|(\d+)\s*times table)", re.IGNORECASE)
_LINES = re.compile(r"\bone (?:number |item |product )?per line|\bnew line|\beach (?:on|line)", re.IGNORECASE)
_SPOKEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `first` to `last`, both included, in steps of `step`."""

    first: int
    last: int
    step: int

    @classmethod
    def of(cls, request: Request) -> Range:
        """Return the range that an instruction names; 1 to 100 when it names none."""
        text = request.instruction
        found, start, end, steps = (one.search(text) for one in (_RANGE, _FROM, _UP_TO, _STEPS))
        step = max(1, int(steps[1])) if steps else 1
        if found is not None:
            first, last = int(found[1]), int(found[2])
        else:
            first = int(start[1]) if start else 1
            numbers = _NUMBERS.search(text)
            many = int(numbers[1]) if numbers else 0
            last = first + step * (many - 1) if many else int(end[1] or end[2]) if end else 100
        return cls(first, last, step if last >= first else -step)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + (1 if self.step > 0 else -1), self.step))


def counting(request: Request, pen: Pen) -> Iterator[str]:
    """Yield the numbers asked for, separated as asked."""
    separator = "\n" if _LINES.search(request.instruction) else ", "
    before = ""
    for value in Range.of(request):
        yield f"{before}{value}"
        before = pen.prefer(separator, "\n", " ", margin=7.0)


def figures(request: Request, pen: Pen) -> Iterator[str]:
    """Yield even or odd numbers, squares, cubes or the Fibonacci numbers."""
    text = request.instruction.lower()
    many = request.many(0) or _first_number(text, 30)
    rule: Callable[[int], int] = next((rule for word, rule in _RULES.items() if word in text), _RULES["even"])
    for index in range(many):
        yield pen.prefer(", ", "\n", margin=7.0) * (index > 0) + str(rule(index))


def multiplication(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a multiplication table, a product a line."""
    found = _TABLE.search(request.instruction)
    factor = int(found[1] or found[2]) if found else 7
    end = _UP_TO.search(request.instruction)
    sign = next((one for one in (" x ", " * ", " × ") if one in request.instruction), " x ")
    for index in range(1, (int(end[1] or end[2]) if end else 20) + 1):
        yield f"{factor}{sign}{index} = {factor * index}{pen.prefer(chr(10), '; ', margin=7.0)}"


def repetition(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a text again and again."""
    times = _TIMES.search(request.instruction)
    text = _repeated(request)
    for index in range(int(times[1]) if times else 40):
        yield (pen.prefer("\n", " ", margin=7.0) if index else "") + text


def alphabet(request: Request, pen: Pen) -> Iterator[str]:
    """Yield the letters or the numbers in words."""
    words = _SPOKEN if "word" in request.instruction.lower() else tuple(map(chr, range(ord("A"), ord("Z") + 1)))
    for index, word in enumerate(words):
        yield pen.prefer(", ", "\n", margin=7.0) * (index > 0) + word


def _repeated(request: Request) -> str:
    quoted = _QUOTED.search(request.instruction)
    if quoted is not None:
        return quoted[1]
    if request.material:
        return request.material.strip()
    after = _AFTER_COLON.search(request.instruction)
    return after[1].strip() if after else request.instruction.strip()


def _first_number(text: str, default: int) -> int:
    found = re.search(r"\d+", text)
    return max(1, int(found[0])) if found else default


def _fibonacci(index: int) -> int:
    before, value = 0, 1
    for _ in range(index):
        before, value = value, before + value
    return before


def _prime(index: int) -> int:
    primes = (value for value in naturals(2) if all(value % factor for factor in range(2, int(value**0.5) + 1)))
    for _ in range(index):
        next(primes)
    return next(primes)


_RULES: dict[str, Callable[[int], int]] = {
    "odd": lambda index: 2 * index + 1,
    "square": lambda index: (index + 1) ** 2,
    "cube": lambda index: (index + 1) ** 3,
    "fibonacci": _fibonacci,
    "prime": _prime,
    "power": lambda index: 2 ** min(index, 60),
    "even": lambda index: 2 * (index + 1),
}
