"""Errors: what the client is told, by status, header and body."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError

LEAVES = {
    errors.BadRequest: (400, "client"),
    errors.Unauthorized: (401, "client"),
    errors.Forbidden: (403, "client"),
    errors.NotFound: (404, "client"),
    errors.MethodNotAllowed: (405, "client"),
    errors.RequestTimeout: (408, "client"),
    errors.TooLarge: (413, "client"),
    errors.RateLimited: (429, "client"),
    errors.QuotaExceeded: (429, "client"),
    errors.HeadersTooLarge: (431, "client"),
    errors.BadGateway: (502, "upstream"),
    errors.Unavailable: (503, "gateway"),
    errors.UpstreamTimeout: (504, "upstream"),
}


@pytest.mark.parametrize(("kind", "told"), LEAVES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_error_has_its_status_and_fault(kind: type[GatewayError], told: tuple[int, str]) -> None:
    """The status says what kind of error it is, and the fault says whose; a client's is never the gateway's."""
    error = kind("what happened")

    assert (error.status, error.fault) == told
    assert (error.status < 500) == (error.fault == "client")
    assert str(error) == "what happened"


def test_every_error_is_listed_here() -> None:
    """No error exists whose status no test knows."""
    public = {
        value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, GatewayError) and not name.startswith("_")
    }

    assert public == {GatewayError, *LEAVES}


def test_the_body_is_openai_s_error_object() -> None:
    """Message, type, param and code are all there, null where nothing is known; the outer type is Anthropic's."""
    body = json.loads(errors.BadRequest('say "n"', param="n", code="invalid_type").body())

    assert body == {
        "error": {"message": 'say "n"', "type": "invalid_request_error", "param": "n", "code": "invalid_type"},
        "type": "error",
    }
    assert json.loads(GatewayError("x").body())["error"] == {
        "message": "x",
        "type": "server_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("text", ["Zeile\nZeile", "\x00", '"', "\\", "世界 🎉", "</script>", "\u2028"])
def test_any_message_stays_one_line_of_json(text: str) -> None:
    """Whatever a message repeats of a request, it cannot break out of the body or of an SSE event's line."""
    body = errors.NotFound(text).body()

    assert json.loads(body)["error"]["message"] == text
    assert b"\n" not in body
    assert b"\r" not in body


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.001, b"2"), (1.5, b"2"), (2.0, b"2"), (59.4, b"60"), (60.0, b"60")],
)
def test_retry_after_is_never_too_early(seconds: float, told: bytes) -> None:
    """The header has whole seconds, rounded up, and at least one."""
    assert (b"retry-after", told) in errors.RateLimited("slow down", retry_after=seconds).headers()


def test_without_a_time_there_is_no_retry_after() -> None:
    """An error that says nothing of when to come back has the content type alone."""
    assert errors.Unavailable("down").headers() == [(b"content-type", b"application/json")]
