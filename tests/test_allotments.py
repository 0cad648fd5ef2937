"""Limits that several processes keep together: close to the limit from below and above, and never a wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from stores import RedisServer, until

from gateway.store import Grant, MemoryStore, Store, StoreError
from gateway.store.allotments import REFRESH_SECONDS, Allotment, Allotments, every, monthly
from gateway.store.redis import RedisStore

LIMIT = 60_000.0
CALL = 300.0
BEGIN = 1_796_040_000.0  # a whole minute


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Run a real server."""
    running = RedisServer(durable=False)
    yield running
    running.close()


class Fickle(MemoryStore):
    """A Store that is away when told so."""

    away = False

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Lease, unless it is away."""
        if self.away:
            raise StoreError("away")
        return await super().lease(key, amount, limit=limit, ttl=ttl)


async def run(
    parts: list[Allotment], store: Store, *, per_second: float, seconds: int, weights: list[float], begin: float = BEGIN
) -> list[float]:
    """Let calls come at random to the processes, by weight, in virtual time; return what each minute let through."""
    chance = random.Random(7)
    minutes = [0.0] * -(-seconds // 60)
    ticks_per_second = round(1 / REFRESH_SECONDS)
    for tick in range(seconds * ticks_per_second):
        now = begin + tick * REFRESH_SECONDS
        for part in parts:
            await part.refresh(store, now)
        for _ in range(round(per_second / ticks_per_second)):
            at = now + chance.random() * REFRESH_SECONDS * 0.999
            if chance.choices(parts, weights)[0].take(CALL, at) == 0.0:
                minutes[tick // ticks_per_second // 60] += CALL
    return minutes


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("load", [1.3, 3.0, 20.0])
async def test_too_much_gets_the_limit(processes: int, load: float) -> None:
    """Whatever the load above the limit and however it is spread, each minute lets the limit through, within 5 %."""
    parts = [Allotment("tokens:acme", LIMIT, every(60)) for _ in range(processes)]
    weights = [1.0 / (1 + i) for i in range(processes)]
    minutes = await run(
        parts, MemoryStore(clock=lambda: BEGIN), per_second=load * LIMIT / 60 / CALL, seconds=240, weights=weights
    )

    assert minutes == pytest.approx([LIMIT] * 4, rel=0.05)


@pytest.mark.parametrize("processes", [1, 4])
async def test_less_than_the_limit_is_not_refused(processes: int) -> None:
    """A steady load of four fifths of the limit goes through, all but 1 % of it."""
    parts = [Allotment("tokens:acme", LIMIT, every(60)) for _ in range(processes)]
    per_second = 0.8 * LIMIT / 60 / CALL // 4 * 4
    minutes = await run(
        parts, MemoryStore(clock=lambda: BEGIN), per_second=per_second, seconds=240, weights=[1.0] * processes
    )

    assert sum(minutes) >= 0.99 * per_second * 240 * CALL


async def test_demand_may_move_between_processes() -> None:
    """What one process leased and no longer needs serves another, within the same window."""
    store = MemoryStore(clock=lambda: BEGIN)
    parts = [Allotment("tokens:acme", LIMIT, every(60)) for _ in range(2)]
    heavy = 8.0  # a second: 36,000 of the 60,000 tokens in the first quarter of the minute
    first = await run(parts, store, per_second=heavy, seconds=15, weights=[1.0, 0.0])
    second = await run(parts, store, per_second=2 * heavy, seconds=44, weights=[0.0, 1.0], begin=BEGIN + 15)

    assert first[0] + second[0] == pytest.approx(LIMIT, rel=0.05)


async def test_taking_never_waits_and_says_when_to_come_again() -> None:
    """A spent lease asks for more soon; a spent limit says when its window ends; the next window starts with a lease."""
    store, hungry = MemoryStore(clock=lambda: BEGIN), []
    part = Allotment("tokens:acme", 1000.0, every(60), lambda: hungry.append(1))
    await part.refresh(store, BEGIN)
    assert part.take(900.0, BEGIN) == 0.0
    assert 0.0 < part.take(50.0, BEGIN) < REFRESH_SECONDS
    assert hungry == [1]
    await part.refresh(store, BEGIN + 1)
    assert part.take(600.0, BEGIN + 1) == 0.0
    await part.refresh(store, BEGIN + 2)

    assert part.take(1.0, BEGIN + 20) == 40.0
    await part.refresh(store, BEGIN + 59.9)
    assert part.take(1.0, BEGIN + 60.1) == 0.0


async def test_estimates_are_corrected() -> None:
    """What a call used less than its estimate can be spent again, what it used more is owed."""
    store = MemoryStore(clock=lambda: BEGIN)
    part = Allotment("usd:acme", 10.0, every(86_400))
    await part.refresh(store, BEGIN)
    part.take(20.0, BEGIN)
    await part.refresh(store, BEGIN + 1)
    assert part.take(1.0, BEGIN + 1) > 0
    part.settle(-15.0, BEGIN + 1)
    await part.refresh(store, BEGIN + 2)
    assert part.take(1.0, BEGIN + 2) == 0.0
    part.settle(9.0, BEGIN + 2)
    await part.refresh(store, BEGIN + 3)

    assert part.take(0.1, BEGIN + 3) > 0


async def test_without_the_store_each_keeps_to_its_part() -> None:
    """While the Store is away, processes together let through about what they did in the window before."""
    store = Fickle(clock=lambda: BEGIN)
    parts = [Allotment("tokens:acme", LIMIT, every(60)) for _ in range(3)]
    await run(parts, store, per_second=2 * LIMIT / 60 / CALL, seconds=58, weights=[3.0, 2.0, 1.0])
    store.away = True
    let_through = 0.0
    chance = random.Random(1)
    for i in range(2000):
        now = BEGIN + 61 + i * 0.02
        part = chance.choices(parts, [3.0, 2.0, 1.0])[0]
        with pytest.raises(StoreError):
            await part.refresh(store, now)
        let_through += CALL if part.take(CALL, now) == 0.0 else 0.0

    assert let_through == pytest.approx(LIMIT, rel=0.05)


async def test_a_clock_set_back_blocks_nothing() -> None:
    """A clock that jumps back by a day leads to that day's window at the next refresh, not to a stuck one."""
    store = MemoryStore(clock=lambda: BEGIN)
    part = Allotment("tokens:acme", 1000.0, every(60))
    await part.refresh(store, BEGIN)
    window = part.name
    await part.refresh(store, BEGIN - 86_400)

    assert part.name != window
    assert part.take(1.0, BEGIN - 86_400) == 0.0


