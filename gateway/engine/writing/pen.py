"""The target's hand: every choice of words goes through a `Pen`, which is where temperature acts.

A choice has logits that follow from prompt and seed alone. At temperature 0 the best one is taken, so a text is a function
of (prompt, seed); above it the softmax of those logits is really sampled, after top-k, top-p and min-p have cut it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

_RIVALS = 5  # alternatives weighed at one choice; the tail beyond them carries next to no probability
_HABIT = 0.7  # share of words that follow from the word before, in every text alike: what a draft can have learned
_LEAD = 0.8  # logits by which the best word leads; at temperature 1 it is then taken in about half of all cases
_ZIPF = 1.35  # how strongly common words are preferred: index = n·u^zipf


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose among the target's candidates."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Pen:
    """Chooses words: `context` is the model's opinion, `chance` the dice that temperature throws."""

    __slots__ = ("_chance", "_context", "_last", "_rivals", "_used", "sampling")

    def __init__(self, context: Random, chance: Random, sampling: Sampling) -> None:
        self._context = context
        self._rivals = Random(context.random())
        self._chance = chance
        self._used: dict[str, int] = {}
        self._last = ""
        self.sampling = sampling

    def pick(self, options: Sequence[str]) -> str:
        """Return one of `options`, which come commonest first; rivals are close, so temperature changes much."""
        best = self._draw(options)
        if self.sampling.temperature > 0:
            rivals = [options[int(len(options) * self._rivals.random() ** _ZIPF)] for _ in range(_RIVALS)]
            best = self._sample((best, *rivals), self._gaps())
        self._last = best
        return best

    def prefer(self, first: str, *others: str, margin: float = 6.0) -> str:
        """Return `first`, unless temperature makes one of `others` come through, each `margin` logits behind."""
        if self.sampling.temperature <= 0 or not others:
            return first
        return self._sample((first, *others), [0.0] + [-margin] * len(others))

    def roll(self, count: int) -> int:
        """Return a number in [0, count) that follows from the context alone."""
        return int(self._context.random() * count)

    def chance(self, share: float) -> bool:
        """Return whether the context takes a turn that it takes in `share` of all cases."""
        return self._context.random() < share

    def _draw(self, options: Sequence[str]) -> str:
        """Return the word that habit puts after the last one, or one that this context calls for."""
        point = self._context.random()
        habit = point < _HABIT
        point = crc32(self._last.encode()) / 2**32 if habit else (point - _HABIT) / (1 - _HABIT)
        return options[int(len(options) * point**_ZIPF)]

    def _gaps(self) -> list[float]:
        logits, level = [0.0], -_LEAD
        for _ in range(_RIVALS):
            level -= self._rivals.expovariate(4.0)
            logits.append(level)
        return logits

    def _sample(self, options: Sequence[str], logits: list[float]) -> str:
        sampling = self.sampling
        if sampling.presence_penalty or sampling.frequency_penalty:
            logits = [one - self._penalty(option) for option, one in zip(options, logits, strict=True)]
        peak = max(logits)
        weights = [math.exp((one - peak) / sampling.temperature) for one in logits]
        order = sorted(range(len(options)), key=weights.__getitem__, reverse=True)
        kept = _cut(order, weights, sampling)
        point = self._chance.random() * sum(weights[index] for index in kept)
        for index in kept:
            point -= weights[index]
            if point <= 0:
                break
        self._used[options[index]] = self._used.get(options[index], 0) + 1
        return options[index]

    def _penalty(self, option: str) -> float:
        times = self._used.get(option, 0)
        return self.sampling.frequency_penalty * times + self.sampling.presence_penalty * (times > 0)


def _cut(order: list[int], weights: list[float], sampling: Sampling) -> list[int]:
    kept = order[: sampling.top_k] if sampling.top_k > 0 else order
    if sampling.min_p > 0:
        floor = sampling.min_p * weights[order[0]]
        kept = [index for index in kept if weights[index] >= floor]
    if sampling.top_p < 1:
        budget = sampling.top_p * sum(weights[index] for index in kept)
        for position, index in enumerate(kept):
            budget -= weights[index]
            if budget <= 0:
                return kept[: position + 1]
    return kept
