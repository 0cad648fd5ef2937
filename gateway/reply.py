"""A reply as it arrives: status, headers, then bytes, each handed on as soon as it is read. No socket is touched here.

A `Reply` outlives its connection's use: as soon as the message is complete the connection is idle again, while the reply still
holds the bytes that nobody has read. Past a bound of them reading pauses, and `Reply.paused` says so for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.rounds import ROUNDS

if TYPE_CHECKING:
    from gateway._native import Passage
    from gateway.headers import Header
    from gateway.outbound import Connection


class Broken(Exception):
    """The connection failed; `seen` says whether any byte of the reply had arrived."""

    def __init__(self, message: str, *, seen: bool) -> None:
        super().__init__(message)
        self.seen = seen


class Silent(Exception):
    """Nothing arrived for as long as the limit allows."""


class Reply(msgspec.Struct, eq=False):
    """One response as it arrives: status, headers, then bytes until `complete`.

    `headers` are (lower-case name, value) pairs of bytes; `is_events` and `is_json` are what the content type says. `read()`
    returns b"" at the end and raises `Broken` when the connection failed first. One consumer at a time. `reused` says that the
    connection had carried a reply before, and so may have gone stale. `last_byte_at` is loop time, and that of the last bytes
    that came here while others go past (see `heard_at`); while reading is paused it stands still, which is no silence of the
    engine's.
    """

    _connection: Connection | None
    _loop: asyncio.AbstractEventLoop
    reused: bool = False
    status: int = 0
    headers: list[Header] = []
    headers_done: bool = False
    is_events: bool = False
    is_json: bool = False
    complete: bool = False
    paused: bool = False
    failed: bool = False
    last_byte_at: float = 0.0
    passage: Passage | None = None  # takes raw bytes off the wire, or refuses them
    _chunks: list[bytes] = []
    _size: int = 0
    _waiter: asyncio.Future[None] | None = None
    look_at: float = 0.0  # when it is late, where there is a limit
    _limit: tuple[float, str] | None = None
    _take: Callable[[bytes], bool] | None = None
    _stopped: bool = False
    _error: Exception | None = None

    async def head(self) -> None:
        """Wait for the status line and headers; where they do not come, the connection is dropped."""
        try:
            while not self.headers_done:
                if self.failed:
                    raise self._failure()  # noqa: TRY301 - one way out for this and for who is cancelled
                await self._next()
        except BaseException:
            self.abort()
            raise

    async def read(self) -> bytes:
        """Return all bytes that have arrived since the last read, waiting for the first; b"" is the end."""
        while not self._chunks:
            if self.complete:
                return b""
            if self.failed:
                raise self._failure()
            await self._next()
        return self.take()

    async def pour(self, take: Callable[[bytes], bool], passage: Passage | None = None) -> bool:
        """Give `take` the bytes within the callbacks that read them, until it returns False; return whether it did.

        Bytes that a `passage` takes as they come off the wire never get here.
        A reader that is woken for each event pays a task switch for it, and this one none. Raises as `read` does, and what
        `take` raises.
        """
        if self._chunks and not take(self.take()):
            return True
        while not self.complete:
            if self.failed:
                raise self._failure()
            self._take, self._stopped, self.passage = take, False, passage
            if self._connection is not None:
                self._connection.look_at_passage()
            try:
                await self._next()
            finally:
                self.last_byte_at = self.heard_at
                self._take = self.passage = None
                if self._connection is not None:
                    self._connection.look_at_passage()
            if self._stopped:
                return True
        return False

    def take(self) -> bytes:
        """Return all bytes that have arrived since the last read, without waiting."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._size = 0
        if self.paused and self._connection is not None:
            self._connection.resume_reading()
        return data

    def unread(self, data: bytes) -> None:
        """Put bytes back in front, for a reader that looked ahead."""
        self._chunks.insert(0, data)
        self._size += len(data)

    @property
    def heard_at(self) -> float:
        """When bytes came last, those that go past this object included; loop time."""
        return self.last_byte_at if self.passage is None else max(self.last_byte_at, self.passage.heard)

    @property
    def unread_bytes(self) -> bytes:
        """The bytes that have come and that nobody has read."""
        chunks = self._chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    @property
    def pending(self) -> bool:
        """Whether bytes wait to be read."""
        return bool(self._chunks)

    def starts_with(self, prefix: bytes) -> bool:
        """Whether the bytes that nobody has read begin so."""
        return bool(self._chunks) and self._chunks[0].startswith(prefix)

    def limit(self, seconds: float, what: str) -> None:
        """Fail with Silent, for want of `what`, unless `unlimit` is called within so many seconds, and a little more."""
        self._limit = (seconds, what)
        self.look_at = self._loop.time() + seconds
        ROUNDS.add(self._loop, self)

    def unlimit(self) -> None:
        """What was expected has come."""
        if self._limit is not None:
            self._limit = None
            ROUNDS.discard(self)

    def look(self, now: float) -> None:  # noqa: ARG002 - it is late
        """Fail, as the limit is reached."""
        if self._limit is not None:
            seconds, what = self._limit
            self.unlimit()
            self.fail(Silent(f"The engine sent no {what} for {seconds:g} s."))

    def fail(self, error: Exception) -> None:
        """End the reply with an error, unless it is complete; the connection is dropped."""
        if self.complete or self.failed:
            return
        self.failed, self._error = True, error
        self.wake()
        self.abort()

    def abort(self) -> None:
        """Drop the connection unless the whole reply has been received; idempotent."""
        self.unlimit()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _failure(self) -> Exception:
        """Hand the error out once: kept, it would hold the frames that it passes through, and those this reply."""
        error, self._error = self._error, None
        return error or Broken("the reply has failed", seen=self.headers_done)

    def _next(self) -> asyncio.Future[None]:
        """What is awaited until something comes; a waiter that was cancelled is done, and nobody's any more."""
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def wake(self) -> None:
        """Give what has come to whoever takes it at once, else let the reader look again."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._take is not None and self._chunks:
            try:
                self._stopped = not self._take(self.take())
            except Exception as error:  # noqa: BLE001 - whoever pours gets it
                self._waiter = None
                waiter.set_exception(error.with_traceback(None))  # whose frames would hold this future
                return
            if not (self._stopped or self.complete or self.failed):
                return
        self._waiter = None
        waiter.set_result(None)

    def feed(self, data: bytes, bound: int) -> bool:
        """Take bytes that arrived; return whether the bound is passed and reading should pause."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > bound:
            self.paused = True
            return True
        return False

    def finish(self) -> None:
        """The last byte is in: the connection is no longer this reply's."""
        self.complete = True
        self._connection = None