@pytest.mark.parametrize(
    ("day", "name", "end"),
    [
        (datetime(2028, 2, 29, 23, tzinfo=UTC), "2028-02", datetime(2028, 3, 1, tzinfo=UTC)),
        (datetime(2026, 12, 31, 23, tzinfo=UTC), "2026-12", datetime(2027, 1, 1, tzinfo=UTC)),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01", datetime(2026, 2, 1, tzinfo=UTC)),
    ],
)
def test_months_end_with_the_calendar(day: datetime, name: str, end: datetime) -> None:
    """Monthly windows follow the calendar in UTC, leap years and turns of the year included."""
    assert monthly(day.timestamp()) == (name, end.timestamp())


async def test_two_processes_over_redis_keep_one_limit(server: RedisServer) -> None:
    """Two processes that refresh in the background over a real Redis never lease more than the limit together."""
    stores = [RedisStore(server.url) for _ in range(2)]
    both = [Allotments(store, clock=lambda: BEGIN + 5) for store in stores]
    parts = [each.of("tokens:acme", 10_000.0, every(60)) for each in both]
    for each in both:
        await each.start()
    taken = [0.0, 0.0]

    def exhausted() -> bool:
        for i, part in enumerate(parts):
            if part.take(100.0, BEGIN + 5) == 0.0:
                taken[i] += 100.0
        return sum(taken) >= 0.98 * 10_000.0

    await until(exhausted)
    await asyncio.sleep(2 * REFRESH_SECONDS)
    exhausted()
    for each, store in zip(both, stores, strict=True):
        await each.stop()
        await store.aclose()

    assert min(taken) > 0
    assert 9_500.0 <= sum(taken) <= 10_500.0


async def test_a_reload_keeps_what_was_spent() -> None:
    """A limit that changes keeps its window's spending; one that goes is forgotten."""
    limits = Allotments(MemoryStore(), clock=lambda: BEGIN)
    part = limits.of("tokens:acme", 100.0, every(60))
    await limits.refresh()
    part.take(100.0, BEGIN)
    again = limits.of("tokens:acme", 50.0, every(60))
    await limits.refresh()

    assert again is part
    assert again.take(1.0, BEGIN) > 0
    limits.keep([])
    assert limits.of("tokens:acme", 50.0, every(60)) is not part
