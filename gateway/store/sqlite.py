"""The Store of one machine: a SQLite file that its worker processes share.

One thread per Store does all the work, so the event loop waits for no disk and no lock. Write-ahead logging lets
readers and the one writer of the moment work at the same time; a writer that finds the file locked waits its turn.
`synchronous=NORMAL` may lose the last transactions with the power, whole and in order: the journals bring them back.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar
from uuid import uuid4

import msgspec

from gateway.store.contract import (
    LOG_ENTRIES,
    MAX_KEYS,
    MAX_ORIGINS,
    RECEIPT_SECONDS,
    Batch,
    Grant,
    Pulled,
    Push,
    Row,
    Snapshot,
    StoreError,
    Sums,
    plus,
)

_BUSY_SECONDS: Final = 5.0  # other writers hold the lock for milliseconds
_AGAIN_SECONDS: Final = 0.005
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origins (
    touched INTEGER PRIMARY KEY AUTOINCREMENT, origin TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (
    day TEXT, tenant TEXT, model TEXT, pool TEXT, measure TEXT, amount REAL NOT NULL,
    PRIMARY KEY (day, tenant, model, pool, measure)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS learned (
    namespace TEXT, key TEXT, numbers TEXT NOT NULL, touched INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS learned_touched ON learned (touched);
CREATE TABLE IF NOT EXISTS pushes (
    position INTEGER PRIMARY KEY AUTOINCREMENT, origin TEXT NOT NULL, seq INTEGER NOT NULL, previous INTEGER NOT NULL,
    deltas TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, used REAL NOT NULL, ends REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS receipts (request_id TEXT PRIMARY KEY, receipt BLOB NOT NULL, ends REAL NOT NULL)
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS receipts_ends ON receipts (ends);
"""
_ADD: Final = """INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"""
_SET_LEARNED: Final = """INSERT INTO learned VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET numbers = excluded.numbers, touched = excluded.touched"""
_POSITION: Final = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'pushes'), 0)"

_encode: Final = msgspec.json.Encoder().encode
_numbers: Final = msgspec.json.Decoder(list[float]).decode
_deltas: Final = msgspec.json.Decoder(dict[str, dict[str, list[float]]]).decode

Result = TypeVar("Result")
Mode = Literal["DEFERRED", "IMMEDIATE"]  # to read, to write


class SqliteStore:
    """A Store in one file; `clock` returns Unix seconds."""

    def __init__(
        self,
        path: Path,
        *,
        max_keys: int = MAX_KEYS,
        log_entries: int = LOG_ENTRIES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_keys = max_keys
        self._log_entries = log_entries
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="draftlane-sqlite")
        self._open: sqlite3.Connection | None = None
        self._inode = 0

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} {'open' if self._open else 'closed'}>"

    async def open(self) -> None:
        """Create the file and its tables if that is possible now."""
        with suppress(StoreError):
            await self.applied(())

    async def aclose(self) -> None:
        """Close the file and end the thread."""
        with suppress(RuntimeError):  # closed already
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def applied(self, origins: Sequence[str]) -> dict[str, int]:
        """Return the last sequence that counted of each origin."""
        return await self._run(lambda sql: {origin: _applied(sql, origin) for origin in origins}, "DEFERRED")

    async def append(self, origin: str, after: int, batches: Sequence[Batch]) -> int:
        """Count the batches that have not counted, in one transaction; return the origin's last sequence."""
        return await self._run(lambda sql: self._append(sql, origin, after, batches))

    async def totals(self, first: str, last: str) -> list[Row]:
        """Return the ledger between two days."""
        return await self._run(lambda sql: _totals(sql, first, last), "DEFERRED")

    async def pull(self, position: str) -> Pulled:
        """Return the pushes after a position."""
        return await self._run(lambda sql: _pull(sql, position), "DEFERRED")

    async def snapshot(self) -> Snapshot:
        """Return all learning, in one read transaction."""
        return await self._run(_snapshot, "DEFERRED")

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Take from a counter within its limit, or give back."""
        return await self._run(lambda sql: _lease(sql, key, amount, limit, self._clock(), ttl))

    async def keep(self, receipts: Mapping[str, bytes]) -> None:
        """Keep receipts, and drop those whose time is over."""
        now = self._clock()
        rows = [(request_id, receipt, now + RECEIPT_SECONDS) for request_id, receipt in receipts.items()]

        def write(sql: sqlite3.Connection) -> None:
            sql.executemany("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?)", rows)
            sql.execute("DELETE FROM receipts WHERE ends <= ?", (now,))

        await self._run(write)

    async def receipt(self, request_id: str) -> bytes | None:
        """Return a kept receipt."""
        query = "SELECT receipt FROM receipts WHERE request_id = ? AND ends > ?"
        asked = (request_id, self._clock())
        found = await self._run(lambda sql: sql.execute(query, asked).fetchone(), "DEFERRED")
        return None if found is None else bytes(found[0])

    async def _run(self, work: Callable[[sqlite3.Connection], Result], mode: Mode = "IMMEDIATE") -> Result:
        """Do `work` in one transaction on the thread; raises StoreError, and then nothing has changed."""

        def transaction() -> Result:
            try:
                with _transaction(self._connection(), mode) as sql:
                    return work(sql)
            except (sqlite3.Error, OSError) as wrong:
                self._close()
                raise StoreError(f"{self._path}: {wrong}") from wrong

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    def _connection(self) -> sqlite3.Connection:
        """Return the open file, opened again if another one has taken its place."""
        if self._open is not None:
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    return self._open
            self._close()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(0o600)
        sql = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._open, self._inode = sql, self._path.stat().st_ino
        _write_ahead(sql)
        sql.execute("PRAGMA synchronous=NORMAL")
        with _transaction(sql, "IMMEDIATE"):
            for statement in _SCHEMA.split(";\n"):
                sql.execute(statement)
            sql.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', ?)", (uuid4().hex,))
        return sql

    def _close(self) -> None:
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _append(self, sql: sqlite3.Connection, origin: str, after: int, batches: Sequence[Batch]) -> int:
        last = _applied(sql, origin)
        if last < after or not any(batch.seq > last for batch in batches):
            return last
        for batch in batches:
            if batch.seq <= last:
                continue
            rows = ((*row.key, name, amount) for row in batch.rows for name, amount in row.measures.items())
            sql.executemany(_ADD, rows)
            if any(batch.deltas.values()):
                self._learn(sql, origin, batch)
            last = batch.seq
        row = "INSERT OR REPLACE INTO origins (origin, seq) VALUES (?, ?)"  # replaced: the most recently touched again
        touched = sql.execute(row, (origin, last)).lastrowid or 0
        known = "SELECT touched FROM origins ORDER BY touched DESC LIMIT 1 OFFSET ?"
        if touched > MAX_ORIGINS:
            sql.execute(f"DELETE FROM origins WHERE touched <= ({known})", (MAX_ORIGINS,))  # noqa: S608
        return last

    def _learn(self, sql: sqlite3.Connection, origin: str, batch: Batch) -> None:
        push = (origin, batch.seq, batch.previous, _encode(batch.deltas).decode())
        position = sql.execute("INSERT INTO pushes VALUES (NULL, ?, ?, ?, ?)", push).lastrowid or 0
        sql.execute("DELETE FROM pushes WHERE position <= ?", (position - self._log_entries,))
        for namespace, keys in batch.deltas.items():
            for key, numbers in keys.items():
                query = "SELECT numbers FROM learned WHERE namespace = ? AND key = ?"
                held = sql.execute(query, (namespace, key)).fetchone()
                sums = plus(_numbers(held[0]) if held else (), numbers)
                sql.execute(_SET_LEARNED, (namespace, key, _encode(sums).decode(), position))
        surplus = sql.execute("SELECT count(*) FROM learned").fetchone()[0] - self._max_keys
        if surplus > 0:
            oldest = "SELECT namespace, key FROM learned ORDER BY touched LIMIT ?"
            sql.execute(f"DELETE FROM learned WHERE (namespace, key) IN ({oldest})", (surplus,))  # noqa: S608


def _write_ahead(sql: sqlite3.Connection) -> None:
    """Let readers go on beside a writer. SQLite's own timeout leaves out others that open a new file at the same moment."""
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            sql.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return


