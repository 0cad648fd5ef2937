"""Calls at once, limited in all processes together: never more than the limit, nearly all of it used, and no wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import KEY, Running, config_for, serving
from stores import RedisServer

from gateway.config import Config, key_digest
from gateway.engine import EngineSettings, serve
from gateway.store import Grant, MemoryStore, StoreError
from gateway.store.places import WINDOW_SECONDS, Places

BEGIN = 1_796_040_000.0
TICK = 0.25  # between refreshes


class Process:
    """A process whose calls come and go in virtual time."""

    def __init__(self, limit: int) -> None:
        self.ends: list[float] = []
        self.places = Places("running:acme", limit, lambda: len(self.ends))
        self.let_in = 0
        self.refused = 0

    def call(self, now: float, seconds: float) -> None:
        """Let a call in for so long, if there is a place."""
        if self.places.wait() == 0.0:
            self.ends.append(now + seconds)
            self.let_in += 1
        else:
            self.refused += 1

    def pass_to(self, now: float) -> None:
        """End the calls whose time is over."""
        self.ends = [end for end in self.ends if end > now]


class Fickle(MemoryStore):
    """A Store that is away when told so."""

    away = False

    async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
        """Lease, unless it is away."""
        if self.away:
            raise StoreError("away")
        return await super().lease(key, amount, limit=limit, ttl=ttl)


class World:
    """Processes with one Store, in virtual time; `running` holds how many calls ran at each tick."""

    def __init__(self, limit: int, processes: int) -> None:
        self.now = BEGIN
        self.store = Fickle(clock=lambda: self.now)
        self.processes = [Process(limit) for _ in range(processes)]
        self.running: list[int] = []

    async def run(
        self, seconds: float, *, per_second: float, call_seconds: float, weights: list[float], seed: int = 7
    ) -> None:
        """Let calls come at random, by weight; each process refreshes at a moment of its own in every tick."""
        chance = random.Random(seed)
        for _ in range(round(seconds / TICK)):
            events: list[tuple[float, int, bool]] = [
                (index / len(self.processes) * TICK, index, True) for index in range(len(self.processes))
            ]
            for _ in range(round(per_second * TICK)):
                chosen = chance.choices(range(len(self.processes)), weights)[0]
                events.append((chance.random() * TICK, chosen, False))
            for after, index, refreshes in sorted(events):
                at = self.now + after
                for process in self.processes:
                    process.pass_to(at)
                process = self.processes[index]
                if not refreshes:
                    process.call(at, chance.expovariate(1 / call_seconds))
                elif not self.store.away:
                    await process.places.refresh(self.store, at)
                self.running.append(sum(len(each.ends) for each in self.processes))
            self.now += TICK


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("limit", [16, 64, 500])
async def test_too_many_get_the_limit_and_no_more(processes: int, limit: int) -> None:
    """Under five times the load that the limit lets run, never more than the limit runs, and on average 95 % of it does.

    Where that is less than two places, it is all but two.
    """
    world = World(limit, processes)
    weights = [1.0 / (1 + index) for index in range(processes)]
    await world.run(45, per_second=max(8.0, 5 * limit / 8), call_seconds=8.0, weights=weights)
    settled = world.running[len(world.running) // 5 :]

    assert max(world.running) <= limit
    assert sum(settled) / len(settled) >= min(0.95 * limit, limit - 2)


async def test_a_load_that_moves_takes_its_places_along() -> None:
    """When all calls go to another process, it has the limit for itself within seconds."""
    world = World(40, 4)
    await world.run(10, per_second=40, call_seconds=2.0, weights=[1, 0, 0, 0])
    world.running.clear()
    await world.run(10, per_second=40, call_seconds=2.0, weights=[0, 0, 0, 1])

    assert max(world.running) <= 40
    assert len(world.processes[3].ends) >= 38


async def test_who_is_idle_asks_seldom() -> None:
    """A process without calls keeps one place at most and asks the Store a few times in a window, as tenants are many."""
    asked = 0

    class Counting(MemoryStore):
        async def lease(self, key: str, amount: float, *, limit: float, ttl: float) -> Grant:
            nonlocal asked
            asked += 1
            return await super().lease(key, amount, limit=limit, ttl=ttl)

    store, process = Counting(clock=lambda: BEGIN), Process(100)
    for tick in range(round(10 * WINDOW_SECONDS / TICK)):
        await process.places.refresh(store, BEGIN + tick * TICK)

    assert process.places.allowed == 1
    assert asked <= 10 * 5


async def test_a_light_load_is_not_refused() -> None:
    """At half of the limit nearly every call finds a place lying ready."""
    world = World(64, 2)
    await world.run(30, per_second=16, call_seconds=2.0, weights=[1, 1])

    assert sum(process.refused for process in world.processes) <= 0.02 * sum(each.let_in for each in world.processes)


async def test_a_process_that_dies_gives_its_places_back_with_its_window() -> None:
    """What a killed process held is free again two windows later at the latest."""
    world = World(20, 2)
    await world.run(8, per_second=40, call_seconds=100.0, weights=[1, 0])
    assert max(world.running) == 20
    del world.processes[0]
    await world.run(2 * WINDOW_SECONDS, per_second=40, call_seconds=100.0, weights=[1])

    assert max(world.running[-20:]) == 20


async def test_while_the_store_is_away_everyone_keeps_what_it_holds() -> None:
    """Calls are let in as before, never beyond the limit, and the Store's return changes nothing."""
    world = World(40, 2)
    await world.run(12, per_second=40, call_seconds=2.0, weights=[1, 1])
    world.store.away = True
    before = [process.let_in for process in world.processes]
    await world.run(25, per_second=40, call_seconds=2.0, weights=[1, 1])
    world.store.away = False
    await world.run(15, per_second=40, call_seconds=2.0, weights=[1, 1])

    assert all(process.let_in > let_in + 50 for process, let_in in zip(world.processes, before, strict=True))
    assert max(world.running) <= 40
    assert sum(world.running[-100:]) / 100 >= 0.95 * 40


