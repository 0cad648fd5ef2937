"""Calls that are ready at once take each step of the pipeline together, one call after the other, and write together.

A step's code and data do not fit the processor's first caches beside those of all other steps. Taken by one call from end to
end, each step finds them cold; taken by twenty calls in a row, nineteen find them warm. A scored call costs a quarter less CPU
so (docs/performance.md). A call that is alone waits for nobody.

The same holds for writes: each alone enters a cold kernel, and wakes a reader on the other side who sleeps again when the next
one comes. A burst wakes once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator


class Lockstep:
    """Awaited between two steps: whoever else is ready goes first. `ready` counts the calls that have a step to take."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        self.ready = 0

    def __repr__(self) -> str:
        return f"<Lockstep {self.ready} ready>"

    def __await__(self) -> Generator[None, None, None]:
        """Let the event loop run what is ready, unless nothing is: a bare yield puts a task at the end of its queue."""
        if self.ready:
            self.ready += 1
            try:
                yield
            finally:
                self.ready -= 1


class Burst:
    """Writes of several calls, which leave one after the other: when `MOST` wait, at `leave`, at the latest in the next turn.

    Whoever closes a transport, or writes to it directly, while something may wait for it has the burst leave first.
    """

    MOST = 64  # so that nobody's bytes wait for long, and the other side has work meanwhile

    __slots__ = ("_loop", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Burst of {len(self.waiting)} writes>"

    def add(self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write `data` soon; nobody hears of it if the transport is closed by then, as with any write."""
        if self._loop is not loop:  # what waits in a loop that has ended has nobody to leave for
            self._loop, self.waiting = loop, []
        if not self.waiting:
            loop.call_soon(self.leave)
        self.waiting.append((transport, data))
        if len(self.waiting) >= self.MOST:
            self.leave()

    def leave(self) -> None:
        """Write what waits."""
        waiting, self.waiting = self.waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)


OTHERS = Lockstep()  # of this process, whose event loop is one
BURST = Burst()
