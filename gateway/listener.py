"""Accepting connections: as many at a time as wait, so that newcomers are not starved on a busy loop.

libuv, and so uvloop, accepts one connection per turn of its loop. With two thousand streams a turn takes 40 ms, so health
checks and new clients waited for most of a minute. Here one turn accepts all who wait, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

AT_ONCE = 32  # connections taken in one turn, some 20 ms of work with their first requests: those who are in come first
_REST_SECONDS = 0.5  # without accepting when the process has no file descriptor left
_log = logging.getLogger(__name__)


class Listener:
    """A listening socket on the running loop; takes the place of asyncio's `Server` in uvicorn's.

    Args:
        sock: listens already; it is closed by whoever opened it.
        protocol: makes the protocol of one connection.
        tls: the context of secure connections, None for plain ones.
    """

    def __init__(
        self, sock: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[object]] = set()
        self._open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._accept)

    def __repr__(self) -> str:
        return f"<Listener {self._sock.getsockname() if self._open else 'closed'}>"

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket."""
        return (self._sock,)

    def close(self) -> None:
        """Accept nobody any more."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock.fileno())

    async def wait_closed(self) -> None:
        """Do nothing: closing takes no time."""

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or memory left
                _log.error("cannot accept connections: %s", error)
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(_REST_SECONDS, self._again)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _again(self) -> None:
        if self._open:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _begin(self, connection: socket.socket) -> None:
        """Give a connection its protocol; a handshake that fails is the client's affair."""
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except (OSError, TimeoutError):  # ssl.SSLError is one
            connection.close()
