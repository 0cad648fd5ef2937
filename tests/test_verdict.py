"""Verdicts: what an engine's first answer means for the call and for the replica."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from gateway.verdict import DEFAULT_COOL_SECONDS, LONGEST_COOL_SECONDS, Next, Verdict, judge

NOW = 1_700_000_000.0
# vLLM's own words, from its protocol and its speculative engine
TOO_LONG = (
    b'{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested 5000 tokens.",'
    b'"type":"BadRequestError","param":null,"code":400}}'
)
OPENAI_TOO_LONG = b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
UNSUPPORTED = (
    b'{"error":{"message":"The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",'
    b'"type":"BadRequestError","param":null,"code":400}}'
)
FILTERED = b'{"error":{"message":"The response was filtered","type":"invalid_request_error","code":"content_filter"}}'
OTHER = b'{"error":{"message":"temperature must be non-negative","type":"BadRequestError","param":null,"code":400}}'


def judged(
    status: int, body: bytes = b"", retry_after: str | None = None, *, kind: str = "speculative", now: float = NOW
) -> Verdict:
    """Judge a reply of a pool of this kind."""
    headers = [(b"content-type", b"application/json")]
    if retry_after is not None:
        headers.append((b"retry-after", retry_after.encode()))
    return judge(status, headers, body, speculative=kind == "speculative", now=now)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Verdict("relay")),
        (204, Verdict("relay")),
        (304, Verdict("relay")),
        (400, Verdict("relay")),
        (401, Verdict("pool")),
        (403, Verdict("pool")),
        (404, Verdict("relay")),
        (405, Verdict("relay")),
        (409, Verdict("relay")),
        (413, Verdict("relay")),
        (422, Verdict("relay")),
        (429, Verdict("replica", cool_seconds=DEFAULT_COOL_SECONDS)),
        (500, Verdict("replica", unhealthy=True)),
        (501, Verdict("relay")),
        (502, Verdict("replica", unhealthy=True)),
        (503, Verdict("replica", unhealthy=True, cool_seconds=DEFAULT_COOL_SECONDS)),
        (504, Verdict("replica", unhealthy=True)),
    ],
)
def test_what_a_status_means(status: int, expected: Verdict) -> None:
    """Only what the engine is to blame for is tried elsewhere, and only 5xx speaks of its health."""
    assert judged(status) == expected


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (TOO_LONG, "speculative", "longer"),
        (TOO_LONG, "baseline", "longer"),
        (OPENAI_TOO_LONG, "baseline", "longer"),
        (UNSUPPORTED, "speculative", "pool"),
        (UNSUPPORTED, "baseline", "relay"),
        (FILTERED, "speculative", "relay"),
        (FILTERED, "baseline", "relay"),
        (OTHER, "speculative", "relay"),
        (b"", "speculative", "relay"),
        (b"\xff\x00 not JSON", "speculative", "relay"),
    ],
)
def test_what_a_bad_request_means(body: bytes, kind: str, expected: Next) -> None:
    """A 400 is the client's own, unless a longer context or an engine without a draft could serve the same request."""
    verdict = judged(400, body, kind=kind)

    assert verdict.next == expected
    assert not verdict.unhealthy
    assert verdict.cool_seconds == 0


def test_a_filtered_prompt_is_never_tried_elsewhere() -> None:
    """A content filter's refusal is relayed even when its words speak of speculation."""
    body = b'{"error":{"code":"content_filter","message":"speculative content is not supported"}}'

    assert judged(400, body).next == "relay"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("3600", LONGEST_COOL_SECONDS),
        ("inf", LONGEST_COOL_SECONDS),
        ("-3", DEFAULT_COOL_SECONDS),
        ("nan", DEFAULT_COOL_SECONDS),
        ("soon", DEFAULT_COOL_SECONDS),
        ("", DEFAULT_COOL_SECONDS),
        (formatdate(NOW + 9, usegmt=True), 9.0),
        (formatdate(NOW - 9, usegmt=True), DEFAULT_COOL_SECONDS),
        (formatdate(NOW + 9000, usegmt=True), LONGEST_COOL_SECONDS),
        ("Wed, 99 Foo 2026 00:00:00 GMT", DEFAULT_COOL_SECONDS),
        ("Thu, 01 Jan 0001 00:00:00 -2359", DEFAULT_COOL_SECONDS),
        ("9" * 400, LONGEST_COOL_SECONDS),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_within_bounds(status: int, told: str, seconds: float) -> None:
    """Seconds or a date are taken; what is absent, past or no time is a second, and no engine excludes itself for long."""
    assert judged(status, retry_after=told).cool_seconds == pytest.approx(seconds)
