"""Sequences and records: counting, repetition, JSON, CSV, YAML, SQL and Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.engine.pen import Pen


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `first` to `last` in steps of `step`; `last` None goes on for ever."""

    first: int
    last: int | None
    step: int

    def __iter__(self) -> Iterator[int]:
        value = self.first
        while self.last is None or (value <= self.last if self.step > 0 else value >= self.last):
            yield value
            value += self.step


def count(pen: Pen, numbers: Range, separator: str) -> Iterator[str]:
    """Yield the numbers, with `separator` between them."""
    before = ""
    for value in numbers:
        yield f"{before}{value}"
        before = pen.prefer(separator, "\n", " ", margin=7.0)


def repeat(pen: Pen, text: str, times: int | None, separator: str) -> Iterator[str]:
    """Yield `text` again and again, `times` times or for ever."""
    done = 0
    while times is None or done < times:
        yield (separator if done else "") + text
        done += 1
