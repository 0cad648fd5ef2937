"""Discounted sums that several processes can add up in any order.

Time is cut into *grid* blocks of one half-life h. An observation at time t enters a sum with weight 2^(t/h − grid), between
1 and 2, and the sum is worth 2^(grid − now/h) of its face value. Moving a sum to a later grid multiplies it by a power of
two, which loses nothing, so the order in which sums meet does not matter, and what several processes have learned adds up
to what one process would have learned from everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, ldexp

from gateway.routing.prior import STEPS_PER_SAMPLE

Sums = tuple[float, float, float, float]


class Evidence:
    """Sums on one clock, all of the same weights, face value at `grid`.

    `weight` is effective samples, `tokens` is weight × observed acceptance length, `model` is weight × what was expected,
    `calls` is how many long calls would have taught as much.
    """

    __slots__ = ("calls", "grid", "model", "tokens", "weight")

    def __init__(self, grid: int = 0) -> None:
        self.grid = grid
        self.weight = 0.0
        self.tokens = 0.0
        self.model = 0.0
        self.calls = 0.0

    def __repr__(self) -> str:
        mean = self.tokens / self.weight if self.weight else 0.0
        return f"<Evidence weight={self.weight:.3g} m={mean:.3g} grid={self.grid}>"

    @property
    def sums(self) -> Sums:
        """The four sums at face value."""
        return (self.weight, self.tokens, self.model, self.calls)

    def add(self, grid: int, sums: Sequence[float]) -> None:
        """Add four sums whose face value is at `grid`."""
        weight, tokens, model, calls = sums
        shift = grid - self.grid
        if shift > 0:
            self._move(grid)
        elif shift < 0:
            weight, tokens, model, calls = (
                ldexp(weight, shift), ldexp(tokens, shift), ldexp(model, shift), ldexp(calls, shift)
            )  # fmt: skip
        self.weight += weight
        self.tokens += tokens
        self.model += model
        self.calls += calls

    def _move(self, grid: int) -> None:
        shift = self.grid - grid
        self.weight = ldexp(self.weight, shift)
        self.tokens = ldexp(self.tokens, shift)
        self.model = ldexp(self.model, shift)
        self.calls = ldexp(self.calls, shift)
        self.grid = grid


class Clock:
    """The discount of one half-life, in seconds: where a time lies on the grid, and what a sum is worth at a time."""

    __slots__ = ("half_life",)

    def __init__(self, half_life: float) -> None:
        if not half_life > 0.0:
            raise ValueError(f"a half-life must be positive, not {half_life}")
        self.half_life = half_life

    def place(self, now: float) -> tuple[int, float]:
        """Return the grid block of `now` and the weight, 1 to 2, of an observation made then."""
        turns = now / self.half_life
        grid = floor(turns)
        return grid, float(2.0 ** (turns - grid))

    def worth(self, grid: int, now: float) -> float:
        """Return what a sum with face value at `grid` is worth at `now`, as a factor of at most 1."""
        turns = grid - now / self.half_life
        if turns >= 0.0:  # another process's clock is ahead of ours
            return 1.0
        return float(2.0**turns) if turns > -1000.0 else 0.0

    def convert(self, at: float, sums: Sequence[float]) -> tuple[int, Sequence[float]]:
        """Return the grid and face value of sums that were worth `sums` at time `at`; exact when `at` is on this grid."""
        turns = at / self.half_life
        nearest = round(turns)
        if abs(turns - nearest) < 1e-6:
            return nearest, sums
        grid, scale = self.place(at)
        return grid, [scale * number for number in sums]


def lesson(acceptance: float, steps: float, expected: float, *, trust: float = 1.0) -> Sums:
    """Return what one call adds to a sum at weight 1: `steps` verification steps at `acceptance`, where `expected` was.

    Steps of one call resemble each other, so S of them weigh S / 8.5. A call's log acceptance length scatters about its
    template's by variance 0.15² + 0.5/S (fitted on labels grouped by category), hence S / (S + 22) of a long call.
    """
    weight = trust * steps / STEPS_PER_SAMPLE
    return (weight, weight * acceptance, weight * expected, trust * steps / (steps + STEPS_OF_HALF_A_CALL))


def scaled(sums: Sums, scale: float) -> Sums:
    """Return sums times a factor."""
    weight, tokens, model, calls = sums
    return (scale * weight, scale * tokens, scale * model, scale * calls)


CALL_DEVIATION = 0.15  # of a long call's log acceptance length about its template's
STEPS_OF_HALF_A_CALL = 22.0  # 0.5 / 0.15²
