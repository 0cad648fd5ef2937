"""The control plane's way to engines: the data path's client, on connections of its own.

Every few seconds each engine is asked how it is. A general-purpose client takes some ten thousand bytecode instructions for
that, of code that is cold by the next time and has made other code cold: beside a few streams a twentieth of all CPU.
"""

from __future__ import annotations

import asyncio
import ssl

from gateway.http1 import Client
from gateway.pools import Pool, Pools, Replica
from gateway.reply import Broken, Reply

_ANY = 3600.0  # seconds to connect: the question's own limit is the one that holds
_BUFFERED = 1 << 20  # bytes of an answer that wait to be read
_HEADERS = [(b"accept", b"*/*"), (b"user-agent", b"draftlane")]


class Control:
    """Asks engines, each as its pool does; engines that a reload brings need not be announced."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._clients: dict[tuple[str, ssl.SSLContext | None], Client] = {}

    async def get(self, pool: Pool, replica: Replica, path: str, seconds: float) -> tuple[int, bytes]:
        """Return status and body of an engine's answer.

        Raises:
            TimeoutError: no connection, no head, or no further part of the body within `seconds`.
            Broken: the connection failed.
        """
        client = self._client(pool, replica)
        head = client.head(b"GET", path.encode(), _HEADERS, b"")
        async with asyncio.timeout(seconds):
            reply = await _answer(client, head)
        return reply.status, await _body(reply, seconds)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, pool: Pool, replica: Replica) -> Client:
        key = replica.url, pool.tls
        client = self._clients.get(key)
        if client is None:
            self._forget()
            client = self._clients[key] = Client(replica.url, tls=pool.tls)
            client.limit(connect_seconds=_ANY, buffer_bytes=_BUFFERED)
        return client

    def _forget(self) -> None:
        """Let go of engines that a reload has taken away, or that are reached otherwise now."""
        known = {(replica.url, pool.tls) for pool in self._pools for replica in pool.replicas}
        for key in self._clients.keys() - known:
            self._clients.pop(key).retire()


async def _answer(client: Client, head: bytes) -> Reply:
    """Send, and return the reply with its head; on a new connection where the kept one had gone stale."""
    if (reply := client.ask_idle(head, b"")) is not None:
        try:
            await reply.head()
        except Broken as error:
            if error.seen:
                raise
        else:
            return reply
    reply = await client.ask_new(head, b"")
    await reply.head()
    return reply


async def _body(reply: Reply, seconds: float) -> bytes:
    parts: list[bytes] = []
    try:
        while True:
            async with asyncio.timeout(seconds):
                if not (part := await reply.read()):
                    return b"".join(parts)
            parts.append(part)
    except BaseException:
        reply.abort()
        raise
