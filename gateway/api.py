"""The HTTP surface as one ASGI callable: scored endpoints to the relay, other /v1 paths through, the rest to operators.

No middleware stands on the scored paths; CORS, when origins are configured, wraps the whole from outside.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from gateway import trace
from gateway.encoding import unpack
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed, NotFound, TooLarge, Unavailable
from gateway.exchange import Exchange, Sink, UnderWay
from gateway.headers import Header, values
from gateway.hygiene import passes, request_id_of
from gateway.relay import Send, relay, respond
from gateway.request import LINE
from gateway.watch import Receive
from gateway.wire import ENDPOINTS, Endpoint

if TYPE_CHECKING:
    from gateway.attempts import Stream
    from gateway.pipeline import Pipeline

Read = Callable[[], Awaitable[bytes]]
Scope = MutableMapping[str, Any]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
ADVICE = "/draftlane/route"
_OWN_V1 = frozenset({"/v1/models"})
_BOTH_PORTS = frozenset({"/healthz", "/readyz"})


class Api:
    """Dispatches requests. `operators` serves everything that is not a client's call; `sinks` get each finished call."""

    __slots__ = ("_admin_port", "_operators", "_pipeline", "_sinks", "_under_way")

    def __init__(
        self, pipeline: Pipeline, operators: ASGIApp, sinks: Iterable[Sink], *, admin_port: int | None = None
    ) -> None:
        self._admin_port = admin_port
        self._pipeline = pipeline
        self._operators = operators
        self._sinks = list(sinks)
        self._under_way = UnderWay()

    def add_sink(self, sink: Sink) -> None:
        """Let one more reader have each finished call."""
        self._sinks.append(sink)

    @property
    def running(self) -> int:
        """Calls under way."""
        return self._under_way.calls

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request; what serves it is returned to be awaited, so that a call passes through no more than that."""
        if scope["type"] != "http":
            return self._operators(scope, receive, send)
        path: str = scope["path"]
        if self._admin_port is not None and not self._belongs(scope, path):
            return _refuse(send, NotFound(f"There is nothing at {path}.", code="unknown_url"))
        endpoint = ENDPOINTS.get(path)
        if endpoint is None and (not path.startswith("/v1/") or path in _OWN_V1 or path.startswith("/v1/models/")):
            return self._operators(scope, receive, send)
        if endpoint is not None and scope["method"] != "POST":
            return _wrong_method(scope, send)
        if endpoint is None and not passes(scope["raw_path"]):
            return _refuse(send, NotFound("There is nothing at this path.", code="unknown_url"))
        return self._relay(scope, receive, send, endpoint)

    def _belongs(self, scope: Scope, path: str) -> bool:
        """Whether the path is served on the port that the request came to, where operators have their own."""
        if path in _BOTH_PORTS:
            return True
        for_tenants = path == ADVICE or path.startswith(f"{ADVICE}/")
        for_operators = (path.startswith("/draftlane/") and not for_tenants) or path == "/metrics"
        return for_operators == bool(scope["server"][1] == self._admin_port)

    def _relay(self, scope: Scope, receive: Receive, send: Send, endpoint: Endpoint | None) -> Awaitable[None]:
        live = self._pipeline.live
        limits = live.config.limits
        headers: list[Header] = scope["headers"]
        settings = live.config.server
        place = None
        if settings.traces is not None:
            place = trace.begin(headers, share=settings.trace_share, bits=random.getrandbits, chance=random.random)
            headers = trace.onto(headers, place)
        exchange = Exchange(
            request_id=request_id_of(headers),
            endpoint=endpoint or "other",
            sinks=self._sinks,
            clock=live.clock,
            artefact=live.scorer.version,
            keeps_prompt=settings.log_prompts,
            observer=live.observer,
            trace=place,
            under_way=self._under_way,
        )

        def opening(exchange: Exchange, read: Read) -> Awaitable[Stream]:
            def read_body() -> Awaitable[bytes]:
                return _read_body(headers, read, limits.max_body_bytes)

            if self.running > limits.max_concurrent:
                raise Unavailable("The gateway is full; try again soon.", code="overloaded", retry_after=1.0)
            if endpoint is not None:
                return self._pipeline.open(exchange, endpoint, headers, read_body)
            query: bytes = scope.get("query_string", b"")
            target: bytes = scope["raw_path"] + (b"?" + query if query else b"")
            return self._pipeline.open_other(exchange, scope["method"].encode(), target, headers, read_body)

        return relay(exchange, opening, receive, send, limits, scope.get("extensions", {}).get(LINE))


async def _read_body(headers: list[Header], read: Read, max_bytes: int) -> bytes:
    """Read the body, refusing by its announced size before a byte of it is taken, and unpack it.

    Raises:
        BadRequest: a transfer coding besides "chunked", whose body nobody here could read. TooLarge: over `max_bytes`.
    """
    for coding in values(headers, b"transfer-encoding"):
        if coding.strip().lower() != b"chunked":
            raise BadRequest(
                "The only transfer coding that is taken is chunked.",
                code="unsupported_encoding",
                further=[(b"connection", b"close")],  # where the body ends, and what follows, is anybody's guess
            )
    for length in values(headers, b"content-length"):
        if length.isdigit() and int(length) > max_bytes:
            raise TooLarge(f"The request body is over {max_bytes} bytes.", code="request_too_large")
    body = await read()
    encodings = values(headers, b"content-encoding")
    return unpack(body, encodings[-1], max_bytes) if encodings and encodings[-1] else body


async def _refuse(send: Send, error: GatewayError) -> None:
    await respond(send, error.status, error.headers(), error.body())


async def _wrong_method(scope: Scope, send: Send) -> None:
    allow = (b"allow", b"POST, OPTIONS")
    if scope["method"] == "OPTIONS":
        await respond(send, 204, [allow], b"")
        return
    error = MethodNotAllowed(f"{scope['path']} takes POST.", code="method_not_allowed")
    await respond(send, error.status, [*error.headers(), allow], error.body())
