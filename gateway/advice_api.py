"""`/draftlane/route` over HTTP: a batch in JSON, or one request as it is, answered in the headers that proxies act upon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.advice import advice, advise, questions
from gateway.api import ADVICE
from gateway.document import BATCH, REQUEST, body_of
from gateway.encoding import unpack
from gateway.errors import NotFound, TooLarge
from gateway.wire import ENDPOINTS

if TYPE_CHECKING:
    from gateway.app import Gateway


def router(gateway: Gateway) -> APIRouter:
    """Return the routes; both ask for a tenant's key, not for the operators'."""
    found = APIRouter()

    @found.post(ADVICE, openapi_extra=body_of(BATCH))
    async def batch(request: Request) -> dict[str, Any]:
        tenant = gateway.pipeline.live.tenants.identify(request.scope["headers"])
        body = await bounded(request, gateway.pipeline.live.config.limits.max_body_bytes)
        return await advise(gateway.pipeline, tenant, questions(body))

    @found.post(ADVICE + "/{path:path}", openapi_extra=body_of(REQUEST))
    async def one(path: str, request: Request) -> Response:
        """Advise on the request that would go to this path: what Envoy's ext_authz and Kong send along."""
        endpoint = ENDPOINTS.get(f"/{path}")
        if endpoint is None:
            raise NotFound(f"/{path[:100]} is not scored; the baseline pool serves it.", code="unknown_url")
        live = gateway.pipeline.live
        tenant = live.tenants.identify(request.scope["headers"])
        body = await bounded(request, live.config.limits.max_body_bytes)
        route = request.headers.get("x-draftlane-route", "auto").strip().lower()
        told = advice(gateway.pipeline, tenant, body, endpoint=endpoint, route=route)
        return JSONResponse(told, headers=_headers(told))

    return found


def _headers(told: dict[str, Any]) -> dict[str, str]:
    """Say the advice in headers: those of an answer through the gateway, and what a proxy needs to follow it."""
    return {
        "x-draftlane-pool": told["pool"],
        "x-draftlane-kind": told["kind"],
        "x-draftlane-model": told["served_model"],
        "x-draftlane-reason": told["reason"],
        "x-draftlane-score": f"{told['score']:.3f}",
        "x-draftlane-threshold": f"{told['threshold']:.3f}",
    }


async def bounded(request: Request, max_bytes: int) -> bytes:
    """Read a body of bounded size, and unpack it.

    Raises:
        TooLarge: it is over `max_bytes`, as it comes or unpacked. BadRequest: it cannot be unpacked.
    """
    length = request.headers.get("content-length", "0")
    parts: list[bytes] = []
    size = int(length) if length.isdigit() else 0
    if size <= max_bytes:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
    if size > max_bytes:
        raise TooLarge(f"The request body is over {max_bytes} bytes.", code="request_too_large")
    return unpack(b"".join(parts), request.headers.get("content-encoding", "").encode("latin-1"), max_bytes)
