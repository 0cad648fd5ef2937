"""Hard limits of a pool: what it cannot serve with the same meaning never goes there. Nothing here weighs or prefers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.routing.view import PoolView

FEATURES = (
    "min_p",
    "logit_bias",
    "structured_output",
    "tool_choice",
    "sampling",
    "penalties",
    "logprobs",
    "n",
    "images",
    "lora",
)
LENGTH = "length"


class Needs(msgspec.Struct, frozen=True):
    """What the call asks of an engine, judged by values: `min_p: 0` is nothing, an absent temperature is the engine's default.

    `features` is a subset of FEATURES; `prompt_tokens` is an estimate; `temperature` None means the engine's default.
    """

    features: frozenset[str]
    prompt_tokens: int
    max_tokens: int | None
    temperature: float | None


def missing(pool: PoolView, needs: Needs) -> str | None:
    """Return the first feature (in the order of FEATURES) that the call needs and the pool lacks, else `"length"` or None."""
    if not needs.features <= pool.supports:
        lacking = needs.features - pool.supports
        return next((feature for feature in FEATURES if feature in lacking), min(lacking))
    if pool.max_model_len is not None:
        # A speculative step may write k tokens past the last one it keeps, so the engine needs room for them.
        room = pool.max_model_len - (pool.window if pool.speculative else 0)
        if needs.prompt_tokens + (needs.max_tokens or 1) > room:
            return LENGTH
    return None


def unfit(pool: PoolView, needs: Needs) -> str | None:
    """Return why the pool cannot serve the call with the same meaning, in words, or None when it can."""
    feature = missing(pool, needs)
    if feature is None:
        return None
    if feature == LENGTH:
        wanted = needs.prompt_tokens + (needs.max_tokens or 1)
        return f"about {wanted} tokens do not fit its length of {pool.max_model_len}"
    return f"it does not serve {feature}"
