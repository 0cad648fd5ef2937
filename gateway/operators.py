"""What operators see: health, metrics, models, and the admin plane behind its own key. FastAPI; not on a call's path."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from gateway import advice_api, console, explain
from gateway.document import REQUEST, body_of
from gateway.errors import Forbidden, GatewayError, MethodNotAllowed, NotFound, Unauthorized
from gateway.tenants import presented_key

if TYPE_CHECKING:
    from gateway.app import Gateway


def build(gateway: Gateway) -> FastAPI:
    """Return the operators' app."""
    app = FastAPI(title="Draftlane", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(_public(gateway))
    app.include_router(advice_api.router(gateway))  # before the operators' own: tenants ask here
    app.include_router(console.router())
    for routes in (_admin(gateway), _schema()):
        app.include_router(routes, prefix="/draftlane", dependencies=[Depends(_admin_key(gateway))])

    @app.exception_handler(GatewayError)
    async def render(_: Request, error: GatewayError) -> Response:
        return Response(error.body(), error.status, {name.decode(): value.decode() for name, value in error.headers()})

    @app.exception_handler(404)
    async def unknown(request: Request, _: Exception) -> Response:
        return await render(request, NotFound(f"There is nothing at {request.url.path}.", code="unknown_url"))

    @app.exception_handler(405)
    async def wrong_method(request: Request, _: Exception) -> Response:
        return await render(
            request, MethodNotAllowed(f"{request.url.path} does not take {request.method}.", code="method_not_allowed")
        )

    return app


def _public(gateway: Gateway) -> APIRouter:
    router = APIRouter(include_in_schema=False)  # OpenAI's document describes these

    @router.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        problems = gateway.not_ready()
        return JSONResponse(
            {"status": "not ready" if problems else "ready", "problems": problems}, 503 if problems else 200
        )

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        body, content_type = await gateway.metrics_page(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    @router.api_route("/v1/models", methods=["GET", "HEAD"])
    async def models(request: Request) -> dict[str, Any]:
        return {"object": "list", "data": gateway.models(request.scope["headers"])}

    @router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def model(name: str, request: Request) -> dict[str, Any]:
        found = [card for card in gateway.models(request.scope["headers"]) if card["id"] == name]
        if not found:
            raise NotFound(f"The model `{name[:100]}` does not exist.", param="model", code="model_not_found")
        return found[0]

    return router


def _admin(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/state")
    async def state() -> dict[str, Any]:
        return gateway.state()

    @router.get("/overview")
    async def overview() -> dict[str, Any]:
        return await gateway.overview()

    @router.post("/explain", openapi_extra=body_of(REQUEST))
    async def dry_run(request: Request, tenant: str | None = None) -> dict[str, Any]:
        body = await advice_api.bounded(request, gateway.pipeline.live.config.limits.max_body_bytes)
        return explain.explain(gateway.pipeline, body, tenant=tenant)

    @router.get("/receipts/{request_id:path}")
    async def receipt(request_id: str) -> dict[str, Any]:
        found = await gateway.receipt(request_id)
        if found is None:
            raise NotFound(f"No receipt of '{request_id[:100]}': unknown, or too old.", code="unknown_receipt")
        return found

    @router.post("/reload")
    async def reload() -> Response:
        problems = gateway.reload()
        if problems:
            return JSONResponse({"status": "refused", "problems": problems}, 422)
        return JSONResponse({"status": "ok", "config": gateway.pipeline.live.config.digest})

    @router.post("/pools/{name}/{switch}")
    async def kill_switch(name: str, switch: str) -> dict[str, Any]:
        if switch not in ("enable", "disable") or not gateway.switch(name, enabled=switch == "enable"):
            raise NotFound(f"No pool '{name[:100]}' to {switch[:20]}; say enable or disable.", code="unknown_pool")
        return {"pool": name, "enabled": switch == "enable"}

    return router


def _schema() -> APIRouter:
    """Return the route of the OpenAPI document, which tells strangers too much to be public."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = request.app.openapi()
        return found

    return router


def _admin_key(gateway: Gateway) -> Any:
    def check(request: Request) -> None:
        digest = gateway.admin_digest
        if digest is None:
            raise Forbidden(
                "The admin plane is off: set server.admin_key_sha256 or server.admin_key_env.", code="admin_off"
            )
        key = presented_key(request.scope["headers"])
        if key is None or not hmac.compare_digest(hashlib.sha256(key).hexdigest(), digest):
            raise Unauthorized("The admin plane needs the admin key.", code="invalid_admin_key")

    return check
