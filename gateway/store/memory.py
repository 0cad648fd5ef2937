"""The Store of a single process: plain dictionaries, gone when it ends. It states the laws in their simplest form."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from uuid import uuid4

from gateway.store.contract import (
    LOG_ENTRIES,
    MAX_KEYS,
    MAX_ORIGINS,
    RECEIPT_SECONDS,
    Batch,
    Deltas,
    Grant,
    Pulled,
    Push,
    Row,
    Snapshot,
    Sums,
    plus,
)

_MAX_RECEIPTS = 10_000


class MemoryStore:
    """A Store without persistence; `clock` returns Unix seconds."""

    def __init__(
        self, *, max_keys: int = MAX_KEYS, log_entries: int = LOG_ENTRIES, clock: Callable[[], float] = time.time
    ) -> None:
        self._max_keys = max_keys
        self._log_entries = log_entries
        self._clock = clock
        self._epoch = uuid4().hex
        self._applied: dict[str, int] = {}
        self._ledger: dict[tuple[str, str, str, str], dict[str, float]] = {}
        self._learned: dict[tuple[str, str], list[float]] = {}  # the least recently touched comes first
        self._log: dict[int, Push] = {}
        self._position = 0
        self._counters: dict[str, tuple[float, float]] = {}  # used, end
        self._receipts: dict[str, tuple[bytes, float]] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._applied)} origins, {len(self._ledger)} rows, {len(self._learned)} keys>"

    async def open(self) -> None:
        """Do nothing: it is open."""

    async def aclose(self) -> None:
        """Do nothing: it ends with the process."""

    async def applied(self, origins: Sequence[str]) -> dict[str, int]:
        """Return the last sequence that counted of each origin."""
        return {origin: self._applied.get(origin, 0) for origin in origins}

    async def append(self, origin: str, after: int, batches: Sequence[Batch]) -> int:
        """Count the batches that have not counted; return the origin's last sequence."""
        last = self._applied.get(origin, 0)
        if last < after:
            return last
        for batch in batches:
            if batch.seq > last:
                self._count(batch.rows)
                self._learn(origin, batch)
                last = batch.seq
        self._applied.pop(origin, None)
        self._applied[origin] = last
        if len(self._applied) > MAX_ORIGINS:
            del self._applied[next(iter(self._applied))]
        return last

    async def totals(self, first: str, last: str) -> list[Row]:
        """Return the ledger between two days."""
        return [Row(*key, dict(measures)) for key, measures in sorted(self._ledger.items()) if first <= key[0] <= last]

    async def pull(self, position: str) -> Pulled:
        """Return the pushes after a position."""
        asked = int(position or 0)
        oldest = next(iter(self._log), self._position + 1)
        pushes = tuple(islice(self._log.values(), max(0, asked - oldest + 1), None))
        return Pulled(self._epoch, str(self._position), pushes, not position or asked >= oldest - 1)

    async def snapshot(self) -> Snapshot:
        """Return all learning."""
        sums: Sums = {}
        for (namespace, key), numbers in self._learned.items():
            sums.setdefault(namespace, {})[key] = list(numbers)
        return Snapshot(self._epoch, str(self._position), dict(self._applied), sums)

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Take from a counter within its limit, or give back."""
        now = self._clock()
        used, end = self._counters.get(key, (0.0, 0.0))
        if end <= now:
            self._counters = {name: kept for name, kept in self._counters.items() if kept[1] > now}
            used, end = 0.0, now + ttl
        granted = max(amount, -used) if amount < 0 else min(amount, max(0.0, limit - used))
        self._counters[key] = (used + granted, end)
        return Grant(granted, used + granted)

    async def keep(self, receipts: Mapping[str, bytes]) -> None:
        """Keep receipts, the last ten thousand of them."""
        end = self._clock() + RECEIPT_SECONDS
        for request_id, receipt in receipts.items():
            self._receipts.pop(request_id, None)
            self._receipts[request_id] = (receipt, end)
        for request_id in list(islice(self._receipts, max(0, len(self._receipts) - _MAX_RECEIPTS))):
            del self._receipts[request_id]

    async def receipt(self, request_id: str) -> bytes | None:
        """Return a kept receipt."""
        receipt, end = self._receipts.get(request_id, (None, 0.0))
        return receipt if end > self._clock() else None

    def _count(self, rows: Sequence[Row]) -> None:
        for row in rows:
            sums = self._ledger.setdefault(row.key, {})
            for measure, amount in row.measures.items():
                sums[measure] = sums.get(measure, 0.0) + amount

    def _learn(self, origin: str, batch: Batch) -> None:
        if not any(batch.deltas.values()):
            return
        self._touch(batch.deltas)
        self._position += 1
        self._log[self._position] = Push(origin, batch.seq, batch.previous, batch.deltas)
        if len(self._log) > self._log_entries:
            del self._log[next(iter(self._log))]

    def _touch(self, deltas: Deltas) -> None:
        for namespace, keys in deltas.items():
            for key, numbers in keys.items():
                held = self._learned.pop((namespace, key), ())
                self._learned[namespace, key] = plus(held, numbers)
        for name in list(islice(self._learned, max(0, len(self._learned) - self._max_keys))):
            del self._learned[name]
