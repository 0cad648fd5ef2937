"""The background loop that brings what was counted and learned to safety, and what others learned back.

Every `flush_seconds`: the ledger's sums and the curves' deltas become a batch, the batch goes to the journal on the local
disk, from there to the Store, and the pushes of other processes are merged. Each step may fail without harm to the
others or to a request: a full disk leaves the sums in memory and still delivers; an absent Store leaves batches in the
journal; both at once leave the sums in memory. The loop says what is degraded, and goes on where it stopped.

Disk and SQLite work in threads, Redis on its own sockets; the event loop only ever adds up and merges.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from gateway.ledger.ledger import Ledger
from gateway.ledger.outbox import Outbox
from gateway.ledger.receipts import Receipts, decode
from gateway.store.contract import Batch, Deltas, Store, StoreError
from gateway.store.follower import Follower

_log: Final = logging.getLogger("draftlane.settlement")

_CHUNK: Final = 64  # batches per delivery: a few milliseconds of Redis' time
_CHUNKS: Final = 50  # deliveries per origin and round, an hour's batches: others get their turn
_ADOPT_SECONDS: Final = 10.0
_MERGED_AT_ONCE: Final = 200  # keys: about a millisecond
_RECEIPTS: Final = 1000  # shared per round
_START_SECONDS: Final = 2.0  # that starting waits for what others have learned
_STOP_SECONDS: Final = 5.0  # that stopping waits for the Store
_MOST_BACKOFF: Final = 5.0  # seconds; thresholds should agree soon after the Store is back

Result = TypeVar("Result")
Watch = Callable[[str, str | None], None]  # a part ("store", "journal", "loop") and its trouble, None when it is over


class Learner(Protocol):
    """What learns from calls and shares what it learned."""

    def deltas(self) -> Deltas:
        """Return what was learned here since the last call, which takes it out."""

    def merge(self, deltas: Deltas, /) -> object:
        """Add what others learned."""


class Nothing:
    """A learner that learns nothing, for a process that only counts."""

    def deltas(self) -> Deltas:
        """Return nothing."""
        return {}

    def merge(self, deltas: Deltas, /) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementState:
    """How the loop is doing; `degraded` holds the trouble by part."""

    last_success: float | None  # Unix time at which the Store last had everything
    pending: int  # batches that the Store does not have yet
    degraded: dict[str, str]
    journal_bytes: int
    damaged: int  # journal lines that could not be read
    unguarded: int  # calls that kill -9 would have lost before they were flushed
    origin: str

    @property
    def healthy(self) -> bool:
        """Whether everything counted gets to safety."""
        return not self.degraded


class Settlement:
    """Owns the loop; `start` and `stop` belong to the application's life, `flush` runs one round now."""

    def __init__(
        self,
        *,
        store: Store,
        ledger: Ledger,
        outbox: Outbox,
        curves: Learner | None = None,
        receipts: Receipts | None = None,
        flush_seconds: float = 1.0,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._outbox = outbox
        self._curves = curves or Nothing()
        self._receipts = receipts or Receipts()
        self._flush_seconds = flush_seconds
        self._watch = watch
        self._clock = clock
        self._follower = Follower(outbox.origin)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="draftlane-journal")
        self._round = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._delivered: dict[str, int] = {}
        self._degraded: dict[str, str] = {}
        self._sharing: dict[str, bytes] = {}
        self._bypassed: list[Batch] = []  # our batches that no journal has, until they come back from the Store
        self._last_success: float | None = None
        self._failures = 0
        self._store_rests_until = 0.0  # monotonic
        self._adopt_at = 0.0  # monotonic

    def __repr__(self) -> str:
        return f"<Settlement {self._outbox.origin} {self.state().pending} pending, degraded {self._degraded}>"

    def state(self) -> SettlementState:
        """Return how the loop is doing."""
        behind = (last - self._delivered.get(origin, 0) for origin, last in self._outbox.last.items())
        return SettlementState(
            last_success=self._last_success,
            pending=sum(max(0, batches) for batches in behind) + (self._ledger.taken is not None),
            degraded=dict(self._degraded),
            journal_bytes=self._outbox.size,
            damaged=self._outbox.damaged,
            unguarded=self._ledger.unguarded,
            origin=self._outbox.origin,
        )

    async def start(self) -> None:
        """Begin, and wait a moment for what others have learned."""
        await self._store.open()
        self._task = asyncio.create_task(self._loop(), name="settlement")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), _START_SECONDS)

    async def stop(self) -> None:
        """Bring everything to safety and end; what the Store cannot take in time waits in the journal."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_STOP_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})
        self._store_rests_until = 0.0
        try:
            await asyncio.wait_for(self.flush(), _STOP_SECONDS)
        except TimeoutError:
            _log.warning("stopped before the Store had everything; the journal keeps it: %r", self)
        except Exception:  # noqa: BLE001 - what is left to do is worth doing
            _log.exception("the last round of the settlement failed")
        await self._in_thread(self._outbox.close)
        self._ledger.close()
        self._thread.shutdown(wait=False)
        await self._store.aclose()

    async def flush(self) -> None:
        """Run one round now; troubles are told by `state`, not raised."""
        async with self._round:
            await self._adopt()
            await self._seal()
            if time.monotonic() >= self._store_rests_until:
                await self._meet()

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """Return the receipt of a call that any process of the fleet served, or None; raises StoreError."""
        found = self._receipts.get(request_id)
        if found is None:
            kept = await self._store.receipt(request_id)
            found = None if kept is None else decode(kept)
        return found

    async def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.flush()
                self._tell("loop", None)
            except Exception as defect:  # noqa: BLE001 - a defect in one round must not end all rounds
                _log.exception("a round of the settlement failed")
                self._tell("loop", repr(defect))
            self._first.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._flush_seconds * (0.9 + 0.2 * random.random()))

    async def _adopt(self) -> None:
        if time.monotonic() >= self._adopt_at:
            self._adopt_at = time.monotonic() + _ADOPT_SECONDS
            try:
                for origin in await self._in_thread(self._outbox.adopt):
                    _log.info("took over the journal of %s, which is no more", origin)
            except OSError as wrong:
                self._tell("journal", str(wrong))

    async def _seal(self) -> None:
        """Make a batch, and write it to the journal."""
        if self._ledger.taken is None:
            self._ledger.take(self._curves.deltas())
        batch = self._ledger.taken
        if not self._outbox.writes:
            return
        try:
            await self._in_thread(self._outbox.seal, batch)
        except OSError as wrong:
            self._tell("journal", str(wrong))
        else:
            if batch is not None:  # only what was written shows that one can write
                self._ledger.settled()
                self._tell("journal", None)

    async def _meet(self) -> None:
        """Give the Store what it lacks, and take from it what we lack."""
        try:
            await self._deliver()
            await self._learn()
            await self._share()
        except StoreError as wrong:
            self._failures += 1
            wait = min(_MOST_BACKOFF, self._flush_seconds * 2 ** min(self._failures, 10))
            # Jittered, or a fleet would fall upon a Redis that has just come back.
            self._store_rests_until = time.monotonic() + wait * (0.5 + 0.5 * random.random())
            self._tell("store", str(wrong))
        else:
            self._failures = 0
            self._last_success = self._clock()
            self._tell("store", None)

    async def _deliver(self) -> None:
        origins = list({self._outbox.origin, *self._outbox.last})
        for origin, seq in (await self._store.applied(origins)).items():
            self._delivered[origin] = await self._deliver_journal(origin, seq)
        batch, own = self._ledger.taken, self._outbox.origin
        if batch is not None:  # the journal does not want it
            self._delivered[own] = await self._store.append(own, self._delivered[own], (batch,))
            if self._delivered[own] >= batch.seq:
                self._bypassed.append(batch)
                self._ledger.settled()
        if self._outbox.last:
            await self._in_thread(self._outbox.prune, dict(self._delivered))

    async def _deliver_journal(self, origin: str, seq: int) -> int:
        """Send what the Store lacks of a journal; return the sequence that it has then."""
        for _ in range(_CHUNKS):
            if seq >= self._outbox.last.get(origin, 0):  # to a thread and back takes a hundred times as long as a look
                break
            batches = await self._in_thread(self._outbox.after, origin, seq, _CHUNK)
            if not batches:
                break
            # Less than before: the Store has just lost something, and the next turn begins there.
            seq = await self._store.append(origin, seq, batches)
        return seq

    async def _learn(self) -> None:
        follower = self._follower
        if not follower.astray:
            await self._merge(follower.absorb(await self._store.pull(follower.position)))
        if follower.astray:
            snapshot = await self._store.snapshot()
            journalled = await self._in_thread(self._outbox.after, self._outbox.origin, follower.seen_own, 1_000_000)
            own = {batch.seq: batch for batch in (*journalled, *self._bypassed)}
            await self._merge(await self._in_thread(follower.compare, snapshot, own.values()))
        self._bypassed = [
            batch for batch in self._bypassed if batch.seq > follower.seen_own and any(batch.deltas.values())
        ]

    async def _merge(self, news: Deltas) -> None:
        """Merge a little at a time: calls go on in between, and on a busy gateway a snapshot holds many thousand keys."""
        for namespace, keys in news.items():
            waiting = iter(keys.items())
            while part := dict(islice(waiting, _MERGED_AT_ONCE)):
                self._curves.merge({namespace: part})
                await asyncio.sleep(0)

    async def _share(self) -> None:
        if not self._sharing:
            self._sharing = self._receipts.unshared(_RECEIPTS)
        if self._sharing:
            await self._store.keep(self._sharing)
            self._sharing = {}

    def _tell(self, part: str, trouble: str | None) -> None:
        """Log and report when a part's condition changes, not each time that it is looked at."""
        was = self._degraded.get(part)
        if trouble is None:
            self._degraded.pop(part, None)
        else:
            self._degraded[part] = trouble
        if (was is None) == (trouble is None):
            return
        if trouble is None:
            _log.warning("%s is well again", part)
        else:
            _log.error("%s is degraded, nothing is lost and serving goes on: %s", part, trouble)
        if self._watch is not None:
            self._watch(part, trouble)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