@contextmanager
def _transaction(sql: sqlite3.Connection, mode: Mode) -> Iterator[sqlite3.Connection]:
    """All or nothing. Writers take the lock at once: a reader that becomes a writer may be refused without waiting."""
    sql.execute(f"BEGIN {mode}")
    try:
        yield sql
        sql.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            sql.execute("ROLLBACK")
        raise


def _applied(sql: sqlite3.Connection, origin: str) -> int:
    found = sql.execute("SELECT seq FROM origins WHERE origin = ?", (origin,)).fetchone()
    return int(found[0]) if found else 0


def _epoch(sql: sqlite3.Connection) -> str:
    return str(sql.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0])


def _totals(sql: sqlite3.Connection, first: str, last: str) -> list[Row]:
    sums: dict[tuple[str, str, str, str], dict[str, float]] = {}
    query = "SELECT * FROM ledger WHERE day BETWEEN ? AND ? ORDER BY day, tenant, model, pool, measure"
    for day, tenant, model, pool, measure, amount in sql.execute(query, (first, last)):
        sums.setdefault((day, tenant, model, pool), {})[measure] = amount
    return [Row(*key, measures) for key, measures in sums.items()]


def _pull(sql: sqlite3.Connection, position: str) -> Pulled:
    asked = int(position or 0)
    head = int(sql.execute(_POSITION).fetchone()[0])
    oldest = sql.execute("SELECT min(position) FROM pushes").fetchone()[0] or head + 1
    query = "SELECT origin, seq, previous, deltas FROM pushes WHERE position > ? ORDER BY position"
    pushes = tuple(
        Push(origin, seq, previous, _deltas(text)) for origin, seq, previous, text in sql.execute(query, (asked,))
    )
    return Pulled(_epoch(sql), str(head), pushes, not position or asked >= oldest - 1)


def _snapshot(sql: sqlite3.Connection) -> Snapshot:
    sums: Sums = {}
    for namespace, key, numbers in sql.execute("SELECT namespace, key, numbers FROM learned"):
        sums.setdefault(namespace, {})[key] = _numbers(numbers)
    applied = {origin: int(seq) for origin, seq in sql.execute("SELECT origin, seq FROM origins")}
    return Snapshot(_epoch(sql), str(sql.execute(_POSITION).fetchone()[0]), applied, sums)


def _lease(sql: sqlite3.Connection, key: str, amount: float, limit: float, now: float, ttl: float) -> Grant:
    found = sql.execute("SELECT used, ends FROM counters WHERE key = ? AND ends > ?", (key, now)).fetchone()
    if found is None:
        sql.execute("DELETE FROM counters WHERE ends <= ?", (now,))
    used, ends = found or (0.0, now + ttl)
    granted = max(amount, -used) if amount < 0 else min(amount, max(0.0, limit - used))
    sql.execute("INSERT OR REPLACE INTO counters VALUES (?, ?, ?)", (key, used + granted, ends))
    return Grant(granted, used + granted)
