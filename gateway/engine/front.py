"""The paths that an engine answers, who may call them, and everything that is not generation."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import TypeAlias

from gateway.engine import admin
from gateway.engine.api import meta
from gateway.engine.api.refusal import Refusal
from gateway.engine.core import Engine
from gateway.engine.http import Reply, Request

_UNRECORDED = ("/engine/", "/health", "/metrics", "/ping")
_Route: TypeAlias = Callable[[Engine, Request, Reply], None]
_ROUTES: dict[str, dict[str, _Route]] = {
    "/health": {"GET": meta.health},
    "/ping": {"GET": meta.health, "POST": meta.health},
    "/version": {"GET": meta.version},
    "/metrics": {"GET": meta.metrics},
    "/v1/models": {"GET": meta.models},
    "/tokenize": {"POST": meta.tokenize},
    "/detokenize": {"POST": meta.detokenize},
    "/v1/messages/count_tokens": {"POST": meta.count_tokens},
    "/engine/record": {"GET": admin.show_record, "DELETE": admin.clear_record},
    "/engine/faults": {"GET": admin.show_faults, "POST": admin.set_fault, "DELETE": admin.clear_faults},
    "/engine/settings": {"GET": admin.show_settings, "POST": admin.change_settings},
}


class Front:
    """Takes requests from the HTTP server, answers them or hands them to the engine, and renders its refusals."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def __call__(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        try:
            self._dispatch(request, reply)
        except Refusal as refusal:
            body: dict[str, object] = refusal.body
            if request.path.startswith("/v1/messages"):
                body = {"type": "error", "error": {"type": refusal.kind, "message": str(refusal)}}
            reply.json(refusal.status, body, refusal.headers)

    def _dispatch(self, request: Request, reply: Reply) -> None:
        engine, path = self._engine, request.path
        method = "GET" if request.method == "HEAD" else request.method
        generates = path in engine.endpoints
        methods = {"POST": _nothing} if generates else _ROUTES.get(path)
        now = self._loop.time()
        if path.startswith(_UNRECORDED):
            engine.record.probes += 1
            entry = None
        else:
            entry = engine.record.add(request, reply, now)
        if not path.startswith("/engine/") and engine.faults.down(now):
            raise Refusal("The engine is down.", status=503, kind="ServiceUnavailableError")
        if methods is None:
            reply.json(404, {"detail": "Not Found"})
        elif method == "OPTIONS":
            reply.whole(200, b"", [(b"allow", ", ".join((*methods, "OPTIONS")).encode())])
        elif method not in methods:
            reply.json(405, {"detail": "Method Not Allowed"}, [(b"allow", ", ".join(methods).encode())])
        elif path.startswith("/v1") and not self._admitted(request):
            reply.json(401, {"error": "Unauthorized"})
        elif generates and entry is not None:
            engine.generate(request, reply, entry)
        else:
            methods[method](engine, request, reply)

    def _admitted(self, request: Request) -> bool:
        key = self._engine.settings.api_key
        if key is None:
            return True
        scheme, _, token = (request.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = request.header(b"x-api-key") or b""
        return hmac.compare_digest(token.strip(), key.encode())


def _nothing(engine: Engine, request: Request, reply: Reply) -> None:
    """Stand for the engine's own endpoints in the list of methods."""
