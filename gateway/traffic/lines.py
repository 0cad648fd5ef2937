"""One observation as one JSON line: what the classifier is trained on, and what an operator wants to know beside it. No I/O.

Acceptance is carried to the classifier's reference window, as pools draft with others. What prompt lookup accepted says
nothing of a draft model and is marked as biased; so is what a guard has found unfit to learn from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gateway.routing.prior import REFERENCE_WINDOW, length_of, rate_of

if TYPE_CHECKING:
    from classifier.scorer import Scorer, View
    from gateway.pools import Pool
    from gateway.record import Finished

Observed = dict[str, Any]
Privacy = Literal["features", "text"]
TEXT_BYTES = 256 * 1024  # of a body; a larger one is kept as features: the classifier reads no more of it anyway
_ENCODE = msgspec.json.Encoder().encode


def observed(finished: Finished, pool: Pool) -> Observed | None:
    """Return what a call showed of acceptance, without its request; None where it showed nothing."""
    acceptance, window = finished.acceptance, pool.config.window
    if (
        not finished.speculative
        or finished.outcome != "ok"
        or acceptance is None
        or finished.steps is None
        or not window
    ):
        return None
    drafter = pool.config.drafter
    biased = finished.biased or ("" if pool.verdict.learns else "guard") or ("ngram" if drafter == "ngram" else "")
    return {
        "id": finished.request_id,
        "time": round(finished.time, 3),
        "endpoint": finished.endpoint,
        "pool": finished.pool,
        "revision": finished.revision,
        "drafter": drafter,
        "acceptance": round(at_reference(acceptance, window), 4),
        "steps": round(finished.steps, 1),
        "source": finished.source,
        "propensity": round(finished.propensity, 6),
        "template": finished.template,
        "biased": biased,
        "tokens": finished.completion_tokens,
        "temperature": finished.temperature,
    }


def at_reference(length: float, window: int) -> float:
    """Return the acceptance length at the reference window of what was seen at another, by one chance per token."""
    if window == REFERENCE_WINDOW:
        return max(length, 1.0)
    return length_of(rate_of(length, window), REFERENCE_WINDOW)


def line_of(seen: Observed, body: bytes, view: View, scorer: Scorer) -> bytes:
    """Return the line, its end included: with the request where its body is given, else with its features."""
    request = _request(body) if body else None
    content = {"features": scorer.features(view)} if request is None else {"request": request}
    return _ENCODE(seen | content) + b"\n"


def _request(body: bytes) -> Any:
    """Return a body, decoded; None for what is no JSON that can be written again, such as half a surrogate pair."""
    try:
        found = msgspec.json.decode(body)
        _ENCODE(found)
    except (ValueError, RecursionError):
        return None
    return found


def read(line: bytes) -> Observed | None:
    """Return the observation of a line; None if it is torn or damaged."""
    try:
        return msgspec.json.decode(line, type=Observed)
    except (ValueError, RecursionError):
        return None
