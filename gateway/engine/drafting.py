"""The draft: proposes the next tokens from what prompt and output have shown so far and from a small distilled n-gram model.

Like a prompt-lookup drafter it copies what followed the last occurrence of the present context; unlike one it also aligns
*shapes* (the context with its numbers blanked out) and carries number sequences on. What neither finds comes from n-grams
distilled out of the target's own answers to other requests. Nothing here looks at the target while a request runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from gateway.engine.tokenizer import TOKENIZER

_LONG = 5  # a context this long is followed blindly to the end of the window
_SHORT = 3
_PAIR = 2
_NUMBER, _SPACED_NUMBER = -1, -2
_SHAPES = {identity: _SPACED_NUMBER if lead else _NUMBER for identity, (lead, _, _) in TOKENIZER.numbers.items()}
_Source = tuple[int, ...]  # where to copy from: the latest aligned position first, then the ones before it


class Backoff(Protocol):
    """What is asked when the context itself suggests nothing."""

    def after(self, before: int, last: int) -> int:
        """Return the likeliest token after these two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How good a draft is: the longest context it matches, whether it carries numbers on, and its share of wild guesses."""

    order: int
    carries: bool
    noise: float

    @classmethod
    def of(cls, quality: float) -> Skill:
        """Return the skill of a draft of `quality` in [0, 1]; at 0 every guess is wild."""
        order = 1 + round(quality * (_LONG - 1))
        return cls(order=order, carries=quality >= 0.5, noise=min(1.0, 1.05 * (1 - quality) ** 1.5))


class Draft:
    """One sequence's draft; `observe` what was accepted, then `propose`."""

    def __init__(self, backoff: Backoff | None, skill: Skill, chance: Random) -> None:
        self._backoff = backoff
        self._skill = skill
        self._chance = chance
        self._tokens: list[int] = []
        self._shapes: list[int] = []
        self._exact: dict[tuple[int, ...], int] = {}
        self._aligned: dict[tuple[int, ...], _Source] = {}
        self._followed: _Source = ()
        self._follow_start = 0

    def observe(self, tokens: list[int]) -> None:
        """Learn `tokens`, the next ones of prompt or output."""
        known, shapes, exact, aligned = self._tokens, self._shapes, self._exact, self._aligned
        for token in tokens:
            position = len(known)
            if position >= _PAIR:
                exact[tuple(known[-_PAIR:])] = position
            if position >= _SHORT:
                exact[tuple(known[-_SHORT:])] = position
                key = tuple(shapes[-_SHORT:])
                aligned[key] = (position, *aligned.get(key, ())[:2])
            if position >= _LONG:
                exact[tuple(known[-_LONG:])] = position
                key = tuple(shapes[-_LONG:])
                aligned[key] = (position, *aligned.get(key, ())[:2])
            known.append(token)
            shapes.append(_SHAPES.get(token, token))

    def propose(self, window: int) -> list[int]:
        """Return up to `window` tokens; a drafter without a back-off model stops where it finds nothing."""
        known, shapes = self._tokens, self._shapes
        start = len(known)
        source, strong = self._resume(start)
        for _ in range(window):
            if not (source and strong):
                source, strong = self._look_up(source)
            token = self._next(source)
            if token is None:
                break
            if self._skill.noise and self._chance.random() < self._skill.noise:
                token = self._chance.randrange(259, TOKENIZER.size)
            known.append(token)
            shapes.append(_SHAPES.get(token, token))
            source = tuple(position + 1 for position in source)
        proposed = known[start:]
        del known[start:], shapes[start:]
        self._followed = tuple(position - len(proposed) for position in source)
        self._follow_start = start
        return proposed

    def _resume(self, start: int) -> tuple[_Source, bool]:
        """Return where copying would go on had the target only replaced a token of what was copied."""
        moved = start - self._follow_start
        return tuple(position + moved for position in self._followed if position + moved < start), False

    def _look_up(self, resumed: _Source) -> tuple[_Source, bool]:
        known, shapes, order = self._tokens, self._shapes, self._skill.order
        if order >= _LONG:
            found = self._exact.get(tuple(known[-_LONG:]))
            if found is not None:
                return (found,), True
            aligned = self._aligned.get(tuple(shapes[-_LONG:]))
            if aligned is not None:
                return aligned, True
        if order >= _SHORT:
            found = self._exact.get(tuple(known[-_SHORT:]))
            if found is not None:
                return (found,), False
            aligned = self._aligned.get(tuple(shapes[-_SHORT:]))
            if aligned is not None:
                return aligned, False
        if resumed:
            return resumed, False
        found = self._exact.get(tuple(known[-_PAIR:])) if order >= _PAIR else None
        return (() if found is None else (found,)), False

    def _next(self, source: _Source) -> int | None:
        known = self._tokens
        if source and source[0] < len(known):
            token = known[source[0]]
            if len(source) > 1 and self._skill.carries and token in TOKENIZER.numbers:
                return self._carry(token, source)
            return token
        if self._backoff is None or len(known) < _PAIR:
            return None
        return self._backoff.after(known[-2], known[-1])

    def _carry(self, token: int, source: _Source) -> int:
        """Return the number that continues those at `source` by constant first or second difference, else a copy."""
        numbers, known = TOKENIZER.numbers, self._tokens
        found = [numbers.get(known[position]) for position in source]
        lead, value, width = numbers[token]
        if found[1] is None:
            return token
        first = value - found[1][1]
        second = first - (found[1][1] - found[2][1]) if len(found) > 2 and found[2] is not None else 0
        following = value + first + second
        padded = width > len(str(value)) or value == 0 < first and width > 1
        text = f"{lead}{following:0{width}d}" if padded else f"{lead}{following}"
        identity = TOKENIZER.id_of(text) if following >= 0 else None
        return token if identity is None else identity
