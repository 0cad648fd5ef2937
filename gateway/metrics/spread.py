"""A histogram's row: values counted by bucket, and the last call in each bucket. Compiled where that was possible.

What stands here is the definition; `gateway._native` does the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["PlainSpread", "Spread"]


class PlainSpread:
    """A row that counts values by bucket, and remembers the last call in each as an example.

    `counts` has one bucket more than there are `bounds`, for what is beyond all of them; examples are (request id, value,
    Unix time) by bucket.
    """

    __slots__ = ("_bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.examples: dict[int, tuple[str, float, float]] = {}
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add_example(self, value: float, request_id: str, time: float) -> None:
        """Count one value and keep the call as its bucket's example."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.total += value
        self.examples[bucket] = (request_id, value, time)


try:
    from gateway._native import Spread
except ImportError:  # no C compiler where the package was installed
    Spread = PlainSpread  # type: ignore[assignment,misc]
