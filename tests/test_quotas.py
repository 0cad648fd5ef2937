"""Limits and budgets that gateways keep together: what is let in, what a refusal says, and what survives a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import KEY, Running, config_for, serving

from gateway.config import Config, key_digest
from gateway.engine import EngineSettings, serve
from gateway.engine import Running as Engine
from gateway.errors import QuotaExceeded, RateLimited
from gateway.quotas import Quotas
from gateway.record import Finished
from gateway.store import MemoryStore
from gateway.store.sqlite import SqliteStore
from gateway.tenants import Tenants

NOON = 1_796_040_000.0  # 2026-11-30 12:00 UTC
DAY = 86_400.0
FEBRUARY = 1_801_440_000.0  # 2027-02-01 00:00 UTC


class Clocks:
    """Unix and monotonic time, set by hand."""

    def __init__(self) -> None:
        self.unix = NOON
        self.monotonic = 50.0

    def pass_(self, seconds: float) -> None:
        """Let time pass on both."""
        self.unix += seconds
        self.monotonic += seconds


def budgeted(*budgets: dict[str, Any], **limits: int) -> Config:
    """Return a configuration whose tenant has these budgets and limits."""
    tenant = {"name": "tester", "key_sha256": [key_digest(KEY)], "budget": list(budgets), **limits}
    return config_for({"plain": ["http://127.0.0.1:9"]}, tenant=[tenant])


@asynccontextmanager
async def quotas_of(clocks: Clocks) -> AsyncIterator[Quotas]:
    """Keep quotas in a Store in memory, by clocks set by hand."""
    store = MemoryStore(clock=lambda: NOON)  # another machine's, which nobody sets
    quotas = Quotas(store, clock=lambda: clocks.unix, monotonic=lambda: clocks.monotonic)
    yield quotas
    await quotas.stop()


async def spend(tenants: Tenants, quotas: Quotas, clocks: Clocks, *, tokens: int, usd: float = 0.0) -> bool:
    """Let one call in, if it is let in, and settle it with what it used; time passes in between."""
    await quotas.refresh()
    try:
        call = tenants.admit(tenants.first(), model="demo", tokens=tokens, now=clocks.monotonic)
    except RateLimited:
        return False
    clocks.pass_(0.3)
    call.settle(tokens, usd, clocks.monotonic)
    call.release()
    return True


async def test_a_hard_budget_ends_with_its_amount_and_begins_anew_with_its_day() -> None:
    """Calls are let in until the budget is used, then told when it is renewed; after midnight UTC they are let in again."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        tenants = Tenants(budgeted({"tokens": 10_000, "per": "day"}), {}, quotas.of)
        admitted = sum([await spend(tenants, quotas, clocks, tokens=100) for _ in range(150)])
        with pytest.raises(QuotaExceeded, match="You exceeded your current quota: 10000 tokens per day") as caught:
            tenants.admit(tenants.first(), model="demo", tokens=100, now=clocks.monotonic)
        error = caught.value
        clocks.pass_(DAY / 2)
        again = await spend(tenants, quotas, clocks, tokens=100)

    assert admitted == pytest.approx(100, rel=0.05)
    assert (error.status, error.code, error.type) == (429, "insufficient_quota", "insufficient_quota")
    assert error.retry_after == pytest.approx(DAY / 2 - (clocks.monotonic - 50.0 - DAY / 2), abs=1.0)
    assert (b"x-should-retry", b"false") in error.headers()
    assert again


async def test_a_budget_in_dollars_counts_what_calls_cost() -> None:
    """What a call costs is learned from calls before, so that a budget in dollars lets in what it can pay."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        tenants = Tenants(budgeted({"usd": 2.0, "per": "month"}), {}, quotas.of)
        admitted = sum([await spend(tenants, quotas, clocks, tokens=500, usd=0.02) for _ in range(150)])

    assert admitted == pytest.approx(100, rel=0.05)


async def test_a_soft_budget_refuses_nobody_and_tells() -> None:
    """Past its soft share a budget is in the answers' headers and in the state; without `hard` it never refuses."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        soft = {"tokens": 1_000, "per": "day", "soft": 0.5, "hard": False}
        tenants = Tenants(budgeted(soft), {}, quotas.of)
        told = []
        for _ in range(20):
            assert await spend(tenants, quotas, clocks, tokens=100)
            (usage,) = tenants.used()
            told.append(usage.told)
        call = tenants.admit(tenants.first(), model="demo", tokens=1, now=clocks.monotonic)

    assert told == [False] * 4 + [True] * 16
    assert call.headers == [(b"x-draftlane-budget", b"1.00 of 1000 tokens per day")]


