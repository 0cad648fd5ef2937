"""Turns: tenants one after the other, bounded, nobody forgotten; and that a crowd of one tenant keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from harness import config_for, serving, until

from gateway.config import key_digest
from gateway.engine import EngineSettings, serve
from gateway.errors import GatewayError, RateLimited, Unavailable
from gateway.turns import Turns


class Crowd:
    """Calls that wait at one queue, and the order in which they were let in or sent away."""

    def __init__(self, most: int = 100, seconds: float = 60.0) -> None:
        self.turns = Turns()
        self.went: list[str] = []
        self.sent_away: list[str] = []
        self._most, self._seconds = most, seconds
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Let calls come, in this order; the first letter is the tenant."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._wait(name))
            await asyncio.sleep(0)

    async def _wait(self, name: str) -> None:
        try:
            await self.turns.wait(name[0], most=self._most, seconds=self._seconds, retry_after=3.0)
        except GatewayError as error:
            self.sent_away.append(f"{name} {error.status}")
        else:
            self.went.append(name)

    async def wake(self, count: int) -> None:
        """Wake so many, and let them go."""
        self.turns.wake(count)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def at_rest(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return (self.turns.waiting, self.turns.granted) == (0, 0)


async def test_tenants_take_turns() -> None:
    """However many of one tenant wait, the calls of another are let in every other time, each tenant's in their order."""
    crowd = Crowd()
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for _ in range(7):
        await crowd.wake(1)

    assert crowd.went == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert crowd.at_rest()


