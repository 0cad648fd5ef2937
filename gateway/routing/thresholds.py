"""The published break-even and threshold of each speculative pool: steady figures for people, and a memory against flapping.

They are those of a reference call: of usual output length, without template, at the default cost weight. The break-even
follows the moment only when that differs by more than the hysteresis; the threshold follows at one bin per 30 seconds at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.routing.economics import Reference, break_even, crowding, queue_seconds, step_with_one_more
from gateway.routing.prior import BINS

if TYPE_CHECKING:
    from gateway.routing.curves import Curves
    from gateway.routing.view import PoolView

BIN_SECONDS = 30.0  # in which the published threshold moves by one bin at most


@dataclass(frozen=True, slots=True)
class Published:
    """Break-even acceptance length m* and threshold θ of a pool, as of `at`; `now` is what m* is without hysteresis."""

    break_even: float
    threshold: float
    now: float
    at: float


class Thresholds:
    """What is published, by the name of the speculative pool."""

    __slots__ = ("_published",)

    def __init__(self) -> None:
        self._published: dict[str, Published] = {}

    def __repr__(self) -> str:
        shown = (f"{name} m*={each.break_even:.2f} θ={each.threshold:.2f}" for name, each in self._published.items())
        return f"<Thresholds {', '.join(shown)}>"

    def __getitem__(self, pool: str) -> Published:
        return self._published[pool]

    @property
    def published(self) -> Mapping[str, Published]:
        """All of them."""
        return self._published

    def break_even(self, pool: str) -> float | None:
        """Return the published break-even of a pool, None before its first refresh."""
        found = self._published.get(pool)
        return None if found is None else found.break_even

    def refresh(self, pools: Sequence[PoolView], curves: Curves, *, now: float) -> None:
        """Follow the pools of one model; call it about once a second, and with all of the model's pools."""
        for pool in pools:
            if not pool.speculative:
                continue
            wanted = reference_break_even(pool, pools, curves, now=now)
            if wanted is None:
                continue
            before = self._published.get(pool.name)
            held = wanted
            if before is not None and abs(wanted / before.break_even - 1.0) <= curves.settings.hysteresis:
                held = before.break_even
            theta = curves.threshold(pool, 0.0, held, now)
            if before is not None:
                most = max(0.0, now - before.at) / (BINS * BIN_SECONDS)
                theta = min(before.threshold + most, max(before.threshold - most, theta))
            self._published[pool.name] = Published(held, theta, wanted, now)


def reference_break_even(pool: PoolView, pools: Sequence[PoolView], curves: Curves, *, now: float) -> float | None:
    """Return m* of a reference call on `pool` against the best baseline pool; None when the model has none to compare with."""
    tokens = curves.settings.expected_output_tokens
    bar = reference = None
    for other in pools:
        if other.speculative or not other.available:
            continue
        slot = other.ttft_seconds + tokens * step_with_one_more(other)
        price = other.price_per_slot_second
        if reference is None:
            reference = Reference(slot, slot * price, curves.settings.cost_weight)
        objective = reference.objective(queue_seconds(other, slot), slot, price, crowding(other))
        bar = objective if bar is None else min(bar, objective)
    if bar is None or reference is None:
        return None
    holding = pool.ttft_seconds + tokens * step_with_one_more(pool) / curves.of(pool).typical(now)
    return break_even(pool, reference, output_tokens=tokens, bar=bar, queue=queue_seconds(pool, holding))
