"""Log-probabilities for clients that ask for them, and the likeliest other tokens.

They come from the distilled n-grams, as the embedded target has no logits over a vocabulary: a token that these expect is
likely, any other is less so, and the exact figure follows from the context. Both kinds of engine say the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from gateway.engine.distilled import distil
from gateway.engine.history import shape_of
from gateway.engine.tokenizer import TOKENIZER

_OTHERS = tuple(
    token for word in " the| a|,|.| and| of| to| in| is| that|\n| for| with| it| on| as| at| by| be| this| I" .split("|")
    for token in TOKENIZER.encode(word)[:1]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Likely:
    """One output token with its log-probability, and the likeliest tokens at its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def likelihoods(tokens: Sequence[int], start: int, top: int) -> list[Likely]:
    """Return the likelihoods of `tokens[start:]`, each with `top` alternatives (the token itself among them)."""
    model, found = distil(100), []
    shapes = [shape_of(token) for token in tokens]
    for position in range(start, len(tokens)):
        token = tokens[position]
        expected, length = model.after(shapes[max(0, position - 4) : position])
        noise = crc32(repr(tokens[max(0, position - 2) : position + 1]).encode()) / 2**32
        share = 0.5 + 0.12 * length * noise if expected == shapes[position] else 0.05 + 0.4 * noise
        found.append(Likely(token, math.log(share), _top(token, share, expected, top)))
    return found


def _top(token: int, share: float, expected: int, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    others = [one for one in dict.fromkeys((expected, *_OTHERS)) if one not in (token, -1, -2)]
    ranked = [(token, share)]
    left = 1 - share
    for other in others[: count - 1]:
        ranked.append((other, left / 2))
        left /= 2
    return tuple((one, math.log(part)) for one, part in sorted(ranked, key=lambda pair: -pair[1]))