async def test_a_call_takes_from_all_limits_or_from_none() -> None:
    """A call that one limit refuses is not counted by the others."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        tenants = Tenants(budgeted({"tokens": 100, "per": "day"}, requests_per_minute=50), {}, quotas.of)
        for _ in range(20):
            await spend(tenants, quotas, clocks, tokens=100)
        requests, tokens = tenants.used()

    assert (requests.label, tokens.label) == ("requests_per_minute", "tokens_per_day")
    assert tokens.used == 100
    assert requests.used == 1


async def test_a_clock_that_is_set_moves_windows_and_poisons_nothing() -> None:
    """Set forth, a month begins early, and ends by the new time; set back, the old one goes on; leap days have windows."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        tenants = Tenants(budgeted({"tokens": 100, "per": "month"}), {}, quotas.of)
        assert await spend(tenants, quotas, clocks, tokens=100)
        assert not await spend(tenants, quotas, clocks, tokens=100)
        clocks.unix += 40 * DAY  # into January
        assert await spend(tenants, quotas, clocks, tokens=100)
        await quotas.refresh()
        with pytest.raises(RateLimited) as refused:
            tenants.admit(tenants.first(), model="demo", tokens=100, now=clocks.monotonic)
        assert refused.value.retry_after == pytest.approx(FEBRUARY - clocks.unix)
        clocks.unix -= 40 * DAY
        assert not await spend(tenants, quotas, clocks, tokens=100)
        for day in (1_835_395_200.0, 1_835_395_200.0 + DAY):  # 29 February and 1 March 2028
            clocks.unix = day
            assert await spend(tenants, quotas, clocks, tokens=100)


async def test_a_reload_keeps_counts_and_forgets_limits_that_are_gone() -> None:
    """A budget that stays keeps what was used of it, with its new amount; one that is taken out is forgotten."""
    clocks = Clocks()
    async with quotas_of(clocks) as quotas:
        tenants = Tenants(budgeted({"tokens": 100, "per": "day"}, tokens_per_minute=1000), {}, quotas.of)
        assert await spend(tenants, quotas, clocks, tokens=100)
        tenants.reload(budgeted({"tokens": 200, "per": "day"}))
        quotas.keep(tenants.limits())
        assert await spend(tenants, quotas, clocks, tokens=100)
        (usage,) = tenants.used()

    assert (usage.label, usage.used, usage.limit) == ("tokens_per_day", 200, 200)


# ── Through the gateway ───────────────────────────────────────────────────────────────────────────────────────────────

PROMPT = {"model": "demo", "messages": [{"role": "user", "content": "Count from 1 to 40."}], "temperature": 0}


async def ask_until_refused(gateway: Running, client: httpx.AsyncClient, code: str) -> httpx.Response:
    """Ask again and again until the answer is a refusal of this code."""
    while True:
        answer = await client.post(
            f"{gateway.url}/v1/chat/completions",
            json={**PROMPT, "max_tokens": 60},
            headers={"authorization": f"Bearer {KEY}"},
        )
        if answer.status_code == 429 and answer.json()["error"]["code"] == code:
            return answer
        assert answer.status_code in (200, 429), answer.text


def used(calls: list[Finished]) -> int:
    """Return the tokens of calls."""
    return sum(call.prompt_tokens + call.completion_tokens for call in calls)


def series(page: str, name: str, **labels: str) -> float | None:
    """Return the value of one series of a metrics page, None when there is none."""
    for line in page.splitlines():
        found = line.partition("{")[0].partition(" ")[0] == name
        if found and all(f'{label}="{value}"' in line for label, value in labels.items()):
            return float(line.rpartition(" ")[2])
    return None


