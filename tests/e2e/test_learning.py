"""The loop closes: what engines really accept moves what is expected, published and decided. Over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from harness import ADMIN_KEY, KEY, Running, config_for, serving, until

from gateway.engine import EngineSettings, serve
from gateway.engine.running import Running as Engine

SPEED = 400.0  # a step of 105 ms takes a quarter of a millisecond
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
STEADY = 60.0  # where step times themselves decide: slow enough that a busy machine does not blur them


@asynccontextmanager
async def two_pools(speed: float = SPEED, **speculative: Any) -> AsyncIterator[tuple[Engine, Engine]]:
    """Run one engine of each kind."""
    async with (
        serve(EngineSettings(kind="speculative", speed=speed, slots=16, **speculative)) as fast,
        serve(EngineSettings(kind="baseline", speed=speed, slots=16)) as slow,
    ):
        yield fast, slow


def config(fast: Engine, slow: Engine, speed: float = SPEED, **sections: Any) -> Any:
    """Configure a gateway in front of both, with step times that fit the engines' speed."""
    shared = {"ttft_seconds": 0.1 / speed, "slots": 16}
    pools = {"spec": {"step_seconds": 0.105 / speed, **shared}, "base": {"step_seconds": 0.045 / speed, **shared}}
    return config_for({"spec": [fast.url], "base": [slow.url]}, pools=pools, **sections)


def counting(
    start: int, *, system: str = "You print numbers.", stream: bool = True, tokens: int = 80
) -> dict[str, Any]:
    """A request whose answer any draft can guess."""
    return {
        "model": "demo",
        "temperature": 0,
        "max_tokens": tokens,
        "stream": stream,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Count from {start} to {start + 90}, separated by commas."},
        ],
    }


async def ask(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> httpx.Response:
    """Send one call and check that it was answered."""
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def client_of(gateway: Running) -> httpx.AsyncClient:
    """A client with the tenant's key."""
    return httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30)


