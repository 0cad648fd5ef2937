"""The tokens of one sequence, indexed by what precedes them: exactly, and with numbers blanked out (their *shape*)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.tokenizer import TOKENIZER

LONG, SHORT, PAIR = 5, 3, 2  # context lengths; vLLM's prompt lookup takes 5 down to 2
_NUMBER, _SPACED_NUMBER = -1, -2
_NEAR = 24  # tokens in which the last number is looked for
_RUN = 4  # pieces of a number that are read together
_SHAPES = {identity: _SPACED_NUMBER if lead else _NUMBER for identity, (lead, _) in TOKENIZER.numbers.items()}


def shape_of(token: int) -> int:
    """Return the token itself, or what stands for any number, with or without a space before it."""
    return _SHAPES.get(token, token)


@dataclass(frozen=True, slots=True)
class Found:
    """Where the present context occurred before: the position after it, and how good the match is."""

    position: int
    length: int
    exact: bool


class History:
    """Tokens and their index; tokens that are only guessed are pushed without being indexed, and dropped again."""

    __slots__ = ("_aligned", "_before", "_exact", "_lines", "shapes", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.shapes: list[int] = []
        self._exact: dict[tuple[int, ...], int] = {}
        self._aligned: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        self._lines: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, token: int) -> None:
        """Append a token that is certain, and index it under its contexts."""
        tokens, shapes, position = self.tokens, self.shapes, len(self.tokens)
        before = -1
        if position >= PAIR:
            self._exact[tokens[-2], tokens[-1]] = position
        if position >= SHORT:
            self._exact[tokens[-3], tokens[-2], tokens[-1]] = position
            self._aligned[shapes[-3], shapes[-2], shapes[-1]] = position
        if position >= LONG:
            self._exact[tuple(tokens[-LONG:])] = position
            key = tuple(shapes[-LONG:])
            before = self._aligned.get(key, -1)
            self._aligned[key] = position
        self._before.append(before)
        self.push(token)
        if token in TOKENIZER.line_ends:
            self._lines.append(position + 1)

    def push(self, token: int) -> None:
        """Append a guess."""
        self.tokens.append(token)
        self.shapes.append(_SHAPES.get(token, token))

    def drop(self, length: int) -> None:
        """Forget the guesses beyond `length`."""
        del self.tokens[length:], self.shapes[length:]

    def long_match(self, order: int) -> Found | None:
        """Return the last occurrence of the last `LONG` tokens, exact before aligned."""
        if order < LONG:
            return None
        position = self._exact.get(tuple(self.tokens[-LONG:]))
        if position is not None:
            return Found(position, LONG, True)
        position = self._aligned.get(tuple(self.shapes[-LONG:]))
        return None if position is None else Found(position, LONG, False)

    def short_match(self, order: int) -> Found | None:
        """Return the last occurrence of the last `SHORT` tokens, exact before aligned."""
        if order < SHORT:
            return None
        position = self._exact.get(tuple(self.tokens[-SHORT:]))
        if position is not None:
            return Found(position, SHORT, True)
        position = self._aligned.get(tuple(self.shapes[-SHORT:]))
        return None if position is None else Found(position, SHORT, False)

    def pair_match(self, order: int) -> Found | None:
        """Return the last exact occurrence of the last two tokens."""
        position = self._exact.get(tuple(self.tokens[-PAIR:])) if order >= PAIR else None
        return None if position is None else Found(position, PAIR, True)

    def line_start(self) -> int:
        """Return where the line before this one starts, if a new one has just begun, else -1."""
        return self._lines[-2] if len(self._lines) > 1 and self._lines[-1] == len(self.tokens) else -1

    def carried(self, position: int) -> tuple[list[int], int]:
        """Return the number that continues the one at `position`, and how many tokens that one has.

        It follows from the differences to the numbers before it, which are looked for at the same distance again, else
        where the same shape of context occurred.
        """
        lead, digits, length = self._run(position)
        second = self._earlier(position, len(self.tokens) - position)
        value, change = int(digits), 1
        if second >= 0:
            difference = value - int(self._run(second)[1])
            third = self._earlier(second, position - second)
            change = (
                2 * difference - (int(self._run(second)[1]) - int(self._run(third)[1])) if third >= 0 else difference
            )
        following = max(0, value + change)
        padded = len(digits) > 1 and digits[0] == "0"  # days and months keep their zeros
        text = lead + (str(following).zfill(len(digits)) if padded else str(following))
        return TOKENIZER.encode(text), length

    def next_number(self, shape: int) -> list[int]:
        """Return the number after the last one, in the shape asked for; 1 where there is none near."""
        for position in range(len(self.tokens) - 1, max(-1, len(self.tokens) - _NEAR), -1):
            if self.shapes[position] < 0:
                start = position
                while self.shapes[start] == _NUMBER and start > 0 and self.shapes[start - 1] < 0:
                    start -= 1
                return TOKENIZER.encode((" " if shape == _SPACED_NUMBER else "") + str(int(self._run(start)[1]) + 1))
        return TOKENIZER.encode(" 1" if shape == _SPACED_NUMBER else "1")

    def _run(self, position: int) -> tuple[str, str, int]:
        """Return space, digits and number of tokens of the number that starts at `position`."""
        lead, digits = TOKENIZER.numbers[self.tokens[position]]
        end = position + 1
        while end < len(self.tokens) and self.shapes[end] == _NUMBER and end - position < _RUN:
            digits += TOKENIZER.numbers[self.tokens[end]][1]
            end += 1
        return lead, digits, end - position

    def _earlier(self, position: int, distance: int) -> int:
        shape, shapes = self.shapes[position], self.shapes
        back = position - distance
        if back >= 1 and shapes[back] == shape and shapes[back - 1] == shapes[position - 1]:
            return back
        before = self._before[position] if position < len(self._before) else -1
        return before if before >= 0 and shapes[before] == shape else -1
