"""A real Prometheus scrapes a gateway under traffic: every committed expression parses and has data, and money is right."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml
from harness import KEY, Running, config_for, serving
from prom import ROOT, RULES, Prometheus, operands, prometheus, tool

from gateway.config import Config, key_digest
from gateway.engine import EngineSettings
from gateway.engine import serve as engine
from gateway.ledger.cost import per_million
from gateway.ledger.report import Report
from gateway.store import Row, open_store

BOARDS = ("cost", "routing", "latency", "engines")
SHADOW_KEY = "sk-shadow"
CHOICES = {"tenant": ".+", "model": ".+", "pool": ".+", "__rate_interval": "5s", "__range": "10m"}
PROMPTS = (
    "Count from 1 to 60.",
    "Tell me a story about a lonely lighthouse.",
    "Write a JSON list of the twelve months with their number of days.",
    "What do you think of the sea?",
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway that has served, the Prometheus that watched it, its ledger, and the time of the last scrape."""

    gateway: Running
    prometheus: Prometheus
    ledger: tuple[Row, ...]
    began: float
    now: float


def config(urls: dict[str, list[str]], folder: Path) -> Config:
    """Return a configuration in which everything that panels show happens: budgets, shadow copies, exploration."""
    return config_for(
        urls,
        server={"engine_metrics": True},
        routing={"explore_near": 0.3, "explore_far": 0.3, "shadow_share": 1.0, "seed": 1},
        store={"kind": "sqlite", "path": str(folder / "draftlane.db"), "flush_seconds": 0.2},
        tenant=[
            {"name": "tester", "key_sha256": [key_digest(KEY)], "budget": [{"usd": 20.0, "per": "month"}]},
            {"name": "watcher", "key_sha256": [key_digest(SHADOW_KEY)], "policy": "shadow"},
        ],
    )