async def pool_state(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """Return one pool's part of /draftlane/state."""
    state = (await client.get("/draftlane/state", headers=ADMIN)).json()
    return next(pool for pool in state["pools"] if pool["name"] == name)


async def test_a_worse_draft_moves_the_threshold_and_then_the_traffic() -> None:
    """A draft that is made worse while traffic runs raises the score to reach, until calls that speculated go to baseline."""
    async with (
        two_pools(STEADY) as (fast, slow),
        serving(config(fast, slow, STEADY)) as gateway,
        client_of(gateway) as client,
    ):
        for start in range(20):
            await ask(client, counting(start, tokens=40))
        good = gateway.finished[-1]
        assert good.pool == "spec"
        assert good.expected is not None
        assert good.expected > 2.5

        fast.settings.draft_quality = 0.0
        pools = []
        for start in range(300):
            pools.append((await ask(client, counting(start, tokens=40))).headers["x-draftlane-pool"])
            if pools[-10:] == ["base"] * 10:
                break

        bad = gateway.finished[-1]
        assert pools[-10:] == ["base"] * 10
        assert bad.reason == "unpredictable"
        assert bad.threshold is not None
        assert good.threshold is not None
        assert bad.threshold > good.threshold
        assert bad.expected is not None
        assert bad.break_even is not None
        assert bad.expected < bad.break_even


async def test_sources_of_acceptance_agree_and_the_control_reads_one() -> None:
    """Per-request metrics and events tell the same acceptance, and on baseline every source that counts steps reads 1.00."""
    async with (
        two_pools(per_request_metrics=True) as (fast, slow),
        serving(config(fast, slow)) as gateway,
        client_of(gateway) as client,
    ):
        for stream in (True, False):
            for route in ("speculative", "baseline"):
                await ask(client, counting(7, stream=stream), **{"x-draftlane-route": route})

        by = {(call.pool, call.stream): call for call in gateway.finished}
        told, counted = by["spec", False], by["spec", True]
        control = by["base", True]
        assert told.source == counted.source == "engine"
        assert told.acceptance == counted.acceptance
        assert counted.acceptance is not None
        assert counted.acceptance > 2
        assert control.source == "events"
        assert control.acceptance == 1.0


async def test_two_gateways_over_one_store_agree(tmp_path: Path) -> None:
    """What one gateway learns, another over the same Store publishes too, within 2 percent of the threshold."""
    store = {"kind": "sqlite", "path": str(tmp_path / "shared.db"), "flush_seconds": 0.1}
    async with two_pools(draft_quality=0.3) as (fast, slow):
        settings = config(fast, slow, store=store)
        async with serving(settings) as first, serving(settings) as second, client_of(first) as client:
            for start in range(60):
                await ask(client, counting(start), **{"x-draftlane-route": "speculative"})

            def expected(gateway: Running) -> float:
                live = gateway.gateway.pipeline.live
                view = live.pools["spec"].view(0.0)
                now = first.finished[-1].time
                return sum(point.mean for point in live.curves.points(view, 0.0, now))

            before = expected(second)
            await until(lambda: abs(expected(second) / expected(first) - 1) < 0.02 and expected(second) != before)
            needed = 2.0

            def theta(gateway: Running) -> float:
                live = gateway.gateway.pipeline.live
                return live.curves.threshold(live.pools["spec"].view(0.0), 0.0, needed, first.finished[-1].time)

            assert abs(theta(first) - theta(second)) <= 0.02 * max(theta(first), 0.05)


async def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    """A gateway that starts over an old Store expects what the former one had learned."""
    store = {"kind": "sqlite", "path": str(tmp_path / "kept.db"), "flush_seconds": 0.1}
    async with two_pools(draft_quality=0.0) as (fast, slow):
        settings = config(fast, slow, store=store)
        async with serving(settings) as gateway, client_of(gateway) as client:
            for start in range(40):
                await ask(client, counting(start), **{"x-draftlane-route": "speculative"})
            before = await pool_state(client, "spec")
        async with serving(settings) as gateway, client_of(gateway) as client:
            after = await pool_state(client, "spec")

    assert sum(point["samples"] for point in before["curve"]) > 1
    for old, new in zip(before["curve"], after["curve"], strict=True):
        assert abs(new["acceptance_length"] - old["acceptance_length"]) < 0.05


async def test_a_receipt_tells_prediction_and_outcome() -> None:
    """A call's receipt holds predicted and observed acceptance, pool, cost and what it would have cost elsewhere."""
    async with two_pools() as (fast, slow), serving(config(fast, slow)) as gateway, client_of(gateway) as client:
        answer = await ask(client, counting(3))
        receipt = (await client.get(f"/draftlane/receipts/{answer.headers['x-request-id']}", headers=ADMIN)).json()
        missing = await client.get("/draftlane/receipts/req-nobody", headers=ADMIN)

    assert receipt["pool"] == "spec"
    assert receipt["expected"] > 1
    assert receipt["acceptance"] > 2
    assert receipt["source"] == "events"
    assert receipt["cost_usd"] > 0
    assert receipt["counterfactual"]["baseline"] > 0
    assert "break-even" in receipt["detail"]
    assert missing.status_code == 404


async def test_a_shadow_tenant_is_served_by_baseline_and_copied_to_the_other_pool() -> None:
    """Policy shadow serves from baseline, records the choice, and its copies run elsewhere on nobody's bill."""
    async with two_pools() as (fast, slow):
        tenant = {"name": "careful", "policy": "shadow", "anonymous": True}
        settings = config(fast, slow, tenant=[tenant], routing={"shadow_share": 1.0})
        async with serving(settings) as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
            copies: list[Any] = []
            gateway.gateway.pipeline.live.mirror.add_sink(copies.append)
            answer = await ask(client, counting(5))
            await until(lambda: copies)

    original, copy = gateway.finished[0], copies[0]
    assert answer.headers["x-draftlane-pool"] == "base"
    assert answer.headers["x-draftlane-reason"] == "shadow"
    assert original.shadow == "spec"
    assert (copy.pool, copy.copy_of, copy.tenant) == ("spec", original.request_id, "(shadow)")
    assert copy.acceptance > 2
    assert len(gateway.finished) == 1


async def test_the_kill_switch_sends_everything_to_baseline() -> None:
    """A pool that an operator disables gets no call, says so, and comes back when enabled."""
    async with two_pools() as (fast, slow), serving(config(fast, slow)) as gateway, client_of(gateway) as client:
        await client.post("/draftlane/pools/spec/disable", headers=ADMIN)
        off = await ask(client, counting(1))
        state = await pool_state(client, "spec")
        await client.post("/draftlane/pools/spec/enable", headers=ADMIN)
        on = await ask(client, counting(2))

    assert (off.headers["x-draftlane-pool"], off.headers["x-draftlane-reason"]) == ("base", "pool_down")
    assert state["why_unavailable"] == "switched off"
    assert on.headers["x-draftlane-pool"] == "spec"


async def test_a_conversation_returns_to_the_replica_that_holds_its_prefix() -> None:
    """The second turn of a conversation goes to the replica of the first, wherever chance would have sent it."""
    engines = [EngineSettings(kind="baseline", speed=SPEED) for _ in range(4)]
    async with serve(engines[0]) as a, serve(engines[1]) as b, serve(engines[2]) as c, serve(engines[3]) as d:
        settings = config_for({"base": [a.url, b.url, c.url, d.url]})
        async with serving(settings) as gateway, client_of(gateway) as client:
            for number in range(8):
                turn = [{"role": "user", "content": f"Tell me about number {number}."}]
                body = {"model": "demo", "max_tokens": 5, "messages": turn}
                said = (await ask(client, body)).json()["choices"][0]["message"]["content"]
                turn += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
                await ask(client, body)

    replicas = [call.replica for call in gateway.finished]
    assert replicas[::2] == replicas[1::2]
    assert len(set(replicas)) > 1


async def test_load_of_other_gateways_is_seen_by_scraping() -> None:
    """Requests that reach an engine past this gateway count as its load, once they are scraped."""
    async with (
        serve(EngineSettings(kind="baseline", speed=1.0)) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
        httpx.AsyncClient() as client,
    ):
        body = {"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "Tell me a story."}]}
        others = [asyncio.create_task(client.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(3)]
        await until(lambda: engine.batch.running == 3)
        scrape = gateway.gateway._beside.scrape  # type: ignore[union-attr]
        for replica in gateway.gateway.pipeline.live.pools["base"].replicas:
            scrape.of(replica).due_at = 0.0
        await scrape.scrape_due()

        assert gateway.gateway.pipeline.live.pools["base"].load == 3
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
