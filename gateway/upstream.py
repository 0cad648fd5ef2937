"""Opening a reply: the plan's pools tried in order until one gives a first byte. After that byte there is no second try.

Rules of this module:
 1. A replica is asked at most twice for one call, a call makes at most MAX_ATTEMPTS requests, and retries beyond a pool's
    budget (a fifth of its requests) are not made: an engine in trouble is never hammered.
 2. Silence is not asked again, it is failed over: the same replica would only be silent once more. A stream has until its
    first token, a reply that comes whole as long as its tokens should take and more.
 3. An engine that asks for a pause is left alone. A call waits for it only where that is the sooner answer.
 4. Streams are open once their first token is in, other replies once they are whole (up to the buffer's bound), so that
    what can be repeated without the client seeing two answers is repeated.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence

from gateway import sse, usage
from gateway.attempts import (
    MAX_ATTEMPTS,
    Attempt,
    Outgoing,
    RetryBudget,
    Stream,
    Tries,
    until_whole,
)
from gateway.config import Limits
from gateway.errors import BadGateway, UpstreamTimeout
from gateway.lockstep import OTHERS
from gateway.pools import Lease, Pool, Pools, Replica
from gateway.reply import Broken, Reply, Silent
from gateway.verdict import Verdict, judge

FIRST_BACKOFF = 0.05  # seconds before the second request to the same replica, doubled and jittered
LATECOMERS = 0.1  # share of a pause by which those who waited for its end spread out
_HELD = 65536  # bytes of a stream without a token that are held back: more cannot be a beginning


class Upstream:
    """Opens streams on the pools' replicas."""

    __slots__ = ("_budgets", "_chance", "_limits", "_loop", "_pools")

    def __init__(self, pools: Pools, limits: Limits, *, chance: Callable[[], float] = random.random) -> None:
        self._pools = pools
        self._limits = limits
        self._chance = chance
        self._budgets: dict[str, RetryBudget] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # that ran last, as to ask for it takes a system call

    def apply(self, limits: Limits) -> None:
        """Take over reloaded limits."""
        self._limits = limits

    async def open(
        self,
        pools: Sequence[str],
        out: Outgoing,
        sent: Callable[[Attempt], None] = lambda _: None,
        *,
        without: Replica | None = None,
    ) -> Stream:
        """Return the first usable reply from the pools, tried in order; `sent` hears of each request that goes out.

        An engine's own error reply is returned as a stream like any other when no pool does better. A replica that the
        call is to go `without` is not asked.

        Raises:
            BadGateway, UpstreamTimeout, Unavailable: nothing answered.
        """
        loop = self._loop
        if loop is None or not loop.is_running():
            loop = self._loop = asyncio.get_running_loop()
        tries = Tries(sent, loop, began=loop.time())
        if without is not None:
            tries.rule_out(without)
        known = self._pools.known(pools)
        try:
            for place, pool in enumerate(known):
                if tries.needs_longer_than is not None and _length(pool) <= tries.needs_longer_than:
                    continue
                stream = await self._try_pool(pool, known[place + 1 :], out, tries)
                if stream is not None:
                    tries.drop_refused()
                    return stream
        except BaseException:
            tries.drop_refused()
            raise
        if tries.refused is not None:
            return tries.refused
        raise tries.give_up()

    async def _try_pool(self, pool: Pool, others: Sequence[Pool], out: Outgoing, tries: Tries) -> Stream | None:
        """Try the pool's replicas; None means go on to the next of the others."""
        budget = self._budgets.get(pool.name) or self._budgets.setdefault(pool.name, RetryBudget())
        budget.request()
        verdict: Verdict | None = None
        while tries.count < MAX_ATTEMPTS:
            now = tries.loop.time()
            replica = pool.choose(now, self._chance, avoid=tries.replicas, prefer=out.prefer)
            if replica is None and verdict is not None:
                replica = self._once_more(pool, tries, now + self._patience(pool.name, others, out, verdict))
            if replica is None or not (verdict is None or budget.take()):
                return None
            if replica in tries.replicas:
                await self._pause(replica, tries)
            tries.others = others
            result = await self._attempt(pool, replica, out, tries)
            if isinstance(result, Stream):
                return result
            verdict = result
            if verdict.next == "longer":
                tries.needs_longer_than = _length(pool)
            if verdict.next != "replica":
                return None
        return None

    def _patience(self, name: str, others: Sequence[Pool], out: Outgoing, verdict: Verdict) -> float:
        """Return how long the call may wait for this pool: as long as no other would have answered by then."""
        if not verdict.asked:
            return 0.0
        if others:
            here = out.seconds.get(name, 0.0)
            gain = min(out.seconds.get(other.name, 0.0) for other in others) - here
            return min(max(gain, 0.0), self._limits.retry_after_seconds)
        return self._limits.retry_after_seconds

    async def _pause(self, replica: Replica, tries: Tries) -> None:
        """Wait before asking a replica once more: as long as it has asked for, else a moment that grows with each try."""
        pause = replica.cool_until - tries.loop.time()
        if pause > 0:
            await asyncio.sleep(pause * (1 + LATECOMERS * self._chance()))
        else:
            await asyncio.sleep(FIRST_BACKOFF * 2 ** (tries.count - 1) * (0.5 + self._chance()))

    def _once_more(self, pool: Pool, tries: Tries, now: float) -> Replica | None:
        """Return a replica of the pool that may be asked a second time, now or, if it is cooling, at that time."""
        for replica in pool.replicas:
            if replica.usable(now) and tries.may_repeat(replica):
                return replica
        return None

    async def _attempt(self, pool: Pool, replica: Replica, out: Outgoing, tries: Tries) -> Stream | Verdict:
        """Send the request once; a stream for the client, or what to do next (the replica's state is already told)."""
        tries.begin(replica)
        loop = tries.loop
        lease = Lease(replica, loop.time())
        try:
            stream = await self._send(pool, replica, lease, out, tries)
        except Silent as error:
            lease.release()
            replica.breaker.failure(loop.time(), self._chance())
            tries.rule_out(replica)
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
        if stream.reply.status < 400 and not _error_in_stream(stream.reply):
            replica.breaker.success()
            return stream
        return await self._consider(stream, tries)

    async def _consider(self, stream: Stream, tries: Tries) -> Stream | Verdict:
        """Judge an attempt that an error answered, by its status and its body."""
        reply, replica, loop = stream.reply, stream.replica, tries.loop
        status = _error_in_stream(reply) or reply.status
        try:
            body = await self._peek(reply)
        except BaseException:
            stream.close()
            raise
        verdict = judge(status, reply.headers, body, speculative=stream.pool.speculative, now=time.time())
        if verdict.unhealthy:
            replica.breaker.failure(loop.time(), self._chance())
        else:
            replica.breaker.success()
        if verdict.cool_seconds:
            replica.cool_until = loop.time() + verdict.cool_seconds
        if verdict.next == "relay":
            return stream
        tries.refuse(stream, verdict)
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

    async def _send(self, pool: Pool, replica: Replica, lease: Lease, out: Outgoing, tries: Tries) -> Stream:
        """Send, and wait for the first bytes of a stream or the whole of any other reply.

        Raises:
            Broken, Silent: the connection failed, or nothing came in time.
        """
        await OTHERS  # the lease is taken: whoever plans meanwhile counts it
        limits = self._limits
        headers = out.headers
        if pool.authorization is not None:
            headers = [*headers, (b"authorization", pool.authorization)]
        body = out.body_for(pool.served_model)
        sent_at, running = time.monotonic(), replica.running
        tries.sent(Attempt(pool=pool, replica=replica, running=running, sent_at=sent_at, attempts=tries.count))
        reply = await self._request(pool, replica, out, headers, body, tries)
        try:
            streams = out.stream or reply.is_events
            if streams and reply.status == 200:
                first_at = await _until_a_token(reply)
            elif reply.complete and not reply.paused:  # as most are, whose head and body come together
                first_at = reply.last_byte_at
            else:
                first_at = await _until_whole(reply, limits)
        except BaseException:
            reply.abort()
            raise
        reply.unlimit()
        return Stream(
            pool=pool,
            replica=replica,
            reply=reply,
            lease=lease,
            running=running,
            sent_at=sent_at,
            first_byte_at=first_at,
            attempts=tries.count,
            told=None if streams else _told(reply),
        )

    async def _request(
        self, pool: Pool, replica: Replica, out: Outgoing, headers: list[tuple[bytes, bytes]], body: bytes, tries: Tries
    ) -> Reply:
        """Send; if an idle connection had gone stale (no byte came), once more on a fresh one, which is one more try."""
        client, seconds = replica.client, self._seconds(pool, out, tries)
        head = client.head(out.method, out.target, headers, body)
        reply = client.ask_idle(head, body) or await client.ask_new(head, body)
        reply.limit(seconds, "token" if out.stream else "answer")
        try:
            await reply.head()
        except Broken as error:
            if not reply.reused or error.seen or not tries.may_repeat(replica):
                raise
        else:
            return reply
        client.drop_idle()
        tries.begin(replica)
        reply = await client.ask_new(head, body)
        reply.limit(seconds, "token" if out.stream else "answer")
        await reply.head()
        return reply

    def _seconds(self, pool: Pool, out: Outgoing, tries: Tries) -> float:
        """Return how long an engine may be silent: until a stream's first token, or until any other reply is whole."""
        if out.stream:
            return self._limits.first_byte_seconds
        if out.most_tokens is None:
            return self._limits.total_seconds
        now = tries.loop.time()
        other = tries.another((pool, *tries.others), now)
        return until_whole(pool, out.most_tokens, self._limits, now - tries.began, last=not other)


