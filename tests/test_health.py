"""Health checks: which replicas take calls, by what their engines say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fakes import ANSWER, CHAT, CLOSE, RESET, SILENCE, Script, ScriptedEngine, post, reply, scripted, visitor
from harness import config_for, serving, until

from gateway.control import Control
from gateway.health import FAILURES_TO_LEAVE, HealthChecks
from gateway.pools import Pools, Replica

PATH = "/health/deep"  # scripted engines answer /health by themselves; this one is played
OK: Script = [reply(b"", 200)]


@asynccontextmanager
async def checking(*scripts: Script, **options: Any) -> AsyncIterator[tuple[HealthChecks, Replica, ScriptedEngine]]:
    """Check one replica, whose engine plays these scripts."""
    async with scripted(*scripts) as engine:
        pools = Pools(config_for({"base": [engine.url]}, pools={"base": {"health_path": PATH}}), {})
        control = Control(pools)
        yield HealthChecks(pools, control, **options), pools["base"].replicas[0], engine
        control.close()


async def test_a_healthy_replica_is_asked_at_its_path() -> None:
    """A check is a GET of the pool's health path, and any status below 400 is well."""
    async with checking(OK, [reply(b"", 204)]) as (health, replica, engine):
        for _ in range(2):
            await health.check_all()

        assert [(seen.method, seen.target) for seen in engine.seen] == [("GET", PATH)] * 2
        assert replica.healthy


@pytest.mark.parametrize("fault", [[reply(b"", 503)], [reply(b"", 404)], [RESET], [CLOSE], [b"garbage\r\n\r\n"]])
async def test_two_failures_in_a_row_take_a_replica_out(fault: Script, caplog: pytest.LogCaptureFixture) -> None:
    """One failed check may be chance; the second takes the replica out, and that is said once."""
    async with checking(fault) as (health, replica, _):
        await health.check_all()
        assert replica.healthy
        for _ in range(FAILURES_TO_LEAVE):
            await health.check_all()

        assert not replica.healthy
        assert [record.message.split(":")[0] for record in caplog.records] == ["replica base-0 left out"]


async def test_one_success_brings_it_back(caplog: pytest.LogCaptureFixture) -> None:
    """A replica that answers again takes calls at once, and failures are counted from zero."""
    bad: Script = [reply(b"", 500)]
    async with checking(bad, bad, OK, bad, OK, bad) as (health, replica, _):
        seen = []
        for _ in range(6):
            await health.check_all()
            seen.append(replica.healthy)

        assert seen == [True, False, True, True, True, True]
        assert caplog.records[-1].message == "replica base-0 is healthy again"


async def test_a_dead_engine_is_out() -> None:
    """A replica that nobody listens for fails its checks."""
    async with checking(OK) as (health, replica, _):
        replica.url = "http://127.0.0.1:9"
        for _ in range(FAILURES_TO_LEAVE):
            await health.check_all()

        assert not replica.healthy


async def test_one_silent_replica_does_not_delay_the_others() -> None:
    """Checks run side by side: the healthy replica's is done while the silent one's still waits."""
    async with scripted([SILENCE]) as silent, scripted(OK) as well:
        config = config_for({"base": [silent.url, well.url]}, pools={"base": {"health_path": PATH}})
        pools = Pools(config, {})
        second = pools["base"].replicas[1]
        second.healthy = False
        checks = asyncio.create_task(HealthChecks(pools, Control(pools)).check_all())
        await until(lambda: second.healthy)

        assert not checks.done()
        checks.cancel()
        await asyncio.gather(checks, return_exceptions=True)


async def test_checks_go_on_until_they_are_stopped() -> None:
    """Once started they repeat, spread by chance, and stopping ends them."""
    async with checking(OK, interval_seconds=lambda: 0.02, chance=lambda: 0.0) as (health, _, engine):
        health.start()
        await until(lambda: len(engine.seen) >= 3)
        await health.stop()
        count = len(engine.seen)
        await asyncio.sleep(0.06)

        assert len(engine.seen) == count


async def test_replicas_of_a_reload_are_checked() -> None:
    """A replica that a reload brings needs no restart to be looked at."""
    async with scripted(OK) as old, scripted([reply(b"", 500)]) as new:
        settings = {"base": {"health_path": PATH}}
        pools = Pools(config_for({"base": [old.url]}, pools=settings), {})
        health = HealthChecks(pools, Control(pools))
        await health.check_all()
        pools.apply(config_for({"base": [old.url, new.url]}, pools=settings), {})
        for _ in range(FAILURES_TO_LEAVE):
            await health.check_all()

        assert [replica.healthy for replica in pools["base"].replicas] == [True, False]


async def test_readiness_follows_health() -> None:
    """A gateway whose model has no live replica is not ready, refuses calls at once, and is ready when one is back."""
    async with scripted([reply(ANSWER)], health=500) as engine, serving(config_for({"base": [engine.url]})) as gateway:
        replica = gateway.gateway.pipeline.live.pools["base"].replicas[0]
        replica.healthy = False
        async with httpx.AsyncClient() as client:
            answer = await client.get(gateway.url + "/readyz")
            assert (answer.status_code, answer.json()["problems"]) == (503, ["model demo: no pool has a live replica"])
            assert (await client.get(gateway.url + "/healthz")).status_code == 200
            async with visitor(gateway.port) as guest:
                await guest.send(post(CHAT))
                assert (await guest.answer()).status == 503
            assert engine.seen == []
            replica.healthy = True
            assert (await client.get(gateway.url + "/readyz")).json() == {"status": "ready", "problems": []}


async def test_an_engine_that_talks_is_not_dead() -> None:
    """A check that times out while the engine sends parts of an answer takes nobody out; once it is silent, it does."""
    part = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    talking: Script = [part, *([b"1\r\nx\r\n", 0.02] * 20), SILENCE]
    async with checking(talking, [SILENCE], timeout_seconds=0.1) as (health, replica, engine):
        stream = await replica.client.request(b"POST", b"/v1/chat/completions", [], b"{}")
        await stream.head()
        for _ in range(FAILURES_TO_LEAVE):
            await health.check_all()
        while_talking = replica.healthy
        await until(lambda: engine.seen[0].written >= len(part) + 20 * 6)
        await asyncio.sleep(0.05)  # the last part is on its way
        for _ in range(FAILURES_TO_LEAVE):
            await health.check_all()
        stream.abort()

    assert (while_talking, replica.healthy) == (True, False)