def shared_config(engine: Engine, store: Path, **tenant: Any) -> Config:
    """Return a configuration with a SQLite Store."""
    return config_for(
        {"plain": [engine.url]},
        tenant=[{"name": "tester", "key_sha256": [key_digest(KEY)], **tenant}],
        store={"kind": "sqlite", "path": str(store), "flush_seconds": 0.1},
    )


async def test_gateways_that_share_a_store_keep_a_budget_together(tmp_path: Path) -> None:
    """Two gateways under load let one budget through between them within 5 %, a third that starts later lets nobody in."""
    budget = 12_000
    async with serve(EngineSettings(speed=500, slots=16)) as engine, httpx.AsyncClient(timeout=30) as client:
        config = shared_config(engine, tmp_path / "store.db", budget=[{"tokens": budget, "per": "day"}])
        async with serving(config) as one, serving(config) as two:
            refusals = await asyncio.gather(
                *(ask_until_refused(gateway, client, "insufficient_quota") for gateway in (one, two, one, two))
            )
        async with serving(config) as three:
            late = await ask_until_refused(three, client, "insufficient_quota")

    assert used([*one.finished, *two.finished]) == pytest.approx(budget, rel=0.05)
    assert used(three.finished) <= 0.01 * budget
    for refusal in (*refusals, late):
        assert json.loads(refusal.text)["error"]["type"] == "insufficient_quota"
        assert int(refusal.headers["retry-after"]) > 0
        assert refusal.headers["x-should-retry"] == "false"
        assert "x-request-id" in refusal.headers


async def test_refusals_carry_the_limits_and_are_counted(tmp_path: Path) -> None:
    """A 429 tells the limit's state in x-ratelimit headers as an answer does, and metrics count it by its code."""
    async with serve(EngineSettings(speed=500)) as engine, httpx.AsyncClient(timeout=30) as client:
        config = shared_config(engine, tmp_path / "store.db", tokens_per_minute=600)
        async with serving(config) as gateway:
            refusal = await ask_until_refused(gateway, client, "rate_limit_exceeded")
            page = (await client.get(f"{gateway.url}/metrics")).text

    assert refusal.headers["x-ratelimit-limit-tokens"] == "600"
    assert refusal.headers["x-ratelimit-remaining-tokens"] == "0"
    assert series(page, "draftlane_refusals_total", code="rate_limit_exceeded", tenant="tester") == 1.0
    assert series(page, "draftlane_limit_used_ratio", limit="tokens_per_minute", tenant="tester") == 1.0
    assert series(page, "draftlane_books_degraded", part="limits") == 0.0
    assert series(page, "draftlane_ledger_pending_batches") is not None


async def test_limits_hold_per_process_while_the_store_is_away(tmp_path: Path) -> None:
    """A Store that cannot be reached is told by a metric and in the log, and calls are still let in."""
    async with serve(EngineSettings(speed=500)) as engine, httpx.AsyncClient(timeout=30) as client:
        nowhere = tmp_path / "file"
        nowhere.write_text("a file, no directory")
        config = shared_config(engine, nowhere / "store.db", budget=[{"tokens": 100_000, "per": "day"}])
        async with serving(config) as gateway:
            answer = await client.post(
                f"{gateway.url}/v1/chat/completions", json=PROMPT, headers={"authorization": f"Bearer {KEY}"}
            )
            page = (await client.get(f"{gateway.url}/metrics")).text

    assert answer.status_code == 200
    assert series(page, "draftlane_books_degraded", part="limits") == 1.0
    assert series(page, "draftlane_books_degraded", part="store") == 1.0


async def test_a_budget_is_kept_when_the_process_is_not(tmp_path: Path) -> None:
    """A Store that outlives its process gives the next one what is left of the day."""
    clocks = Clocks()
    left = []
    for _ in range(2):
        store = SqliteStore(tmp_path / "store.db", clock=lambda: clocks.unix)
        quotas = Quotas(store, clock=lambda: clocks.unix, monotonic=lambda: clocks.monotonic)
        tenants = Tenants(budgeted({"tokens": 1_000, "per": "day"}), {}, quotas.of)
        left.append(sum([await spend(tenants, quotas, clocks, tokens=100) for _ in range(7)]))
        await quotas.stop()
        await store.aclose()

    assert left == [7, 3]