async def _until_a_token(reply: Reply) -> float:
    """Wait until a stream has said more than that it begins; return when it had (loop time)."""
    data = await reply.read()
    while data and len(data) < _HELD and not sse.opens(data) and (more := await reply.read()):
        data += more
    if data:
        reply.unread(data)
    return reply.last_byte_at


async def _until_whole(reply: Reply, limits: Limits) -> float:
    """Wait until a reply is whole or over what is buffered; return when its first bytes came (loop time).

    Raises:
        Silent: it has begun and does not go on.
    """
    parts = [await _going_on(reply, limits.idle_seconds)]
    first_at = reply.last_byte_at
    size = len(parts[0])
    while size <= limits.buffer_bytes and (more := await _going_on(reply, limits.idle_seconds)):
        parts.append(more)
        size += len(more)
    if size:
        reply.unread(b"".join(parts))
    return first_at


async def _going_on(reply: Reply, idle_seconds: float) -> bytes:
    if reply.pending or reply.complete:
        return await reply.read()
    try:
        async with asyncio.timeout(idle_seconds):
            return await reply.read()
    except TimeoutError:
        raise Silent(f"The engine sent nothing for {idle_seconds:g} s.") from None


def _told(reply: Reply) -> usage.Told | None:
    """Return what a whole reply tells of itself; half of an answer that says it is JSON must not pass for a success."""
    if not (reply.complete and reply.is_json and reply.pending):
        return None
    told = usage.read_whole(reply.unread_bytes)
    if told is None:
        raise Broken("its answer is no JSON", seen=True)
    return told


def _length(pool: Pool) -> float:
    """Return the context length that is known of a pool; one that is not told is the longest."""
    return pool.config.max_model_len or math.inf


def _error_in_stream(reply: Reply) -> int:
    """Return 500 when a 200 begins with an error: vLLM fails so when its engine dies after the headers."""
    return 500 if reply.status == 200 and reply.is_events and sse.fails(reply.unread_bytes) else 0