async def traffic(gateway: Running) -> None:
    """Send calls of two tenants, streamed and not, four at a time; one call has a wrong key."""
    turns = asyncio.Semaphore(4)
    async with httpx.AsyncClient(timeout=60) as client:

        async def call(index: int, prompt: str, key: str) -> None:
            body = {
                "model": "demo",
                "messages": [{"role": "user", "content": prompt}],
                "temperature": 0,
                "max_tokens": 60,
                "stream": index % 3 > 0,
            }
            async with turns:
                await client.post(
                    f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
                )

        keys = (KEY, KEY, SHADOW_KEY)
        calls = [call(i, prompt, keys[i % 3]) for i, prompt in enumerate(PROMPTS * 10)]
        await asyncio.gather(*calls, call(1, "Hello", "sk-wrong"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Serve, scrape, wait until the engines were read again after the traffic and the ledger has all."""
    folder = tmp_path_factory.mktemp("prometheus")
    slow = {"speed": 20.0, "per_request_metrics": True}
    async with (
        engine(EngineSettings(kind="speculative", **slow)) as spec,
        engine(EngineSettings(kind="baseline", **slow)) as base,
        serving(config({"spec": [spec.url], "base": [base.url]}, folder)) as gateway,
        prometheus(folder, f"127.0.0.1:{gateway.port}") as watching,
    ):
        began = time.time()
        async with asyncio.timeout(60):
            while await watching.value("count(draftlane_cost_usd_total)") is None:
                await asyncio.sleep(0.1)
            await traffic(gateway)
            while not (await watching.value("sum(draftlane_engine_drafts_total) > 0")):
                await asyncio.sleep(0.2)
            await asyncio.sleep(1.5)  # six scrapes and three evaluations of rules, for rates to have two values
        now = await watching.value("max(timestamp(draftlane_cost_usd_total))")
        assert now is not None
        yield Site(gateway, watching, tuple(await books(gateway)), began, now)


async def books(gateway: Running) -> list[Row]:
    """Return the ledger as `draftlane ledger` reads it."""
    store = open_store(gateway.gateway.pipeline.live.config.store)
    await store.open()
    try:
        return list(await store.totals("2000-01-01", "2100-01-01"))
    finally:
        await store.aclose()


def chosen(expr: str) -> str:
    """Return an expression as Grafana sends it with everything chosen."""
    return re.sub(r"\$(\w+)", lambda found: CHOICES[found[1]], expr)


def panels() -> list[tuple[str, str, bool]]:
    """Return where a panel's query stands, its expression, and whether it asks for the last value only."""
    return [
        (f"{name}: {panel['title']} {target['refId']}", chosen(target["expr"]), target["instant"])
        for name in BOARDS
        for panel in json.loads((ROOT / f"deploy/grafana/dashboards/{name}.json").read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file."""
    groups = yaml.safe_load((RULES / f"{name}.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


async def test_every_panel_shows_something(site: Site) -> None:
    """All queries of all dashboards parse and return numbers, over time or for now as the panel asks."""
    empty = []
    for where, expr, instant in panels():
        if instant:
            values = [value for value in (await site.prometheus.values(expr, site.now)).values() if not isnan(value)]
        else:
            values = await site.prometheus.history(expr, site.began, site.now)
        if not values:
            empty.append(f"{where}: {expr}")

    assert len(panels()) > 100
    assert empty == []


async def test_every_recording_rule_is_recorded(site: Site) -> None:
    """Prometheus has loaded all rules, all evaluate without an error, and each recorded series has values."""
    groups = (await site.prometheus.ask("rules"))["groups"]
    loaded = [rule for group in groups for rule in group["rules"]]
    unwell = [(rule["name"], rule.get("lastError")) for rule in loaded if rule["health"] != "ok"]
    empty = [
        rule["record"] for rule in rules("recording") if not await site.prometheus.values(rule["record"], site.now)
    ]

    assert len(loaded) == len(rules("recording")) + len(rules("alerts"))
    assert unwell == empty == []


async def test_every_alert_and_annotation_watches_something(site: Site) -> None:
    """What alerts and annotations compare has values: they are silent because all is well. The past is taken to be now."""
    annotations = json.loads((ROOT / "deploy/grafana/dashboards/cost.json").read_text())["annotations"]["list"]
    watching = [(each["name"], each["expr"]) for each in annotations]
    watching += [(rule["alert"], rule["expr"]) for rule in rules("alerts")]
    blind = []
    for name, expr in watching:
        await site.prometheus.values(expr, site.now)
        parts = operands(re.sub(r" offset \w+", "", expr))
        blind += [f"{name}: {part}" for part in parts if not await site.prometheus.values(part, site.now)]

    assert blind == []


async def test_nothing_is_wrong_where_nothing_is_wrong(site: Site) -> None:
    """Of the alerts none fires on a healthy gateway, but for the note that copies cost something else than estimated."""
    alerts = (await site.prometheus.ask("alerts"))["alerts"]

    assert {alert["labels"]["alertname"] for alert in alerts} <= {"DraftlaneEstimatesOff"}


async def promtool(*words: str, told: str = "") -> tuple[int, str]:
    """Run promtool; return its exit code and all that it said."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        tool("promtool"), *words, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate(told.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


async def figure(site: Site, board: str, title: str, letter: str = "A") -> dict[tuple[str, ...], float]:
    """Return what a panel shows, by its labels."""
    (expr,) = [expr for where, expr, _ in panels() if where == f"{board}: {title} {letter}"]
    return await site.prometheus.values(expr, site.now)


async def test_money_on_the_dashboard_is_money_in_the_ledger(site: Site) -> None:
    """Spent, price per million tokens and every policy's cost agree with the ledger within 1 %, in all and by label."""
    whole = Report.of(site.ledger, first="", last="", by=()).total.measures
    spent = (await figure(site, "cost", "Spent"))[()]
    saved = (await figure(site, "cost", "Saved against all-baseline"))[()]
    dear = (await figure(site, "cost", "$ per 1M output tokens"))[()]

    assert spent == pytest.approx(whole["cost_usd"], rel=0.01)
    assert saved == pytest.approx(
        whole["counterfactual_baseline_usd"] - whole["cost_usd"], abs=0.01 * whole["counterfactual_baseline_usd"]
    )
    assert dear == pytest.approx(per_million(whole["cost_usd"], whole["completion_tokens"]), rel=0.01)
    for letter, measure in zip("BCD", ("baseline", "speculative", "threshold"), strict=True):
        shown = (await figure(site, "cost", "In all, under each policy", letter))[()]
        assert shown == pytest.approx(whole[f"counterfactual_{measure}_usd"], rel=0.01), measure


@pytest.mark.parametrize("label", ["tenant", "model", "pool"])
async def test_prices_by_label_are_the_ledgers(site: Site, label: str) -> None:
    """Dollars per million output tokens of each tenant, model and pool agree with the ledger within 1 %."""
    shown = await figure(site, "cost", f"By {label}, over the chosen time")
    kept = {
        (getattr(row, label),): per_million(row.measures["cost_usd"], row.measures["completion_tokens"])
        for row in Report.of(site.ledger, first="", last="", by=(label,)).rows
        if row.measures.get("completion_tokens")
    }

    assert len(kept) >= {"tenant": 3, "model": 1, "pool": 2}[label]
    assert shown == {key: pytest.approx(price, rel=0.01) for key, price in kept.items()}


async def test_idle_is_what_nobody_paid(site: Site) -> None:
    """Capacity counts both pools' price over the time that was watched, and idle is that less what calls paid."""
    first = await site.prometheus.value("min_over_time(timestamp(draftlane_inflight)[10m:250ms])", site.now)
    assert first is not None
    capacity = 2 * 18.0 * (site.now - first) / 3600
    paid = Report.of(site.ledger, first="", last="", by=()).total.measures["cost_usd"]
    (idle,) = (await figure(site, "cost", "Idle")).values()

    assert idle == pytest.approx(capacity - paid, rel=0.1)


async def test_the_estimator_is_right_where_nothing_is_drafted(site: Site) -> None:
    """Control reads 1.00 on the baseline pool, and the speculative pool's engine agrees with what its calls show."""
    (control,) = (await figure(site, "routing", "Control")).values()
    events = await site.prometheus.value(
        'sum(draftlane_acceptance_length_sum{kind="observed"}) / sum(draftlane_acceptance_length_count{kind="observed"})'
    )

    assert control == pytest.approx(1.0, abs=0.05)
    assert events is not None
    assert events > 1.5


async def test_a_slow_call_can_be_found(site: Site) -> None:
    """Exemplars arrive with the ids of calls that the gateway has receipts of."""
    query = "draftlane_request_duration_seconds_bucket"
    found = await site.prometheus.ask("query_exemplars", query=query, start=site.began, end=site.now + 5)
    ids = {each["labels"]["request_id"] for series in found for each in series["exemplars"]}

    assert ids
    assert ids <= {call.request_id for call in site.gateway.finished} | {
        f"{call.request_id}-shadow" for call in site.gateway.finished
    }


async def test_engines_counters_are_told_under_vllms_names_too(site: Site) -> None:
    """With server.engine_metrics the counters that `vllm bench serve` reads stand on the gateway's own page."""
    drafts = await site.prometheus.values("vllm:spec_decode_num_drafts_total", site.now)
    ours = await site.prometheus.values("draftlane_engine_drafts_total", site.now)

    assert list(drafts.values()) == list(ours.values())
    assert next(iter(ours.values())) > 0


async def test_promtool_finds_nothing_to_say(site: Site) -> None:
    """Debian's promtool accepts the page by Prometheus' conventions, the configuration, and the rules' own tests."""
    page = (await site.prometheus.client.get(f"{site.gateway.url}/metrics")).text
    ours = "\n".join(line for line in page.splitlines() if "python_gc" not in line and "vllm:" not in line) + "\n"
    tried = [
        await promtool("check", "metrics", told=ours),
        await promtool("check", "config", "deploy/prometheus/prometheus.yml"),
        await promtool("test", "rules", "deploy/prometheus/tests/alerts.yml"),
    ]

    assert [said for code, said in tried if code] == []


async def test_expressions_are_taken_apart() -> None:
    """Operands are found at the top level and inside whole parentheses, and words inside names and strings are left alone."""
    assert operands("up == 0") == ["up"]
    assert operands('a{b="x and y"} > 14.4 * 0.01\n and c_and_d > 1') == ['a{b="x and y"}', "c_and_d"]
    assert operands("(a unless b offset 5m) and on (pool) sum by (pool) (c > 0)") == [
        "a",
        "b offset 5m",
        "sum by (pool) (c > 0)",
    ]
    assert operands("a < on (pool) group_left () b") == ["a", "b"]
