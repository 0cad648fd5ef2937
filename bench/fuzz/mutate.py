"""Changing known inputs at random, repeatably: what fuzzing falls back to where no guided fuzzer is installed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
_WORDS: Final = (
    b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\0", b"\n", b"\r\n", b"\n\n", b"data: ", b"event: error\n", b"[DONE]",
    b"null", b"true", b"1e999", b"-1", b"9" * 40, b"\xff", b"\xef\xbb\xbf", b"\\ud800", b'"model":"demo"', b'"usage":{}',
    b'"stream":true', b'"stream_options":{"include_usage":false}', b'"content":""', b"%2e%2e", b"/../",
)  # fmt: skip
_LONGEST: Final = 20_000


def corpus(target: str) -> list[bytes]:
    """Return the inputs that are kept for a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def mutations(target: str, seed: int) -> Iterator[bytes]:
    """Yield the corpus and then changes of it, without end; the same seed yields the same."""
    chance = random.Random(f"{target} {seed}")
    known = corpus(target)
    yield from known
    while True:
        data = bytearray(chance.choice(known))
        for _ in range(chance.randint(1, 6)):
            _change(data, known, chance)
        yield bytes(data[:_LONGEST])


def _change(data: bytearray, known: list[bytes], chance: random.Random) -> None:
    """Make one change: of a byte, a word, a part, or with a part of another input."""
    at = chance.randrange(len(data) + 1)
    to = min(len(data), at + chance.randint(0, 12))
    kind = chance.randrange(6)
    if kind == 0 and at < len(data):
        data[at] = chance.randrange(256)
    elif kind == 1:
        data[at:at] = chance.choice(_WORDS)
    elif kind == 2:
        del data[at:to]
    elif kind == 3:
        data[at:at] = data[at:to] * chance.randint(1, 50)
    elif kind == 4:
        other = chance.choice(known)
        start = chance.randrange(len(other) + 1)
        data[at:to] = other[start : start + chance.randint(1, 200)]
    else:
        data[at:to] = chance.choice(_WORDS)