async def test_a_process_that_ends_gives_its_places_back() -> None:
    """At once, and only those that it held."""
    store = MemoryStore(clock=lambda: BEGIN)
    one, two = Process(4), Process(4)
    for process in (one, two):
        await process.places.refresh(store, BEGIN)
    for _ in range(4):
        one.call(BEGIN, 9.0)
        await one.places.refresh(store, BEGIN)
    await one.places.end(store)
    two.call(BEGIN, 9.0)
    for later in (1.0, 2.0):
        await two.places.refresh(store, BEGIN + later)

    assert one.places.allowed == 0
    assert two.places.allowed >= 2
    assert "running:acme" in repr(two.places)


# Whole gateways


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Run a real server."""
    running = RedisServer(durable=False)
    yield running
    running.close()


def shared(url: str, store: dict[str, Any], limit: int) -> Config:
    """Return a configuration of a tenant that may make so many calls at once."""
    return config_for(
        {"plain": [url]},
        pools={"plain": {"slots": 256}},
        tenant=[{"name": "tester", "key_sha256": [key_digest(KEY)], "max_concurrent": limit}],
        store={"flush_seconds": 0.1, **store},
    )


async def crowd(gateways: list[Running], client: httpx.AsyncClient, seconds: float) -> tuple[int, int]:
    """Let forty clients call again and again, spread over gateways; return calls answered and refused."""
    until, counts = time.monotonic() + seconds, {200: 0, 429: 0}
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count to 60."}], "max_tokens": 30}

    async def one(gateway: Running) -> None:
        while time.monotonic() < until:
            answer = await client.post(
                f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
            )
            counts[answer.status_code] += 1
            if answer.status_code == 429:
                assert "concurrent requests: Limit 20" in answer.json()["error"]["message"]
                await asyncio.sleep(0.05)

    await asyncio.gather(*(one(gateways[index % len(gateways)]) for index in range(40)))
    return counts[200], counts[429]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_gateways_that_share_a_store_keep_calls_at_once_together(
    tmp_path: Path, kind: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways under a crowd let the limit run at once between them, and no more."""
    monkeypatch.setenv("TEST_REDIS", redis_server.url)
    store = (
        {"path": str(tmp_path / "store.db")}
        if kind == "sqlite"
        else {"url_env": "TEST_REDIS", "journal": str(tmp_path)}
    )
    seen: list[int] = []
    async with serve(EngineSettings(speed=2, slots=256)) as engine, httpx.AsyncClient(timeout=30) as client:
        config = shared(engine.url, {"kind": kind, **store}, 20)
        async with serving(config) as one, serving(config) as two:

            async def watch() -> None:
                while True:
                    seen.append(engine.engine.batch.running + engine.engine.batch.waiting)
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            answered, refused = await crowd([one, two], client, 6.0)
            watching.cancel()

    assert 19 <= max(seen) <= 20
    assert answered > 80
    assert refused > 0
