"""What the gateway asks of a place to keep things: the laws that memory, SQLite and Redis obey alike.

1. A batch counts once, however often it is delivered: totals, learning and the origin's sequence change together or not.
2. An origin's batches count in the order of their sequence; time orders nothing.
3. A Store that has forgotten says so: `append` refuses what would leave a hole, and the sender goes back.
4. Whatever goes wrong is a `StoreError`; nothing is half done after it, and the call may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# namespace → key → numbers, which add up element by element; what they mean is the learner's affair
Deltas = Mapping[str, Mapping[str, Sequence[float]]]
Sums = dict[str, dict[str, list[float]]]

MAX_KEYS = 50_000  # learned keys that a Store holds before it forgets the least recently touched: about 10 MB
LOG_ENTRIES = 10_000  # pushes kept for pullers; whoever was away for longer compares snapshots instead
MAX_ORIGINS = 10_000  # processes, past ones too, whose last sequence a Store knows: nobody's journal waits for so long
RECEIPT_SECONDS = 3600.0  # how long a receipt can be asked for from any process of the fleet


class StoreError(Exception):
    """The Store cannot do it now: away, full, locked or out of time; the message is for an operator."""


@dataclass(frozen=True, slots=True)
class Row:
    """Amounts of one day (UTC, "2026-11-29"), tenant, model and pool; a measure that is absent is 0."""

    day: str
    tenant: str
    model: str
    pool: str
    measures: Mapping[str, float]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the amounts belong to."""
        return (self.day, self.tenant, self.model, self.pool)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one process (the origin) has to add to the Store under one sequence number, from 1 upwards.

    `previous` is the origin's last sequence number before it that taught anything, 0 if none did: a puller that has not
    seen that one has missed something.
    """

    seq: int
    rows: tuple[Row, ...] = ()
    deltas: Deltas = field(default_factory=dict)
    previous: int = 0


@dataclass(frozen=True, slots=True)
class Push:
    """Learning that an origin brought in, as others pull it."""

    origin: str
    seq: int
    previous: int
    deltas: Deltas


@dataclass(frozen=True, slots=True)
class Pulled:
    """The pushes after a position, oldest first; not `whole` if some were already dropped.

    `epoch` changes when the Store may have gone back in time: emptied, restored or failed over.
    """

    epoch: str
    position: str
    pushes: tuple[Push, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known, at one moment: the sums, the last sequence of every origin, the position to pull from."""

    epoch: str
    position: str
    applied: Mapping[str, int]
    sums: Sums


@dataclass(frozen=True, slots=True)
class Grant:
    """The part of a lease that was granted, and what all together hold of the key now."""

    granted: float
    used: float


class Store(Protocol):
    """Where ledger, learning, quotas and receipts persist and meet those of other processes."""

    async def open(self) -> None:
        """Make ready what can be; raises nothing, as every call also opens what is not open yet."""

    async def aclose(self) -> None:
        """Let go of connections and threads."""

    async def applied(self, origins: Sequence[str]) -> dict[str, int]:
        """Return the last sequence that counted of each origin, 0 for an unknown one."""

    async def append(self, origin: str, after: int, batches: Sequence[Batch]) -> int:
        """Count those of `batches` (ascending) that have not counted, all or none; return the origin's last sequence.

        `after` is what the sender believes to be the last: if the Store has less, nothing counts and the lower number
        comes back, so that the sender can go back to what the Store has lost.
        """

    async def totals(self, first: str, last: str) -> list[Row]:
        """Return the ledger from day `first` to day `last` (both included), ordered by key."""

    async def pull(self, position: str) -> Pulled:
        """Return the pushes of every origin after `position`; "" stands before the oldest that is kept."""

    async def snapshot(self) -> Snapshot:
        """Return all learning at one moment."""

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Take `amount` of a counter as far as it stays within `limit`; a negative amount gives back.

        The counter is dropped `ttl` seconds after its first lease, so the key should name its window of time.
        """

    async def keep(self, receipts: Mapping[str, bytes]) -> None:
        """Keep receipts (JSON by request id) for `RECEIPT_SECONDS`."""

    async def receipt(self, request_id: str) -> bytes | None:
        """Return the JSON kept under a request id."""


def add(sums: Sums, deltas: Deltas) -> None:
    """Add `deltas` to `sums` in place; a longer list wins, the missing elements of the shorter are 0."""
    for namespace, keys in deltas.items():
        into = sums.setdefault(namespace, {})
        for key, numbers in keys.items():
            held = into.get(key)
            into[key] = list(numbers) if held is None else plus(held, numbers)


def plus(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Add two lists element by element, the shorter one filled up with zeros."""
    short, long = (left, right) if len(left) <= len(right) else (right, left)
    return [a + b for a, b in zip(short, long, strict=False)] + list(long[len(short) :])
