"""Which pool and replica hold a conversation's prefix cache: a bounded memory of the last conversations, per process.

A conversation is known by its tenant, its model and its beginning up to the first user message, which every later turn
repeats. The cache is the engine's and may be gone; what is remembered is only where it was and how long it was.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from gateway.record import Finished
from gateway.routing import Affinity

KEPT = 20_000
KEPT_SECONDS = 600.0  # an idle prefix is evicted by others' about then on a busy engine
SECONDS_PER_TOKEN = 0.0002  # of prefill, where no time to first token tells: 5,000 tokens per second


class Place(msgspec.Struct, frozen=True):
    """Where a conversation last was, how many tokens of it are cached there, and what prefilling one again takes."""

    pool: str
    replica: str
    tokens: int
    at: float
    seconds_per_token: float


class Conversations:
    """Remembers places by conversation; a sink of finished calls."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, str, str], Place] = OrderedDict()  # a dict would search for its oldest

    def __call__(self, finished: Finished) -> None:
        """Remember where a call with a conversation was served."""
        if not finished.conversation or finished.outcome != "ok":
            return
        key = (finished.tenant, finished.model, finished.conversation)
        before = self._places.pop(key, None)
        self._places[key] = Place(
            finished.pool,
            finished.replica,
            finished.prompt_tokens + finished.completion_tokens,
            finished.time,
            before.seconds_per_token if before else _prefill_pace(finished),  # the first turn's prefill was a cold one
        )
        if len(self._places) > KEPT:
            self._places.popitem(last=False)

    def find(self, tenant: str, model: str, conversation: str, now: float) -> Place | None:
        """Return where the conversation was, `now` in Unix seconds; None when it is new or long ago."""
        place = self._places.get((tenant, model, conversation)) if conversation else None
        return place if place is not None and now - place.at < KEPT_SECONDS else None


def affinity(place: Place | None) -> Affinity | None:
    """Put a place as what routing weighs: the tokens to prefill again elsewhere."""
    if place is None:
        return None
    return Affinity(pool=place.pool, tokens=place.tokens, seconds_per_token=place.seconds_per_token)


def _prefill_pace(finished: Finished) -> float:
    """Return seconds per prompt token, queueing excluded by never taking it for slower than the usual pace."""
    if finished.ttft is None or finished.prompt_tokens < 1:
        return SECONDS_PER_TOKEN
    return min(finished.ttft / finished.prompt_tokens, SECONDS_PER_TOKEN)
