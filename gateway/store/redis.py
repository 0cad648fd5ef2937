"""The Store of a fleet: a Redis (or Valkey) that gateways on many machines share.

Every answer is waited for a bounded time, a broken connection is a `StoreError` at once, and when to try again is the
caller's affair. Nothing is kept here that Redis could contradict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import Final, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.store import scripts
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
)

TIMEOUT_SECONDS: Final = 2.0  # far above a healthy answer, far below what would pile work up
_SEPARATOR: Final = scripts.SEPARATOR

_encode: Final = msgspec.json.Encoder().encode
_list: Final = msgspec.json.Decoder(list[str]).decode
_deltas: Final = msgspec.json.Decoder(dict[str, dict[str, list[float]]]).decode

Result = TypeVar("Result")
Text = TypeVar("Text", str, bytes)
Argument = str | bytes | int | float


class RedisStore:
    """A Store in Redis; all keys begin with `{namespace}:`."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "draftlane",
        timeout: float = TIMEOUT_SECONDS,
        max_keys: int = MAX_KEYS,
        log_entries: int = LOG_ENTRIES,
    ) -> None:
        # A repeated command may count twice, so the client repeats nothing: sequences make *our* repeats safe.
        retry = Retry(NoBackoff(), 0)
        self._redis: Redis = Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry)
        self._prefix = "{" + namespace + "}:"
        self._limits = (max_keys, log_entries, MAX_ORIGINS)
        self._append = self._redis.register_script(scripts.APPEND)
        self._snapshot = self._redis.register_script(scripts.SNAPSHOT)
        self._pull = self._redis.register_script(scripts.PULL)
        self._lease = self._redis.register_script(scripts.LEASE)

    def __repr__(self) -> str:
        where = self._redis.connection_pool.connection_kwargs  # without the password that a URL may hold
        return f"<RedisStore {where.get('host', where.get('path'))}:{where.get('port', '')} {self._prefix}>"

    async def open(self) -> None:
        """Do nothing: the first call connects."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def applied(self, origins: Sequence[str]) -> dict[str, int]:
        """Return the last sequence that counted of each origin."""
        if not origins:
            return {}
        found = await _answer(self._redis.hmget(self._key("origins"), list(origins)))
        return {origin: int(seq or 0) for origin, seq in zip(origins, found, strict=True)}

    async def append(self, origin: str, after: int, batches: Sequence[Batch]) -> int:
        """Count the batches that have not counted, in one script; return the origin's last sequence."""
        days = sorted({row.day for batch in batches for row in batch.rows})
        names = ("origins", "origins:touched", "learned", "learned:touched", "pushes", "clock", "days")
        keys = [self._key(name) for name in (*names, *(f"ledger:{day}" for day in days))]
        arguments: list[Argument] = [origin, after, *self._limits, len(days), *days]
        for batch in batches:
            arguments += _arguments(batch, {day: index for index, day in enumerate(days, 1)})
        return int(await _answer(self._append(keys=keys, args=arguments)))

    async def totals(self, first: str, last: str) -> list[Row]:
        """Return the ledger between two days."""
        members = await _answer(cast("Awaitable[set[bytes]]", self._redis.smembers(self._key("days"))))
        days = sorted(day for day in (member.decode() for member in members) if first <= day <= last)
        if not days:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for day in days:
                pipe.hgetall(self._key(f"ledger:{day}"))
            hashes = await _answer(pipe.execute())
        return [row for day, amounts in zip(days, hashes, strict=True) for row in _rows(day, amounts)]

    async def pull(self, position: str) -> Pulled:
        """Return the pushes after a position."""
        epoch = await self._epoch()
        pushes, newest, whole = await _answer(self._pull(keys=[self._key("pushes")], args=[position]))
        return Pulled(epoch, newest.decode(), tuple(_push(fields) for _, fields in pushes), bool(whole))

    async def snapshot(self) -> Snapshot:
        """Return all learning, in one script."""
        epoch = await self._epoch()
        keys = [self._key(name) for name in ("learned", "origins", "pushes")]
        learned, origins, position = await _answer(self._snapshot(keys=keys))
        applied = {origin: int(seq) for origin, seq in _pairs(_strings(origins))}
        return Snapshot(epoch, position.decode(), applied, await asyncio.to_thread(_sums, learned))

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Take from a counter within its limit, or give back."""
        arguments: list[Argument] = [repr(amount), repr(limit), ceil(ttl * 1000)]
        granted, used = await _answer(self._lease(keys=[self._key(f"counter:{key}")], args=arguments))
        return Grant(float(granted), float(used))

    async def keep(self, receipts: Mapping[str, bytes]) -> None:
        """Keep receipts, each with its own time to live."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id, receipt in receipts.items():
                pipe.set(self._key(f"receipt:{request_id}"), receipt, ex=ceil(RECEIPT_SECONDS))
            await _answer(pipe.execute())

    async def receipt(self, request_id: str) -> bytes | None:
        """Return a kept receipt."""
        return cast("bytes | None", await _answer(self._redis.get(self._key(f"receipt:{request_id}"))))

    def _key(self, name: str) -> str:
        return self._prefix + name

    async def _epoch(self) -> str:
        """Return the identity of the server's run: a restart or a fail-over may have gone back in time."""
        return str((await _answer(self._redis.info("server")))["run_id"])


