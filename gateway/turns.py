"""Who may go next: calls that wait for a place at a pool, tenants in turn, so that a crowd of one keeps nobody else out.

Nothing here knows pools. `waiting` is bounded: when it is full, whoever waits most gives way to whoever waits less.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.errors import RateLimited, Unavailable


class Turns:
    """The queue before one pool; each tenant's calls in their order, tenants one after the other."""

    __slots__ = ("_queues", "granted", "waiting")

    def __init__(self) -> None:
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant; the first one's turn is next
        self.waiting = 0
        self.granted = 0  # woken, and not yet on their way

    def __repr__(self) -> str:
        return f"<Turns {self.waiting} waiting of {len(self._queues)} tenants, {self.granted} granted>"

    async def wait(self, tenant: str, *, most: int, seconds: float, retry_after: float) -> None:
        """Return when it is this call's turn.

        Raises:
            RateLimited: the tenant has too many that wait, now or when others came. Unavailable: it took too long.
        """
        if self.waiting >= most:
            self._make_room(tenant, retry_after)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as ended:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.granted -= 1
                self.wake(1)  # the place is somebody else's now
            else:
                self._leave(tenant, turn)
            if isinstance(ended, TimeoutError):
                raise Unavailable(
                    f"No engine was free for {seconds:g} s; try again later.",
                    code="overloaded",
                    retry_after=retry_after,
                ) from None
            raise
        self.granted -= 1

    def wake(self, count: int) -> None:
        """Give so many their turn."""
        while count > 0 and self._queues:
            tenant, queue = next(iter(self._queues.items()))
            del self._queues[tenant]
            turn = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind all others
            self.waiting -= 1
            if not turn.done():
                turn.set_result(None)
                self.granted += 1
                count -= 1

    def _make_room(self, tenant: str, retry_after: float) -> None:
        """Send away the last of whoever waits most; raises RateLimited when that is the one who comes."""
        error = RateLimited(
            "Too many of your requests wait already; send fewer at once.",
            code="rate_limit_exceeded",
            retry_after=retry_after,
        )
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise error
        turn = self._queues[longest].pop()
        self.waiting -= 1
        if not turn.done():
            turn.set_exception(error)

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Take a call out that does not wait any more, if it is still there."""
        queue = self._queues.get(tenant)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del self._queues[tenant]
