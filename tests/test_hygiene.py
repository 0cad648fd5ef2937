"""Header hygiene: what of a client's headers reaches an engine, and which request id a call carries."""

from __future__ import annotations

import pytest

from gateway.hygiene import headers_for_engine, request_id_of

SECRETS = [
    (b"authorization", b"Bearer sk-client"),
    (b"proxy-authorization", b"Basic x"),
    (b"api-key", b"k"),
    (b"x-api-key", b"k"),
    (b"x-goog-api-key", b"k"),
    (b"ocp-apim-subscription-key", b"k"),
    (b"x-auth-token", b"k"),
    (b"cookie", b"session=1"),
]
HOP_BY_HOP = [
    (b"host", b"gateway"),
    (b"connection", b"keep-alive"),
    (b"proxy-connection", b"keep-alive"),
    (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"),
    (b"trailer", b"x"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"expect", b"100-continue"),
    (b"content-length", b"5"),
]
OWN = [
    (b"x-draftlane-route", b"baseline"),
    (b"x-draftlane-anything", b"x"),
    (b"x-request-id", b"theirs"),
]
WHEREABOUTS = [
    (b"forwarded", b"for=1.2.3.4"),
    (b"via", b"1.1 x"),
    (b"x-real-ip", b"1.2.3.4"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"x-forwarded-proto", b"https"),
]
ENCODINGS = [(b"accept-encoding", b"gzip, br"), (b"content-encoding", b"gzip")]
KEPT = [
    (b"content-type", b"application/json"),
    (b"accept", b"text/event-stream"),
    (b"user-agent", b"OpenAI/Python"),
    (b"x-stainless-lang", b"python"),
    (b"traceparent", b"00-1-2-01"),
    (b"openai-organization", b"org"),
    (b"anthropic-version", b"2023-06-01"),
    (b"x-custom", b"a"),
    (b"x-custom", b"b"),
]


@pytest.mark.parametrize(
    "header", [*SECRETS, *HOP_BY_HOP, *OWN, *WHEREABOUTS, *ENCODINGS], ids=lambda header: str(header[0])
)
def test_what_never_reaches_an_engine(header: tuple[bytes, bytes]) -> None:
    """Credentials, cookies, hop-by-hop headers, the gateway's own and where the client sits stay here."""
    assert headers_for_engine([*KEPT, header], "req-1") == [*KEPT, (b"x-request-id", b"req-1")]


def test_other_headers_pass_in_order() -> None:
    """All else is forwarded as it came, repeated names and unknown ones too, and the call's id is added."""
    assert headers_for_engine(KEPT, "req-1") == [*KEPT, (b"x-request-id", b"req-1")]


@pytest.mark.parametrize("value", [b"x-custom", b"X-Custom", b"keep-alive, x-custom", b"close,x-custom , te"])
def test_what_connection_names_is_hop_by_hop(value: bytes) -> None:
    """A header that Connection lists concerns this hop alone (RFC 9110 §7.6.1)."""
    names = [name for name, _ in headers_for_engine([(b"connection", value), *KEPT], "req-1")]

    assert b"x-custom" not in names
    assert b"user-agent" in names


@pytest.mark.parametrize("value", [b"abc", b"A-z_0.9:+/=@", b"x" * 128, b"550e8400-e29b-41d4-a716-446655440000"])
def test_a_plain_request_id_is_kept(value: bytes) -> None:
    """The client's own id goes through logs, receipts and to the engine."""
    assert request_id_of([(b"accept", b"*/*"), (b"x-request-id", value)]) == value.decode()


@pytest.mark.parametrize("value", [b"", b"x" * 129, b"a b", b"a\tb", b"\xff", b"a;b", b"{}", b'"', b"a\nb", b"a\n"])
def test_any_other_id_is_replaced(value: bytes) -> None:
    """An id that could break a log line or a header is not taken over."""
    found = request_id_of([(b"x-request-id", value)])

    assert found.startswith("req-")
    assert len(found) == 28


def test_new_ids_differ() -> None:
    """Two calls without an id can be told apart."""
    assert request_id_of([]) != request_id_of([])
