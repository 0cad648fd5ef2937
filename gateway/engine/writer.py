"""The embedded target: reads a conversation and writes the kind of text it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, repeat as forever

from gateway.engine import listing
from gateway.engine.pen import Pen
from gateway.engine.prose import Prose

_COUNT = re.compile(r"\bcount(?:ing)?\b|\bnumbers?\s+(?:from\s+)?\d+\s+(?:to|through|-)\s+\d+", re.I)
_RANGE = re.compile(r"(-?\d+)\s*(?:to|through|until|up to|\.\.\.?|-|–)\s*(-?\d+)", re.I)
_REPEAT = re.compile(r"\brepeat\b|\bagain and again\b|\bover and over\b", re.I)
_QUOTED = re.compile(r"[\"“'`]([^\"”'`\n]{1,200})[\"”'`]")
_TIMES = re.compile(r"(\d+)\s+times", re.I)
_TOPIC = re.compile(r"[a-z]{4,}", re.I)


def write(request: str, pen: Pen) -> Iterator[str]:
    """Yield the answer to `request`, the conversation's last word, piece by piece."""
    if _REPEAT.search(request):
        quoted = _QUOTED.search(request)
        times = _TIMES.search(request)
        return listing.repeat(pen, quoted[1] if quoted else request.strip(), int(times[1]) if times else 50, "\n")
    if _COUNT.search(request):
        found = _RANGE.search(request)
        first, last = (int(found[1]), int(found[2])) if found else (1, 100)
        return listing.count(pen, listing.Range(first, last, 1 if last >= first else -1), ", ")
    topics = [word.lower() for word in _TOPIC.findall(request)][-12:]
    prose = Prose(pen, topics, tense="past")
    paragraphs = 3 + pen.roll(3)
    return chain.from_iterable(
        chain(["\n\n"] if index else [], prose.paragraph()) for index, _ in zip(range(paragraphs), forever(None))
    )
