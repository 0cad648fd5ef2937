"""Opening a reply: the plan's pools tried in order until one gives a first byte. After that byte there is no second try.

Rules of this module:
 1. A replica is asked at most twice for one call, a call makes at most MAX_ATTEMPTS requests, and retries beyond a pool's
    budget (a fifth of its requests) are not made: an engine in trouble is never hammered.
 2. Silence is not asked again, it is failed over: the same replica would only be silent once more.
 3. Streams are open once their first bytes are in, other replies once they are whole (up to the buffer's bound), so that
    what can be repeated without the client seeing two answers is repeated.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gateway.config import Limits
from gateway.errors import BadGateway, GatewayError, Unavailable, UpstreamTimeout
from gateway.pools import Lease, Pool, Pools, Replica
from gateway.reply import Broken, Reply, Silent
from gateway.verdict import Verdict, judge

_T = TypeVar("_T")

MAX_ATTEMPTS = 4
ATTEMPTS_PER_REPLICA = 2
FIRST_BACKOFF = 0.05  # seconds before the second request to the same replica, doubled and jittered
BUDGET_SHARE = 0.2  # retries a pool may cause per request: Envoy's default retry budget
BUDGET_FLOOR = 10.0


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """What is sent: the same for every attempt but for the body (the pool's model name) and the pool's credential."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body_for: Callable[[str], bytes]
    stream: bool
    prefer: str = ""  # the replica that holds the conversation's prefix cache
    idempotent: bool = True  # a first byte not seen by the client may be asked for again


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One request as it went out; `attempts` counts those of its call, itself included."""

    pool: Pool
    replica: Replica
    running: int  # on the replica when the request went out, itself included
    sent_at: float
    attempts: int


@dataclass(slots=True, kw_only=True)
class Stream(Attempt):
    """An opened reply. Owns the lease: `close()` gives it back and drops what is still coming; idempotent."""

    reply: Reply
    lease: Lease
    first_byte_at: float

    def close(self) -> None:
        """Release the replica; aborts the engine's work unless the reply is complete."""
        self.reply.abort()
        self.lease.release()


class Budget:
    """A pool's retry allowance: each request adds a share, each retry takes one."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = BUDGET_FLOOR

    def request(self) -> None:
        """A first attempt was made."""
        self._left = min(self._left + BUDGET_SHARE, BUDGET_FLOOR)

    def take(self) -> bool:
        """Whether a retry may be made; it is paid for."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True)
class _Tries:
    """What one call has tried, and the best answer to give if nothing works."""

    sent: Callable[[Attempt], None]
    count: int = 0
    replicas: list[Replica] = field(default_factory=list)
    refused: Stream | None = None
    failure: Callable[[], GatewayError] | None = None
    needs_longer_than: float | None = None  # tokens

    def begin(self, replica: Replica) -> None:
        """Count one more request."""
        self.count += 1
        self.replicas.append(replica)

    def refuse(self, stream: Stream) -> None:
        """Keep an engine's own error reply: it is what the client gets if nothing works."""
        if self.refused is not None:
            self.refused.close()
        self.refused = stream
        stream.lease.release()

    def fail(self, kind: type[GatewayError], message: str, code: str) -> None:
        """Keep what went wrong; the error is made when it is raised, as kept ones would hold the frames that hold them."""
        self.failure = lambda: kind(message, code=code)

    def give_up(self) -> GatewayError:
        """Return the error of the last request, or that no replica could be asked."""
        if self.failure is not None:
            return self.failure()
        return Unavailable("No replica of the model can take the request now.", code="no_replica", retry_after=1.0)


class Upstream:
    """Opens streams on the pools' replicas."""

    def __init__(self, pools: Pools, limits: Limits, *, chance: Callable[[], float] = random.random) -> None:
        self._pools = pools
        self._limits = limits
        self._chance = chance
        self._budgets: dict[str, Budget] = {}

    def apply(self, limits: Limits) -> None:
        """Take over reloaded limits."""
        self._limits = limits

    async def open(
        self, pools: Sequence[str], out: Outgoing, sent: Callable[[Attempt], None] = lambda _: None
    ) -> Stream:
        """Return the first usable reply from the pools, tried in order; `sent` hears of each request that goes out.

        An engine's own error reply is returned as a stream like any other when no pool does better.

        Raises:
            BadGateway, UpstreamTimeout, Unavailable: nothing answered.
        """
        tries = _Tries(sent)
        try:
            for name in pools:
                if name not in self._pools:  # a reload has removed it since the plan was made
                    continue
                pool = self._pools[name]
                if tries.needs_longer_than is not None and _length(pool) <= tries.needs_longer_than:
                    continue
                stream = await self._try_pool(pool, out, tries)
                if stream is not None:
                    if tries.refused is not None:
                        tries.refused.close()
                    return stream
        except BaseException:
            if tries.refused is not None:
                tries.refused.close()
            raise
        if tries.refused is not None:
            return tries.refused
        raise tries.give_up()

    async def _try_pool(self, pool: Pool, out: Outgoing, tries: _Tries) -> Stream | None:
        """Try the pool's replicas; None means go on to the next pool."""
        budget = self._budgets.setdefault(pool.name, Budget())
        budget.request()
        first = True
        while tries.count < MAX_ATTEMPTS:
            now = asyncio.get_running_loop().time()
            replica = pool.choose(now, self._chance, avoid=tries.replicas, prefer=out.prefer)
            if replica is None and not first:
                replica = self._once_more(pool, tries, now)
            if replica is None or not (first or budget.take()):
                return None
            if replica in tries.replicas:
                await asyncio.sleep(FIRST_BACKOFF * 2 ** (tries.count - 1) * (0.5 + self._chance()))
            first = False
            verdict = await self._attempt(pool, replica, out, tries)
            if isinstance(verdict, Stream):
                return verdict
            if verdict.next == "longer":
                tries.needs_longer_than = _length(pool)
            if verdict.next != "replica":
                return None
        return None

    def _once_more(self, pool: Pool, tries: _Tries, now: float) -> Replica | None:
        """Return a replica of the pool that may be asked a second time."""
        for replica in pool.replicas:
            if replica.usable(now) and tries.replicas.count(replica) < ATTEMPTS_PER_REPLICA:
                return replica
        return None

    async def _attempt(self, pool: Pool, replica: Replica, out: Outgoing, tries: _Tries) -> Stream | Verdict:
        """Send the request once; a stream for the client, or what to do next (the replica's state is already told)."""
        tries.begin(replica)
        loop = asyncio.get_running_loop()
        lease = Lease(replica, loop.time())
        try:
            stream = await self._send(pool, replica, lease, out, tries)
        except Silent as error:
            lease.release()
            replica.breaker.failure(loop.time(), self._chance())
            tries.replicas.extend([replica] * ATTEMPTS_PER_REPLICA)  # never again in this call
            tries.fail(UpstreamTimeout, str(error), "upstream_timeout")
            return Verdict("replica", unhealthy=True)
        except Broken as error:
            lease.release()
            replica.breaker.failure(loop.time(), self._chance())
            tries.fail(BadGateway, f"The engine's connection failed: {error}.", "upstream_failed")
            return Verdict("replica" if out.idempotent else "pool", unhealthy=True)
        except BaseException:
            lease.release()
            raise
        return await self._consider(stream, tries)

    async def _consider(self, stream: Stream, tries: _Tries) -> Stream | Verdict:
        """Judge an answered attempt by its status and, when it is an error, its body."""
        reply, replica = stream.reply, stream.replica
        loop = asyncio.get_running_loop()
        status = _error_in_stream(reply) or reply.status
        verdict = _RELAY
        if status >= 400:
            try:
                body = await self._peek(reply)
            except BaseException:
                stream.close()
                raise
            verdict = judge(status, reply.headers, body, speculative=stream.pool.config.speculative, now=time.time())
        if verdict.unhealthy:
            replica.breaker.failure(loop.time(), self._chance())
        else:
            replica.breaker.success()
        if verdict.cool_seconds:
            replica.cool_until = loop.time() + verdict.cool_seconds
        if verdict.next == "relay":
            return stream
        tries.refuse(stream)
        return verdict

    async def _peek(self, reply: Reply) -> bytes:
        """Read an error's body without taking it from the client: whole if it ends soon, else what there is."""
        data = await reply.read()
        try:
            async with asyncio.timeout(1.0):
                while len(data) < 65536 and (more := await reply.read()):
                    data += more
        except (TimeoutError, Broken):
            pass
        reply.unread(data)
        return data

    async def _send(self, pool: Pool, replica: Replica, lease: Lease, out: Outgoing, tries: _Tries) -> Stream:
        """Send, and wait for the first bytes of a stream or the whole of any other reply.

        Raises:
            Broken, Silent: the connection failed, or nothing came in time.
        """
        limits = self._limits
        headers = out.headers
        if pool.authorization is not None:
            headers = [*headers, (b"authorization", pool.authorization)]
        body = out.body_for(pool.config.served_model)
        sent_at, running = time.monotonic(), replica.running
        tries.sent(Attempt(pool=pool, replica=replica, running=running, sent_at=sent_at, attempts=tries.count))
        limit = limits.first_byte_seconds if out.stream else limits.total_seconds
        try:
            async with asyncio.timeout(limit):
                reply = await self._request(replica, out, headers, body, tries)
                streams = out.stream or reply.is_events
                first_at = await _until_open(reply, 0 if streams else limits.buffer_bytes)
        except TimeoutError:
            raise Silent(f"The engine sent nothing for {limit:g} s.") from None
        if not streams and reply.complete and not _is_readable(reply):
            raise Broken("its answer is no JSON", seen=True)
        return Stream(
            pool=pool,
            replica=replica,
            reply=reply,
            lease=lease,
            running=running,
            sent_at=sent_at,
            first_byte_at=first_at,
            attempts=tries.count,
        )

    async def _request(
        self, replica: Replica, out: Outgoing, headers: list[tuple[bytes, bytes]], body: bytes, tries: _Tries
    ) -> Reply:
        """Send; if an idle connection had gone stale (no byte came), once more on a fresh one, which is one more try."""
        client = replica.client
        reply = await client.request(out.method, out.target, headers, body)
        try:
            await _aborting(reply, reply.head())
        except Broken as error:
            if not reply.reused or error.seen or tries.count >= MAX_ATTEMPTS:
                raise
        else:
            return reply
        client.drop_idle()
        tries.begin(replica)
        reply = await client.request(out.method, out.target, headers, body)
        await _aborting(reply, reply.head())
        return reply


async def _aborting(reply: Reply, waiting: Awaitable[_T]) -> _T:
    """Wait for part of a reply; if that fails or is cancelled, the reply is dropped, and with it the engine's work."""
    try:
        return await waiting
    except BaseException:
        reply.abort()
        raise


async def _until_open(reply: Reply, bound: int) -> float:
    """Wait for the first bytes, and on until the reply is whole or over `bound`; return when the first came (loop time)."""
    parts = [await _aborting(reply, reply.read())]
    first_at = reply.last_byte_at
    size = len(parts[0])
    while bound and size <= bound and (more := await _aborting(reply, reply.read())):
        parts.append(more)
        size += len(more)
    if size:
        reply.unread(b"".join(parts))
    return first_at


def _is_readable(reply: Reply) -> bool:
    """Whether a whole reply that says it is JSON is JSON; half of one must not pass for a success."""
    body = reply.unread_bytes
    if not body or not any(name == b"content-type" and b"json" in value for name, value in reply.headers):
        return True
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    except RecursionError:  # deep, not broken
        return True
    return True


_RELAY = Verdict("relay")


def _length(pool: Pool) -> float:
    """Return the context length that is known of a pool; one that is not told is the longest."""
    return pool.config.max_model_len or math.inf


def _error_in_stream(reply: Reply) -> int:
    """Return 500 when a 200's first event is an error: vLLM fails so when its engine dies after the headers."""
    if reply.status == 200 and reply.starts_with(b'data: {"error"'):
        return 500
    return 0