async def test_whoever_waits_most_gives_way() -> None:
    """A full queue sends away the last of the longest, or the one who comes where that would be its own."""
    crowd = Crowd(most=4)
    await crowd.come("a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "c1")
    await crowd.wake(10)

    assert sorted(crowd.sent_away) == ["a2 429", "a3 429", "a4 429", "a5 429", "b3 429"]
    assert crowd.went == ["a1", "b1", "c1", "b2"]
    assert crowd.at_rest()


async def test_nobody_waits_for_ever() -> None:
    """After the longest wait a call is told that no engine was free, and is forgotten."""
    crowd = Crowd(seconds=0.02)
    await crowd.come("a1", "b1")
    await until(lambda: len(crowd.sent_away) == 2)

    assert sorted(crowd.sent_away) == ["a1 503", "b1 503"]
    await crowd.wake(1)
    assert crowd.went == []
    assert crowd.at_rest()


async def test_a_turn_that_nobody_takes_is_passed_on() -> None:
    """A client that leaves, whether it waits or has just been woken, costs no one a turn."""
    crowd = Crowd()
    await crowd.come("a1", "b1", "c1")
    crowd.tasks["a1"].cancel()
    crowd.turns.wake(1)
    crowd.tasks["b1"].cancel()
    await asyncio.sleep(0.01)

    assert crowd.went == ["c1"]
    assert crowd.at_rest()


async def test_waiting_raises_what_the_client_is_told() -> None:
    """The two refusals are told apart: too many of one's own, or no engine in time."""
    turns = Turns()
    with pytest.raises(RateLimited, match="Too many of your requests"):
        await turns.wait("a", most=0, seconds=1.0, retry_after=1.0)
    with pytest.raises(Unavailable, match="No engine was free"):
        await turns.wait("a", most=1, seconds=0.0, retry_after=1.0)


# ── Through the gateway ───────────────────────────────────────────────────────────────────────────────────────────────

TENANTS = [{"name": name, "key_sha256": [key_digest(f"key {name}")]} for name in ("crowd", "single")]


async def ask(client: httpx.AsyncClient, url: str, tenant: str, **fields: Any) -> httpx.Response:
    """Ask for a short answer on behalf of a tenant."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count to 9."}], "max_tokens": 20, **fields}
    headers = {"authorization": f"Bearer key {tenant}"}
    return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def test_a_crowd_of_one_tenant_keeps_no_other_waiting() -> None:
    """While one tenant has sixty calls in hand on two slots, another's are answered as if there were a few of them."""
    async with serve(EngineSettings(slots=2, speed=30)) as engine, httpx.AsyncClient(timeout=60) as client:
        config = config_for({"plain": [engine.url]}, pools={"plain": {"slots": 2}}, tenant=TENANTS)
        async with serving(config) as gateway:
            crowd = [asyncio.create_task(ask(client, gateway.url, "crowd")) for _ in range(60)]
            await until(lambda: engine.batch.waiting >= 2)
            single = [await ask(client, gateway.url, "single") for _ in range(3)]
            ahead = sum(task.done() for task in crowd)
            page = (await client.get(f"{gateway.url}/metrics")).text
            answers = await asyncio.gather(*crowd)

    assert {answer.status_code for answer in (*single, *answers)} == {200}
    assert ahead <= 24  # of sixty: for each of the three, four that were with the engine already, and its own turn
    assert len(engine.record) == 63
    assert 'draftlane_pool_waiting{pool="plain"}' in page
    assert 'draftlane_queue_seconds_count{pool="plain"}' in page


async def test_a_full_queue_is_told_with_when_to_come_back() -> None:
    """Beyond what may wait, a call is refused at once, with a Retry-After and OpenAI's error object."""
    limits = {"max_waiting": 2, "queue_ahead": 0.0}
    async with serve(EngineSettings(slots=1, speed=5)) as engine, httpx.AsyncClient(timeout=60) as client:
        config = config_for({"plain": [engine.url]}, pools={"plain": {"slots": 1}}, tenant=TENANTS, limits=limits)
        async with serving(config) as gateway:
            answers = await asyncio.gather(*(ask(client, gateway.url, "crowd") for _ in range(6)))

    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 3
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {
        (429, "rate_limit_exceeded")
    }
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


async def test_a_full_gateway_says_so_and_is_well() -> None:
    """Beyond limits.max_concurrent a call is told to come back before anything is done for it; health answers on."""
    async with serve(EngineSettings(slots=4, speed=2)) as engine, httpx.AsyncClient(timeout=60) as client:
        config = config_for({"plain": [engine.url]}, tenant=TENANTS, limits={"max_concurrent": 2})
        async with serving(config) as gateway:
            calls = [asyncio.create_task(ask(client, gateway.url, "crowd")) for _ in range(2)]
            await until(lambda: engine.batch.running == 2)
            refused = await ask(client, gateway.url, "single")
            health = await client.get(f"{gateway.url}/healthz")
            answers = await asyncio.gather(*calls)
            later = await ask(client, gateway.url, "single")

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert {answer.status_code for answer in (health, *answers, later)} == {200}
    assert len(engine.record) == 3


async def test_those_who_wait_go_elsewhere_when_their_pool_dies() -> None:
    """A call that waits for an engine that goes down is answered by another pool."""
    async with (
        serve(EngineSettings(kind="speculative", slots=1, speed=2)) as first,
        serve(EngineSettings(slots=8, speed=100)) as second,
        httpx.AsyncClient(timeout=60) as client,
    ):
        pools = {"spec": {"slots": 1}, "plain": {"slots": 8, "step_seconds": 5.0}}  # so that nobody would choose it
        config = config_for(
            {"spec": [first.url], "plain": [second.url]},
            pools=pools,
            tenant=TENANTS,
            limits={"queue_ahead": 0.0, "health_seconds": 0.1},
        )
        async with serving(config) as gateway:
            calls = [asyncio.create_task(ask(client, gateway.url, "crowd", max_tokens=400)) for _ in range(4)]
            await until(lambda: gateway.gateway.pipeline.live.pools["spec"].turns.waiting == 3)
            first.fault("flap", seconds=60.0)
            for connection in list(first.connections):
                connection.transport.abort()
            answers = await asyncio.gather(*calls)

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-draftlane-pool"] for answer in answers} == {"plain"}
