"""What an engine's first answer means: relay it, try elsewhere, or try another kind of pool. Pure; `upstream` acts on it.

Nothing here applies after the first byte has gone to the client: then there is no second try.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

Next = Literal[
    "relay",  # give it to the client as it is
    "replica",  # try another replica of the pool, or this one once more, then the next pool
    "pool",  # this pool will not do; try the next one
    "longer",  # only a pool with a longer context can serve it
]
DEFAULT_COOL_SECONDS = 1.0  # a 429 or 503 without Retry-After
LONGEST_COOL_SECONDS = 30.0  # an engine may not exclude itself for longer: the next request asks again


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do next; `unhealthy` counts against the replica's breaker, `cool_seconds` keeps requests away for a while.

    `asked` says that the engine itself named these seconds: one may wait for it then.
    """

    next: Next
    unhealthy: bool = False
    cool_seconds: float = 0.0
    asked: bool = False


def judge(status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, speculative: bool, now: float) -> Verdict:
    """Judge a reply's status and, for errors, its body (as much as was read). `now` is Unix seconds, for HTTP dates."""
    if status < 400:
        return Verdict("relay")
    if status == 400:
        return _judge_bad_request(body, speculative=speculative)
    if status in (401, 403):
        return Verdict("pool")  # the pool's credential is wrong, which the client cannot mend
    if status in (429, 503):
        seconds = _retry_after(headers, now)
        cool = DEFAULT_COOL_SECONDS if seconds is None else seconds
        return Verdict("replica", unhealthy=status == 503, cool_seconds=cool, asked=seconds is not None)
    if status >= 500 and status != 501:
        return Verdict("replica", unhealthy=True)
    return Verdict("relay")


def _judge_bad_request(body: bytes, *, speculative: bool) -> Verdict:
    """A 400 is the client's, unless a longer context or an engine without speculation could serve the same request."""
    text = body[:4096].lower()
    if b"context_length_exceeded" in text or b"maximum context length" in text or b"max_model_len" in text:
        return Verdict("longer")
    if b"content_filter" in text or b"content_policy" in text:
        return Verdict("relay")
    if b"prefill" in text:  # it does not go on from an assistant's message; another engine may
        return Verdict("pool")
    if speculative and (
        b"speculative" in text or b"not supported" in text or b"not yet supported" in text or b"unsupported" in text
    ):
        return Verdict("pool")
    return Verdict("relay")


def _retry_after(headers: list[tuple[bytes, bytes]], now: float) -> float | None:
    """Return the seconds that Retry-After asks for, by number or date (RFC 9110 §10.2.3), within bounds; None: nothing."""
    value = next((value for name, value in headers if name == b"retry-after"), None)
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):  # no date, or one that no calendar has
            return None
    if not seconds >= 0:  # NaN and the past
        return None
    return min(seconds, LONGEST_COOL_SECONDS)
