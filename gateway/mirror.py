"""Shadow copies: a share of a shadow tenant's calls sent again to the pool that the router would have chosen, and compared.

A copy never touches the client, the tenant's bill or its limits: the ledger books it under "(shadow)". It runs beside the
call, at most MAX_RUNNING at a time, its answer is read and dropped, and its `Finished` names the call that it copies, so that
the two can be paired.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gateway import usage
from gateway.errors import GatewayError
from gateway.exchange import Exchange, Sink
from gateway.reply import Broken, Silent
from gateway.sse import EventTooLarge, Reader

if TYPE_CHECKING:
    from gateway.attempts import Outgoing
    from gateway.config import Limits
    from gateway.upstream import Upstream

MAX_RUNNING = 16
_log = logging.getLogger(__name__)


class Mirror:
    """Sends copies; `share` of the calls it is asked about, chosen by `chance`."""

    __slots__ = ("_chance", "_limits", "_sinks", "_tasks", "_upstream")

    def __init__(
        self, upstream: Upstream, sinks: Iterable[Sink], limits: Limits, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._upstream = upstream
        self._sinks = list(sinks)
        self._limits = limits
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, limits: Limits) -> None:
        """Take over reloaded limits."""
        self._limits = limits

    def add_sink(self, sink: Sink) -> None:
        """Let one more reader have each finished copy."""
        self._sinks.append(sink)

    def consider(self, exchange: Exchange, out: Outgoing, share: float) -> None:
        """Copy this call to its shadow pool, perhaps; returns at once."""
        plan = exchange.plan
        if plan is None or plan.shadow is None or plan.shadow == plan.pools[0]:
            return
        if len(self._tasks) >= MAX_RUNNING or self._chance() >= share:
            return
        task = asyncio.create_task(self._copy(exchange, plan.shadow, out))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cut the copies that still run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _copy(self, original: Exchange, pool: str, out: Outgoing) -> None:
        copy = Exchange(
            request_id=f"{original.request_id}-shadow",
            endpoint=original.endpoint,
            sinks=self._sinks,
            clock=original.clock,
            artefact=original.artefact,
            copy_of=original.request_id,
            observer=original.observer,
            call=original.call,
            model=original.model,
            score=original.score,
            plan=original.plan,
            pools=original.pools,
        )
        with copy:
            try:
                async with asyncio.timeout(self._limits.total_seconds):
                    copy.stream = await self._upstream.open((pool,), out)
                    await self._drain(copy)
            except GatewayError as error:
                copy.fail(error)
            except (Broken, Silent, EventTooLarge, TimeoutError) as error:
                copy.outcome, copy.error = "truncated", type(error).__name__

    async def _drain(self, copy: Exchange) -> None:
        """Read the whole answer and drop it, counting what a relayed one would count."""
        stream, call = copy.stream, copy.call
        if stream is None or call is None:
            return
        copy.status = stream.reply.status
        if call.stream and stream.reply.status == 200:
            copy.reader = reader = Reader(
                copy.endpoint, strip_usage=call.adds_usage, max_event_bytes=self._limits.max_event_bytes
            )
            while data := await stream.reply.read():
                reader.feed(data)
                reader.learn()
            copy.usage, copy.speculation = reader.usage, reader.speculation
            copy.outcome = "ok" if reader.ended or reader.finished else "truncated"
            return
        parts = []
        while data := await stream.reply.read():
            parts.append(data)
        told = usage.read(b"".join(parts))
        copy.usage, copy.speculation = told.usage, told.speculation
        copy.outcome = "ok" if stream.reply.status < 400 else "engine_error"
