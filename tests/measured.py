"""Measured requests that tests make themselves: a few kinds whose acceptance follows from their words, with noise."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[str, float, float]] = {
    "lists": ("Count from {a} to {b} and print only the numbers separated by commas", 6.0, 200.0),
    "edits": (
        "Rename the variable x{a} to y{b} and return the whole code:\n```python\nx{a} = {b}\nprint(x{a})\n```",
        5.0,
        60.0,
    ),
    "chat": ("Why do you think people {w} when they {v} in the {u}?", 2.0, 300.0),
    "stories": ("Write a story about a {w} who met a {v} at the {u} {a}", 1.5, 350.0),
    "facts": ("Which {w} is the largest {v} of {u}? Answer in one word", 1.2, 4.0),
}
WORDS = "river engine poem doctor window garden winter letter bridge teacher market forest island candle mirror".split()


def rows(count: int = 120, *, seed: int = 1, kinds: tuple[str, ...] = tuple(KINDS)) -> list[dict[str, Any]]:
    """`count` rows of each kind, every kind a source of its own, some prompts answered twice."""
    r, found = random.Random(seed), []
    for kind in kinds:
        template, length, tokens = KINDS[kind]
        for i in range(count):
            w, v, u = r.sample(WORDS, 3)
            text = template.format(a=r.randint(1, 9000), b=r.randint(1, 9000), w=w, v=v, u=u)
            answers = ("one", "two")[: 2 if i % 10 == 0 else 1]
            found += [_row(kind, target, text, length * r.lognormvariate(0.0, 0.15), tokens, r) for target in answers]
    return found


def _row(kind: str, target: str, text: str, length: float, tokens: float, r: random.Random) -> dict[str, Any]:
    length = round(min(8.0, max(1.0, length)), 4)
    return {
        "id": f"{kind}-{r.getrandbits(32):08x}",
        "source": kind,
        "category": kind,
        "target": target,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "prompt_tokens": 40,
        "output_tokens": max(1, int(tokens * r.uniform(0.7, 1.3))),
        "acceptance_length": {"draft": {"7": length}, "ngram": {"7": round(1 + (length - 1) / 3, 4)}},
    }


def write(directory: Path, found: list[dict[str, Any]]) -> Path:
    """Write rows as one file per source."""
    directory.mkdir(parents=True, exist_ok=True)
    for source in sorted({row["source"] for row in found}):
        lines = [json.dumps(row) for row in found if row["source"] == source]
        (directory / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory
