"""The draft's own knowledge: n-grams counted in the target's answers to requests that nobody made.

A better draft has read more of them. Training takes a fraction of a second and happens once per quality and process.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from random import Random

from gateway.engine.history import shape_of
from gateway.engine.tokenizer import TOKENIZER
from gateway.engine.writing import Form, Message, write
from gateway.engine.writing.pen import Pen, Sampling

ORDER = 5  # tokens in an n-gram, the predicted one included
_FULL_TOKENS = 60_000
_SEED = 0x0D12AF7
_REQUESTS = (
    "Count from 1 to 200.",
    "Count from 20 to 300 in steps of 5, one number per line.",
    "Write the multiplication table of 7 up to 20.",
    "Generate a JSON array of 30 users with id, name, email and age.",
    "Generate CSV with 30 rows of id, name, city and quantity.",
    "Make a markdown table of 30 products with columns id, product, price and status.",
    "Write 20 SQL inserts for a table called items with id, name, city.",
    "Generate YAML for 20 users with id, name, active.",
    "Write a Python function that merges two sorted lists.",
    "Write a Python function that parses a line of text.",
    "Write a Python class for a queue.",
    "Write a Kubernetes Deployment manifest named web with 3 replicas.",
    "Write an HTML page about tea.",
    "Write an SQL query that counts orders.",
    "Tell a story about a lighthouse.",
    "Write a poem about autumn.",
    "Why do leaves change their colour?",
    "Explain how a bicycle stays upright.",
    "List 10 ideas for a rainy day.",
    "Ann has 4 apples and buys 5 more. How many does she have?",
    "Hello!",
)


class Distilled:
    """The likeliest next token after the last few, numbers blanked out on both sides."""

    def __init__(self, text: list[int]) -> None:
        counts: list[dict[tuple[int, ...], dict[int, int]]] = [
            defaultdict(lambda: defaultdict(int)) for _ in range(ORDER)
        ]
        shapes = [shape_of(token) for token in text]
        for position, shape in enumerate(shapes):
            for length in range(min(position + 1, ORDER)):
                counts[length][tuple(shapes[position - length : position])][shape] += 1
        self._best = [{context: _likeliest(found) for context, found in table.items()} for table in counts]

    def __repr__(self) -> str:
        return f"<Distilled {' '.join(str(len(table)) for table in self._best)}>"

    def after(self, shapes: list[int]) -> tuple[int, int]:
        """Return the likeliest shape after `shapes`, and how many of them it was found by."""
        for length in range(ORDER - 1, 0, -1):
            found = self._best[length].get(tuple(shapes[-length:]))
            if found is not None:
                return found, length
        return self._best[0].get((), TOKENIZER.end), 0


@lru_cache(maxsize=8)
def distil(quality: int) -> Distilled:
    """Return the model of a draft of `quality` in per cent, which decides how much it has read."""
    wanted = _FULL_TOKENS * quality // 100
    text: list[int] = []
    turn = 0
    while len(text) < wanted:
        request = _REQUESTS[turn % len(_REQUESTS)]
        pen = Pen(Random(_SEED + turn), Random(0), Sampling())
        text.extend(TOKENIZER.encode("".join(write((Message("user", request),), Form(), pen))))
        text.append(TOKENIZER.end)
        turn += 1
    return Distilled(text[:wanted])


def _likeliest(counts: dict[int, int]) -> int:
    return max(counts, key=lambda token: (counts[token], -token))
