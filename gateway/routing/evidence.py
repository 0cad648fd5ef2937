"""Discounted sums that several processes can add up in any order.

A sum is kept relative to a *grid* time, a whole number of half-lives: an observation at time t enters with weight 2^(t/h − grid), and to look
at the sum at time t divides by that same factor. Moving a sum to a later grid multiplies it by a power of two, which loses nothing, so the
order in which sums meet does not matter and merged sums equal the sums of one process that had seen everything.
"""

from __future__ import annotations

from math import floor, ldexp


class Evidence:
    """Three sums on one clock: `weight` (effective samples), `tokens` (weight × observed m), `model` (weight × what was expected)."""

    __slots__ = ("grid", "model", "tokens", "weight")

    def __init__(self, grid: int = 0, weight: float = 0.0, tokens: float = 0.0, model: float = 0.0) -> None:
        self.grid = grid
        self.weight = weight
        self.tokens = tokens
        self.model = model

    def __repr__(self) -> str:
        mean = self.tokens / self.weight if self.weight else 0.0
        return f"<Evidence {self.weight:.3g}@{self.grid} m={mean:.3g}>"

    def add(self, grid: int, weight: float, tokens: float, model: float) -> None:
        """Add sums that are relative to `grid`."""
        if grid > self.grid:
            self.move(grid)
        elif grid < self.grid:
            shift = grid - self.grid
            weight, tokens, model = ldexp(weight, shift), ldexp(tokens, shift), ldexp(model, shift)
        self.weight += weight
        self.tokens += tokens
        self.model += model

    def move(self, grid: int) -> None:
        """Express the sums relative to another grid time."""
        shift = self.grid - grid
        self.weight = ldexp(self.weight, shift)
        self.tokens = ldexp(self.tokens, shift)
        self.model = ldexp(self.model, shift)
        self.grid = grid


class Clock:
    """The discount of one half-life: where a time lies on the grid, and what a sum is worth at a time."""

    __slots__ = ("half_life",)

    def __init__(self, half_life: float) -> None:
        if not half_life > 0:
            raise ValueError("a half-life must be positive")
        self.half_life = half_life

    def place(self, now: float) -> tuple[int, float]:
        """Return the grid of `now` and the weight (1 … 2) of an observation made then."""
        turns = now / self.half_life
        grid = floor(turns)
        return grid, 2.0 ** (turns - grid)

    def worth(self, evidence: Evidence, now: float) -> float:
        """Return the factor that turns the stored sums into sums discounted to `now`."""
        return float(2.0 ** max(-1000.0, min(0.0, evidence.grid - now / self.half_life)))
