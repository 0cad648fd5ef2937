"""The control plane's way to engines: httpx, with each pool's own authorities and certificate where its engines speak TLS."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import httpx

from gateway.pools import Pools


class EngineTransport(httpx.AsyncBaseTransport):
    """Sends a request for an engine as that engine's pool does; engines that a reload brings are found by themselves."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._plain = httpx.AsyncHTTPTransport()
        self._secure: dict[ssl.SSLContext, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        context = self._context(request.url.netloc)
        if context is None:
            return await self._plain.handle_async_request(request)
        transport = self._secure.get(context)
        if transport is None:
            transport = self._secure[context] = httpx.AsyncHTTPTransport(verify=context)
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in (self._plain, *self._secure.values()):
            await transport.aclose()

    def _context(self, netloc: bytes) -> ssl.SSLContext | None:
        for pool in self._pools:
            if pool.tls is not None and any(urlsplit(r.url).netloc.encode() == netloc for r in pool.replicas):
                return pool.tls
        return None
