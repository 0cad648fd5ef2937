"""The page's own files under /draftlane/console: no secrets are in them, so they need no key; what they ask for does."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from gateway.errors import NotFound, Unavailable

PLOTLY: Final = "plotly.js"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOLDER: Final = Path(__file__).parent / "page"
_NAMES: Final = frozenset(path.name for path in _FOLDER.iterdir())
# Nothing from elsewhere, nothing inline but the styles that the chart library sets, and no frame around it.
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self';"
    " img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent."""

    body: bytes
    packed: bytes
    kind: str
    tag: str


def router() -> APIRouter:
    """Return the routes of the page and its files; what the page shows comes from the admin plane."""
    routes = APIRouter()

    @routes.get("/draftlane/console")
    def page(request: Request) -> Response:
        return _send(request, _file("index.html"))

    @routes.get("/draftlane/console/{name}")
    def part(name: str, request: Request) -> Response:
        if name not in _NAMES and name != PLOTLY:
            raise NotFound(f"There is nothing at {request.url.path}.", code="unknown_url")
        return _send(request, _file(name))

    return routes


def _send(request: Request, file: File) -> Response:
    headers = _HEADERS | {"etag": file.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, headers=headers | {"content-encoding": "gzip"}, media_type=file.kind)
    return Response(file.body, headers=headers, media_type=file.kind)


@cache
def _file(name: str) -> File:
    """Read a file and pack it, once; the chart library takes a third of a second, in a thread of the framework's."""
    body = (_plotly() if name == PLOTLY else _FOLDER / name).read_bytes()
    kind = _TYPES[Path(name).suffix]
    return File(body, gzip.compress(body, 6, mtime=0), kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _plotly() -> Path:
    """Return the script that plotly's package carries, without importing it: that takes a second."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise Unavailable("The package plotly is not installed, so there are no charts.", code="no_charts")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"