async def _answer(command: Awaitable[Result]) -> Result:
    try:
        return await command
    except (RedisError, OSError, TimeoutError) as wrong:
        raise StoreError(f"redis: {wrong or type(wrong).__name__}") from wrong


def _arguments(batch: Batch, day_index: Mapping[str, int]) -> list[Argument]:
    """Return a batch as the script reads it."""
    amounts: list[Argument] = []
    for row in batch.rows:
        for measure, amount in row.measures.items():
            field = _SEPARATOR.join((row.tenant, row.model, row.pool, measure))
            amounts += (day_index[row.day], field, _number(amount))
    learned: list[Argument] = []
    for namespace, keys in batch.deltas.items():
        for key, numbers in keys.items():
            learned += (f"{namespace}{_SEPARATOR}{key}", len(numbers), *map(_number, numbers))
    keys_learned = sum(map(len, batch.deltas.values()))
    deltas = _encode(batch.deltas) if learned else b""
    return [batch.seq, batch.previous, len(amounts) // 3, *amounts, keys_learned, *learned, deltas]


def _number(number: float) -> str:
    """Return all digits; what is none becomes 0, as a script that fails halfway would leave half a batch behind."""
    return repr(float(number)) if isfinite(number) else "0"


def _rows(day: str, amounts: Mapping[bytes, bytes]) -> list[Row]:
    sums: dict[tuple[str, ...], dict[str, float]] = {}
    for field, amount in amounts.items():
        *key, measure = field.decode().split(_SEPARATOR)
        sums.setdefault(tuple(key), {})[measure] = float(amount)
    return [Row(day, tenant, model, pool, measures) for (tenant, model, pool), measures in sorted(sums.items())]


def _sums(learned: bytes) -> Sums:
    sums: Sums = {}
    for field, numbers in _pairs(_strings(learned)):
        namespace, _, key = field.partition(_SEPARATOR)
        sums.setdefault(namespace, {})[key] = [float(number) for number in numbers.split()]
    return sums


def _strings(text: bytes) -> list[str]:
    """Return a list that Lua has encoded; its empty table is an object."""
    return [] if text == b"{}" else _list(text)


def _push(fields: Sequence[bytes]) -> Push:
    by_name = dict(_pairs(fields))
    return Push(
        by_name[b"origin"].decode(), int(by_name[b"seq"]), int(by_name[b"previous"]), _deltas(by_name[b"deltas"])
    )


def _pairs(flat: Sequence[Text]) -> Iterator[tuple[Text, Text]]:
    return zip(flat[::2], flat[1::2], strict=True)
