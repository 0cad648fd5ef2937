"""What goes out for a call and what comes of it: the request, each attempt, the stream that opened, and what has been tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gateway.config import Limits
from gateway.errors import GatewayError, Unavailable
from gateway.pools import Lease, Pool, Replica
from gateway.reply import Reply
from gateway.usage import Told
from gateway.verdict import Verdict

MAX_ATTEMPTS = 4
ATTEMPTS_PER_REPLICA = 2
BUDGET_SHARE = 0.2  # retries a pool may cause per request: Envoy's default retry budget
BUDGET_FLOOR = 10.0
SLOWER = 2.0  # than an answer should take, before an engine that says nothing is given up


class Outgoing(msgspec.Struct, kw_only=True):
    """What is sent: the same for every attempt but for the body (the pool's model name) and the pool's credential."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body_for: Callable[[str], bytes]
    stream: bool
    prefer: str = ""  # the replica that holds the conversation's prefix cache
    seconds: Mapping[str, float] = msgspec.field(
        default_factory=dict
    )  # that each pool is expected to take, its queue included
    most_tokens: float | None = None  # that its answer may be expected to have; None: nobody knows
    idempotent: bool = True  # a first byte not seen by the client may be asked for again


class Attempt(msgspec.Struct, kw_only=True):
    """One request as it went out; `attempts` counts those of its call, itself included."""

    pool: Pool
    replica: Replica
    running: int  # on the replica when the request went out, itself included
    sent_at: float
    attempts: int


class Stream(Attempt, kw_only=True):
    """An opened reply. Owns the lease: `close()` gives it back and drops what is still coming; idempotent."""

    reply: Reply
    lease: Lease
    first_byte_at: float
    told: Told | None = None  # by a reply that was whole when it was opened

    def close(self) -> None:
        """Release the replica; aborts the engine's work unless the reply is complete."""
        self.reply.abort()
        self.lease.release()


class RetryBudget:
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


class Tries(msgspec.Struct):
    """What one call has tried, and the best answer to give if nothing works."""

    sent: Callable[[Attempt], None]
    loop: asyncio.AbstractEventLoop  # asked for once: before Python 3.12 that is a system call each time
    began: float = 0.0  # loop time
    others: Sequence[Pool] = ()  # pools that come after the one that is being tried
    count: int = 0
    replicas: list[Replica] = msgspec.field(default_factory=list)
    refused: Stream | None = None
    failure: Callable[[], GatewayError] | None = None
    needs_longer_than: float | None = None  # tokens

    def rule_out(self, replica: Replica) -> None:
        """Never ask a replica again in this call."""
        self.replicas.extend([replica] * ATTEMPTS_PER_REPLICA)

    def begin(self, replica: Replica) -> None:
        """Count one more request."""
        self.count += 1
        self.replicas.append(replica)

    def may_repeat(self, replica: Replica) -> bool:
        """Whether a replica may be asked once more in this call."""
        return self.count < MAX_ATTEMPTS and self.replicas.count(replica) < ATTEMPTS_PER_REPLICA

    def refuse(self, stream: Stream, verdict: Verdict) -> None:
        """Keep an engine's own error reply: it is what the client gets if nothing works.

        That some other engine cannot serve such a request says less than why the first one did not.
        """
        stream.lease.release()
        if verdict.next == "pool" and (self.failure is not None or self.refused is not None):
            stream.close()
            return
        if self.refused is not None:
            self.refused.close()
        self.refused = stream

    def fail(self, kind: type[GatewayError], message: str, code: str) -> None:
        """Keep what went wrong; the error is made when it is raised, as kept ones would hold the frames that hold them."""
        self.failure = lambda: kind(message, code=code)

    def another(self, pools: Iterable[Pool], now: float) -> bool:
        """Whether some replica of the pools could be asked after the request that is under way."""
        if self.count < MAX_ATTEMPTS:
            for pool in pools:
                for replica in pool.replicas:
                    if replica not in self.replicas and replica.usable(now):
                        return True
        return False

    def drop_refused(self) -> None:
        """Close the kept reply, as there is a better answer."""
        if self.refused is not None:
            self.refused.close()
            self.refused = None

    def give_up(self) -> GatewayError:
        """Return the error of the last request, or that no replica could be asked."""
        if self.failure is not None:
            return self.failure()
        return Unavailable("No replica of the model can take the request now.", code="no_replica", retry_after=1.0)


def until_whole(pool: Pool, most_tokens: float, limits: Limits, passed: float, *, last: bool) -> float:
    """Return how many seconds an engine may be silent before a reply that comes whole: it says nothing until it is done.

    Where somebody else can be asked that is little more than its tokens should take; else what is left of the call's time,
    of which `passed` seconds are over.
    """
    likely = limits.first_byte_seconds + SLOWER * most_tokens * pool.step_seconds
    rest = limits.total_seconds - passed
    return max(likely, rest) if last else min(likely, rest)
