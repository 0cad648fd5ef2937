"""Every error a client can receive, as one small tree; nothing else here.

    GatewayError
     ├─ BadRequest 400 · Unauthorized 401 · Forbidden 403 · NotFound 404
     ├─ RequestTimeout 408 · TooLarge 413 · RateLimited 429 (QuotaExceeded) · HeadersTooLarge 431
     └─ BadGateway 502 · Unavailable 503 · UpstreamTimeout 504

Layers raise; only the edge (`api`, `relay`) renders. Whose fault it was is data on the error, not a decision of the catcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

Fault = Literal["client", "upstream", "gateway"]
Headers = Sequence[tuple[bytes, bytes]]


class GatewayError(Exception):
    """An error with the OpenAI error object that tells it; `str(error)` is the message for the client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    fault: ClassVar[Fault] = "gateway"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        further: Headers = (),
    ) -> None:
        """Make an error; `further` are response headers that tell more, such as x-ratelimit-*."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.further = further

    def body(self) -> bytes:
        """Return the OpenAI error object as JSON; the outer `type` is what Anthropic's clients look for."""
        inner = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": inner, "type": "error"})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that belong to this error: content type, further ones, retry-after in whole seconds."""
        found = [(b"content-type", b"application/json"), *self.further]
        if self.retry_after is not None:
            found.append((b"retry-after", str(max(1, round(self.retry_after + 0.499))).encode()))
        return found


class _ClientError(GatewayError):
    type = "invalid_request_error"
    fault = "client"


class BadRequest(_ClientError):
    """The request cannot be understood; `param` names the field."""

    status = 400


class Unauthorized(_ClientError):
    """No key, or one that belongs to nobody."""

    status = 401
    type = "authentication_error"


class Forbidden(_ClientError):
    """The tenant is known and may not do this."""

    status = 403
    type = "permission_error"


class NotFound(_ClientError):
    """No such model or path."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(_ClientError):
    """The path exists and does not take this method."""

    status = 405


class RequestTimeout(_ClientError):
    """The client took too long to send its request."""

    status = 408


class TooLarge(_ClientError):
    """The body is over `limits.max_body_bytes`."""

    status = 413


class RateLimited(_ClientError):
    """A limit of the tenant is reached; `retry_after` says when to come back."""

    status = 429
    type = "rate_limit_error"


class QuotaExceeded(RateLimited):
    """A budget is used up: trying again soon is no use, and OpenAI's clients are told so by `x-should-retry`."""

    type = "insufficient_quota"


class HeadersTooLarge(_ClientError):
    """The request's headers are over `limits.max_header_bytes`."""

    status = 431


class BadGateway(GatewayError):
    """Every replica tried broke the connection or answered nonsense."""

    status = 502
    type = "upstream_error"
    fault = "upstream"


class Unavailable(GatewayError):
    """No pool can take the call now."""

    status = 503
    type = "service_unavailable_error"
    fault = "gateway"


class UpstreamTimeout(GatewayError):
    """The engine was silent for longer than the limits allow."""

    status = 504
    type = "timeout_error"
    fault = "upstream"
