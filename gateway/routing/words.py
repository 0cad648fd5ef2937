"""The decision in one sentence that a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.routing.weigh import Bid

_OPENINGS = {
    "predictable": "Predictable",
    "unpredictable": "Not predictable enough",
    "constraint": "Only one kind of pool serves this request with the same meaning",
    "policy": "The tenant's policy says so",
    "header": "The request's x-draftlane-route says so",
    "explore": "Taken to learn",
    "shadow": "Shadow policy: decided and recorded, served from baseline",
    "only_pool": "The model has one kind of pool",
    "pool_down": "The better pool is not available",
    "pool_full": "The better pool's queue costs more than its pace wins",
    "guard": "A guard holds the better pool",
    "affinity": "Keeping the conversation's prefix cache is worth more",
}


def sentence(reason: str, chosen: Bid, seen: Bid | None, order: Sequence[Bid]) -> str:
    """Return why the call goes to `chosen`; `seen` is the speculative bid that was considered, `order` the pools to try."""
    said = f"{_OPENINGS[reason]}: '{chosen.pool.name}' takes {_seconds(chosen)}"
    for other in order:
        if other.pool.speculative != chosen.pool.speculative:
            said += f", '{other.pool.name}' {_seconds(other)}"
            break
    if seen is not None and seen.estimate is not None:
        said += f"; expected {seen.length:.2f} tokens per step on '{seen.pool.name}' ({_ground(seen)})"
        if seen.needed > seen.pool.window + 1:
            said += ", which no acceptance length would make worth it now"
        elif seen.needed > 0.0:
            said += f", break-even {seen.needed:.2f}"
    if reason == "guard" and seen is not None and seen.pool.why_unavailable:
        said += f"; {seen.pool.why_unavailable}"
    return said + "."


def _seconds(bid: Bid) -> str:
    said = f"{bid.seconds:.1f} s" if bid.seconds >= 1.0 else f"{bid.seconds * 1000:.0f} ms"
    if bid.queue >= 0.05:
        said += f" with {bid.queue:.1f} s of queue"
    return f"{said} (and {bid.crowd * bid.bare:.1f} s of others')" if bid.crowd >= 0.05 else said


def _ground(bid: Bid) -> str:
    estimate = bid.estimate
    if estimate is None or estimate.layer == "prior":
        return "from the prior"
    subject = "this template" if estimate.layer == "template" else "the curve"
    return f"from {estimate.samples:.0f} samples of {subject}"
