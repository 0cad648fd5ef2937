"""The draft: proposes the next tokens from what prompt and output have shown so far and from a small distilled n-gram model.

Like a prompt-lookup drafter it copies what followed the last occurrence of the present context. Unlike one it stays with the
copied passage across small differences, remembers a replacement that it has seen and makes it again, carries numbers on,
and hands out the cells of given data in order. Nothing here looks at the target while a request runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateway.engine.distilled import Distilled
from gateway.engine.history import LONG, SHORT, History, shape_of
from gateway.engine.material import Material, is_content
from gateway.engine.tokenizer import TOKENIZER

_LOOKBACK = (
    8192  # tokens of the prompt that are read: a small model's context, and what bounds the cost of a long prompt
)
_GAP = 10  # tokens that a passage may differ by before it is given up
_EDITS = 8  # replacements remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How good a draft is: the longest context it matches, whether it carries numbers on, and its share of wild guesses."""

    order: int
    carries: bool
    noise: float

    @classmethod
    def of(cls, quality: float) -> Skill:
        """Return the skill of a draft of `quality` in [0, 1]; at 0 every guess is wild."""
        return cls(
            order=1 + round(quality * (LONG - 1)), carries=quality >= 0.5, noise=min(1.0, 1.05 * (1 - quality) ** 1.5)
        )


class Draft:
    """One sequence's draft: `observe` what was accepted, then `propose`."""

    def __init__(self, prompt: Sequence[int], backoff: Distilled | None, skill: Skill, chance: Random) -> None:
        self._backoff = backoff
        self._skill = skill
        self._chance = chance
        self._history = History()
        prompt = prompt[-_LOOKBACK:]
        for token in prompt:
            self._history.extend(token)
        self._prompt = len(prompt)
        self._material = Material(prompt)
        self._copied: dict[
            int, tuple[int, int]
        ] = {}  # output position of a copied cell → its tokens, cells from the last
        self._cell = -1
        self._source = -1  # the passage that is being followed: the position of its next token
        self._gap: list[int] = []  # what was written instead of it since the two parted
        self._edits: dict[tuple[int, ...], tuple[int, ...]] = {}

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were accepted."""
        for token in tokens:
            self._map(token)
            self._follow(token)
            self._history.extend(token)

    def propose(self, window: int) -> list[int]:
        """Return up to `window` tokens; without a distilled model it stops where the context suggests nothing."""
        history, start = self._history, len(self._history)
        source, strong = self._start()
        cells, queue = 0, list[int]()
        for _ in range(window):
            if not queue:
                if not strong or source >= len(history):
                    source, strong = self._look_up(source)
                queue, advance, passed = self._next(source, cells)
                cells += passed
                source = source + advance if source >= 0 else source
            if not queue:
                break
            token = queue.pop(0)
            if self._skill.noise and self._chance.random() < self._skill.noise:
                token = self._chance.randrange(259, TOKENIZER.size)
            history.push(token)
        proposed = history.tokens[start:]
        history.drop(start)
        return proposed

    # --- what was accepted ---

    def _map(self, token: int) -> None:
        """Note whether an output token copies a cell of the prompt."""
        position = len(self._history)
        if not is_content(token):
            self._cell = -1
            if token in TOKENIZER.line_ends:
                self._material.new_line()
        elif ahead := self._material.take(token):
            self._cell = position
            self._copied[position] = (1, ahead)
        elif self._cell >= 0:
            length, ahead = self._copied[self._cell]
            self._copied[self._cell] = (length + 1, ahead)

    def _follow(self, token: int) -> None:
        """Keep up with the passage that is being followed, across a gap if need be; learn what fills the gap."""
        history = self._history
        if self._source >= 0:
            expected = history.shapes[self._source]
            if not self._gap and expected == shape_of(token):
                self._source += 1
                return
            if self._rejoin(shape_of(token)):
                return
            self._gap.append(token)
            if len(self._gap) <= _GAP:
                return
            self._source, self._gap = -1, []
        found = history.long_match(self._skill.order)
        if found is not None and history.shapes[found.position] == shape_of(token):
            self._source, self._gap = found.position + 1, []

    def _rejoin(self, shape: int) -> bool:
        shapes, start = self._history.shapes, self._source
        for position in range(start, min(start + _GAP, len(shapes))):
            if shapes[position] == shape and (self._gap or position > start):
                passed = tuple(self._history.tokens[start:position])
                if passed and self._gap and start < self._prompt:
                    self._edits[passed] = tuple(self._gap)
                    if len(self._edits) > _EDITS:
                        del self._edits[next(iter(self._edits))]
                self._source, self._gap = position + 1, []
                return True
        return False

    # --- what to propose ---

    def _start(self) -> tuple[int, bool]:
        """Return where to copy from at first, and whether to trust it for longer than a token."""
        if self._source >= 0 and not self._gap:
            return self._source, True
        if self._source >= 0:
            return self._source + len(self._gap), False
        return -1, False

    def _look_up(self, fallback: int) -> tuple[int, bool]:
        """Return where the present context suggests to copy from, and whether for longer than a token."""
        history, order = self._history, self._skill.order
        found = history.long_match(order)
        if found is not None:
            return found.position, True
        if self._known(LONG - 1):
            return -1, False
        found = history.short_match(order)
        if found is not None:
            return found.position, False
        if 0 <= fallback < len(history):
            return fallback, False
        if order >= LONG and (start := history.line_start()) >= self._prompt:
            return start, True
        if self._known(SHORT - 1):
            return -1, False
        found = history.pair_match(order)
        return (-1, False) if found is None else (found.position, False)

    def _known(self, length: int) -> bool:
        return self._backoff is not None and self._backoff.after(self._history.shapes)[1] >= length

    def _next(self, source: int, cells: int) -> tuple[list[int], int, int]:
        """Return the tokens to propose, how many of the source they stand for, and how many cells they pass."""
        tokens = self._history.tokens
        if not 0 <= source < len(tokens):
            return self._from_model(), 0, 0
        for passed, instead in self._edits.items():
            if tokens[source] == passed[0] and tuple(tokens[source : source + len(passed)]) == passed:
                return list(instead), len(passed), 0
        if source in self._copied:
            length, ahead = self._copied[source]
            cell = self._material.cell(cells + ahead, tokens[source])
            if cell:
                return cell, length, ahead
        if tokens[source] in TOKENIZER.numbers and source >= self._prompt and self._skill.carries:
            following, length = self._history.carried(source)
            return following, length, 0
        return [tokens[source]], 1, 0

    def _from_model(self) -> list[int]:
        """Return the distilled model's choice; where that is any number, the one after the last number."""
        if self._backoff is None:
            return []
        shape, _ = self._backoff.after(self._history.shapes)
        return [shape] if shape >= 0 else self._history.next_number(shape)
