"""Answering a connection's requests one after the other, all in one task.

A task for each request costs as much as a twentieth of the whole call: its making, its registration, the turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.lockstep import OTHERS

if TYPE_CHECKING:
    from gateway.inbound import Inbound


class Answering:
    """The task of one connection; it exists from the first request to the connection's end.

    While a request is being answered the task is among those that the server waits for when it stops.
    """

    __slots__ = ("_called", "_connection", "_task")

    def __init__(self, connection: Inbound) -> None:
        self._connection: Inbound | None = connection
        self._task: asyncio.Task[None] | None = None
        self._called: asyncio.Future[None] | None = None  # what the task waits for while there is no request

    def begin(self) -> None:
        """There is a request to answer."""
        connection = self._connection
        assert connection is not None
        if self._task is None:
            self._task = connection.loop.create_task(self._serve(connection))
        connection.state.tasks.add(self._task)
        self._call()

    def end(self) -> None:
        """The connection is lost, and no longer known here: each holds the other."""
        self._connection = None
        self._call()

    def _call(self) -> None:
        if self._called is not None and not self._called.done():
            self._called.set_result(None)
            OTHERS.ready += 1

    async def _serve(self, connection: Inbound) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while not connection.lost:
                if (request := connection.current) is not None:
                    await request.run(connection.app)
                    if connection.current is request:  # left unfinished, which has closed the connection
                        connection.current = None
                else:
                    connection.state.tasks.discard(task)
                    self._called = called = connection.loop.create_future()
                    try:
                        await called
                    finally:
                        OTHERS.ready -= not called.cancelled()  # then nobody had called
        finally:
            connection.state.tasks.discard(task)
            self._task = self._called = None
