"""The server: uvicorn's, with a drain that lets running streams end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from gateway.listener import Listener


class DrainingServer(uvicorn.Server):
    """A uvicorn server whose SIGTERM first announces the drain, then waits for running calls, then stops listening.

    `running` tells how many calls run, `draining` is called once when the drain begins; the limit is `drain_seconds`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        running: Callable[[], int],
        draining: Callable[[], None],
        drain_seconds: float,
        notice_seconds: float = 0.5,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        super().__init__(config)
        self._running = running
        self._draining = draining
        self._drain_seconds = drain_seconds
        self._notice_seconds = notice_seconds
        self._drain: asyncio.Task[None] | None = None

    @property
    def should_exit(self) -> bool:
        """Whether the server is to stop; set by signals and by whoever runs it, from any thread."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, told: bool) -> None:
        self._should_exit = told
        if told and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def main_loop(self) -> None:
        """Serve until told to stop; uvicorn would wake up ten times a second to look."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen on its sockets."""
        if not sockets:
            await super().startup(sockets)
            return
        await super().startup([])
        self.servers = [Listener(sock, self._protocol, self.config.ssl) for sock in sockets]  # type: ignore[misc]

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain on SIGTERM; SIGINT, or a second signal, stops at once.

        uvicorn would raise a signal that it knows of again in the end, and SIGTERM kills: nothing would be closed after it.
        """
        if sig != signal.SIGTERM:
            super().handle_exit(sig, frame)
        elif self._drain is None and self.started:
            self._draining()
            asyncio.get_event_loop().call_soon_threadsafe(self._begin_drain)
        else:
            self.should_exit = True

    def _begin_drain(self) -> None:
        self._drain = asyncio.get_running_loop().create_task(self._wait_for_calls())

    async def _wait_for_calls(self) -> None:
        """Keep listening until nothing runs, at least long enough for a load balancer to see /readyz turn."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < self._drain_seconds:
            await asyncio.sleep(0.05)
            if loop.time() - began >= self._notice_seconds and not self._running():
                break
        else:
            self.config.timeout_graceful_shutdown = 0  # the time is over: uvicorn would grant as much again
        self.should_exit = True
