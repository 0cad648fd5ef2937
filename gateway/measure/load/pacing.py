"""When each call is sent: as soon as a place is free, at a rate, or at the trace's own times. Pure; chance is a seed.

A *closed* loop keeps so many calls under way and waits for answers; a slow endpoint slows it down, and hides how long its
users would have waited. *Open* loops send at set times whatever the endpoint does, and count a call from its time on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gateway.measure.load.trace import Request

MOST: Final = 512  # calls under way in an open loop before the next ones wait, and are late


@dataclass(frozen=True, slots=True)
class Job:
    """One call to be sent; `due` is seconds after the run's beginning, None as soon as there is a place."""

    request: Request
    repeat: int
    due: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How calls are spaced: `at_once` is the most under way; `rate` is per second; `speedup` divides the trace's times."""

    kind: Literal["concurrency", "rate", "trace"] = "concurrency"
    at_once: int = 1
    rate: float = 1.0
    spacing: Literal["poisson", "even"] = "poisson"
    seed: int = 0
    speedup: float = 1.0

    @property
    def open(self) -> bool:
        """Whether calls have times of their own."""
        return self.kind != "concurrency"

    def __str__(self) -> str:
        if self.kind == "concurrency":
            return f"{self.at_once} at once"
        if self.kind == "rate":
            return f"{self.rate:g} per second, " + (
                "evenly spaced" if self.spacing == "even" else f"Poisson, seed {self.seed}"
            )
        return "at the trace's times" + (f", {self.speedup:g} times as fast" if self.speedup != 1 else "")

    def jobs(self, calls: Iterable[tuple[int, Request]], *, span: float = 0.0) -> Iterator[Job]:
        """Give repeats and requests their times, the first at 0; `span` is how long one pass over the trace takes."""
        if self.kind == "concurrency":
            yield from (Job(request, repeat, None) for repeat, request in calls)
        elif self.kind == "rate":
            chance, due = random.Random(self.seed), 0.0
            for repeat, request in calls:
                yield Job(request, repeat, due)
                due += 1 / self.rate if self.spacing == "even" else chance.expovariate(self.rate)
        else:
            first: float | None = None
            for repeat, request in calls:
                time = (repeat * span + (request.at or 0.0)) / self.speedup
                first = time if first is None else first
                yield Job(request, repeat, time - first)
