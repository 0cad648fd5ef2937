"""Calls and their shadow copies brought together: what the other pool was estimated to cost, and what it did cost.

The estimate is made when the original ends and the price is known when the copy ends, in either order. Both stay here until
the other comes, and are forgotten if too many others come first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gateway.record import Finished

WAITING: Final = 1024  # calls; most originals are never copied, and only push each other out


@dataclass(frozen=True, slots=True)
class Pair:
    """US dollars of a call on the pool that it was copied to."""

    pool: str
    estimated: float
    paid: float


class Pairs:
    """Halves that wait for their other half, oldest first."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._waiting = waiting
        self._halves: OrderedDict[str, Finished] = OrderedDict()  # a dict would search for its oldest

    def __len__(self) -> int:
        return len(self._halves)

    def meet(self, call: Finished) -> Pair | None:
        """Take a call that was decided for a shadow pool or is a copy; return both together once the second comes."""
        name = call.copy_of or call.request_id
        other = self._halves.pop(name, None)
        if other is None or bool(other.copy_of) == bool(call.copy_of):
            self._halves[name] = call
            if len(self._halves) > self._waiting:
                self._halves.popitem(last=False)
            return None
        original, copy = (other, call) if call.copy_of else (call, other)
        kind = "speculative" if copy.speculative else "baseline"
        if original.outcome != "ok" or copy.outcome != "ok" or kind not in original.counterfactual:
            return None
        # At a temperature the copy's answer has another length; prices are compared by the token.
        scale = original.completion_tokens / copy.completion_tokens if copy.completion_tokens else 0.0
        return Pair(copy.pool, original.counterfactual[kind], copy.cost_usd * scale)
