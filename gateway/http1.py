"""An HTTP/1.1 client for one origin: the data path's own, on httptools.

It owns connections and the bytes of replies, and refuses everything else: no redirects, cookies, proxies, decompression.
General-purpose clients walk their whole pool on each assignment and hop through several tasks per read; on a relay that is
most of the cost. Here a request is one write, an event one read, and the idle connections a stack (the warmest first).
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from gateway.headers import lines
from gateway.outbound import Connection
from gateway.reply import Broken, Reply

MAX_IDLE_SECONDS = 4.0  # uvicorn, and so vLLM, closes idle connections after 5 s

_LOOKS = 3  # turns of the loop after the time to connect is over, in which it may still turn out to be


class Client:
    """Connections to one origin (`http://host:port`), opened as needed and reused, the last used first.

    Args:
        url: the origin; a path in it is put before every request's path.
        tls: context for https origins; the system's defaults when absent.
    """

    __slots__ = """_connect_seconds _host _host_line _idle _open _port _prefix _retired _tls
        buffer_bytes last_byte_at loop""".split()

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) origin")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._retired = False
        self.last_byte_at = 0.0  # loop time; not of events that go past the replies (see `heard_at`)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._prefix = parts.path.rstrip("/").encode()
        self._host_line = b" HTTP/1.1\r\nhost: " + parts.netloc.rpartition("@")[2].encode("idna") + b"\r\n"
        self.limit(connect_seconds=2.0, buffer_bytes=1024 * 1024)
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by the first request

    def __repr__(self) -> str:
        return f"<Client {self._host}:{self._port} open={len(self._open)} idle={len(self._idle)}>"

    def limit(self, *, connect_seconds: float, buffer_bytes: int) -> None:
        """Set the time for opening a connection, TLS included, and the unread bytes of a reply past which reading pauses."""
        self._connect_seconds = connect_seconds
        self.buffer_bytes = buffer_bytes

    async def request(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Reply:
        """Send one request and return its reply with the head still to come.

        Raises:
            Broken: no connection could be opened.
        """
        head = self.head(method, target, headers, body)
        return self.ask_idle(head, body) or await self.ask_new(head, body)

    def ask_idle(self, head: bytes, body: bytes) -> Reply | None:
        """Send on an idle connection and return the reply, its head still to come; None when no connection is idle."""
        connection = self._take_idle()
        return None if connection is None else connection.send(head, body)

    async def ask_new(self, head: bytes, body: bytes) -> Reply:
        """Send on a new connection; raises Broken when none can be opened."""
        return (await self._connect()).send(head, body)

    def head(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        """Return the bytes of a request's line and headers."""
        end = b"content-length: %d\r\n\r\n" % len(body) if body or method == b"POST" else b"\r\n"
        return b"".join((method, b" ", self._prefix, target, self._host_line, lines(headers), end))

    def heard_at(self) -> float:
        """When any byte came last, loop time."""
        return max(self.last_byte_at, *(connection.heard_at() for connection in self._open), 0.0)

    def drop_idle(self) -> None:
        """Close the idle connections: one was stale, so may be the others."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def retire(self) -> None:
        """Close the idle connections, and each busy one when its reply is complete."""
        self._retired = True
        self.drop_idle()

    def close(self) -> None:
        """Close every connection, busy ones too."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def opened(self, connection: Connection) -> None:
        """Know a connection from its first moment."""
        self._open.add(connection)

    def idle(self, connection: Connection) -> None:
        """Take back a connection whose reply is complete."""
        if self._retired:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open():
                continue
            if self.loop.time() - connection.idle_since > MAX_IDLE_SECONDS:
                connection.abort()
                continue
            return connection
        return None

    def _keep(self, opening: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.idle(opening.result()[1])

    async def _connect(self) -> Connection:
        self.loop = asyncio.get_running_loop()
        opening = self.loop.create_task(
            self.loop.create_connection(lambda: Connection(self), self._host, self._port, ssl=self._tls)
        )
        try:
            await asyncio.wait({opening}, timeout=self._connect_seconds)
            for _ in range(_LOOKS):  # a busy loop is told of its timers before it is told of connections
                if not opening.done():
                    await asyncio.sleep(0)
            if not opening.done():
                raise Broken(f"no connection to {self._host}:{self._port} in {self._connect_seconds} s", seen=False)
            _, connection = opening.result()
        except OSError as error:
            raise Broken(f"no connection to {self._host}:{self._port}: {error}", seen=False) from None
        except asyncio.CancelledError:
            opening.add_done_callback(self._keep)  # it may be there already: somebody else can have it
            raise
        finally:
            opening.cancel()
        return connection
