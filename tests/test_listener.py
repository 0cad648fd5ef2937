"""Listening: all who wait are let in at once, and running out of descriptors is survived."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop
from harness import config_for, serving, until

from gateway.listener import AT_ONCE, Listener

WAITING = 200


class Counting(asyncio.Protocol):
    """Counts connections and says hello to each."""

    made = 0
    lost = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Count one that is over."""
        del exc
        Counting.lost += 1

    def connection_made(self, transport: Any) -> None:
        """Count one more."""
        Counting.made += 1
        transport.write(b"hello")
        transport.close()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """Listen on a free port until the block ends."""
    Counting.made = Counting.lost = 0
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listener = Listener(sock, Counting)
    try:
        yield sock.getsockname()[1]
    finally:
        listener.close()
        await listener.wait_closed()
        sock.close()


async def everybody_in() -> int:
    """Let many connect while the loop is busy, and return how many were let in by its next few turns."""
    async with listening() as port:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(WAITING)]
        for _ in range(2 + WAITING // AT_ONCE + 8):  # a connection takes a few turns of its own
            await asyncio.sleep(0)
        made = Counting.made
        for client in clients:
            client.close()
        await until(lambda: Counting.lost == WAITING)
        return made


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_all_who_wait_are_let_in_at_once(loop: type[asyncio.AbstractEventLoop]) -> None:
    """However many connected while the loop was busy, a few turns let them all in: nobody waits for one turn each."""
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(everybody_in()) == WAITING


async def test_a_process_without_descriptors_goes_on_when_it_has_some() -> None:
    """Connections that cannot be accepted wait in the kernel, and are accepted when descriptors are free again."""
    async with listening() as port:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.create_connection(("127.0.0.1", port))
        client.settimeout(5)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            await asyncio.sleep(0.1)
            refused = Counting.made
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        hello = await asyncio.to_thread(client.recv, 5)
        client.close()

    assert (refused, hello) == (0, b"hello")


async def test_a_stopped_gateway_lets_nobody_in() -> None:
    """When a gateway has stopped, its port refuses."""
    async with serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway:
        port = gateway.port
        with socket.create_connection(("127.0.0.1", port)):
            pass

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
