"""What the operator's page is made of: the last minutes, what is wrong in words, today's money, and how its files are sent."""

from __future__ import annotations

import dataclasses
import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import ADMIN_KEY, config_for, serving
from msgspec.structs import replace
from test_metrics import CALL

from gateway.console import Colleagues, Lately, Sight, Told, Used, decision, overview
from gateway.console.lately import KEPT_STEPS, NOW_SECONDS, STEP_SECONDS, now, series, together
from gateway.console.problems import problems
from gateway.ledger.totals import Totals, entry_of
from gateway.routing.guards import GUARDS
from gateway.store import Row, Store, StoreError
from gateway.store.memory import MemoryStore

NOON = 1_795_953_600.0  # 2026-11-29 12:00 UTC, at which a step begins
AT_NOON = replace(CALL, time=NOON, duration=0.0)
QUIET = {"calls": 0, "failed": 0, "free": 0}
REPLICA = {"name": "fast-0", "url": "http://10.0.0.1:8000", "state": "live", "running": 0}
POOL = {
    "name": "fast",
    "enabled": True,
    "available": True,
    "why_unavailable": None,
    "guard": None,
    "guard_reason": "",
    "running": 1,
    "replicas": [REPLICA],
}
STATE: dict[str, Any] = {"draining": False, "settlement": {"degraded": {}}, "pools": [POOL]}


def wrong(state: dict[str, Any] = STATE, **more: Any) -> list[tuple[str, str]]:
    """Return level and sentence of what is wrong."""
    facts: dict[str, Any] = {"now": QUIET, "used": (), "ages": {}, "warnings": (), "trouble": None, **more}
    return [(each["level"], each["text"]) for each in problems(state, **facts)]


def pool(**changes: Any) -> dict[str, Any]:
    """Return the state with its pool changed."""
    return STATE | {"pools": [POOL | changes]}


def test_the_last_minutes_are_added_up() -> None:
    """Calls add up in steps by when they ended; what ends a moment late counts in the running step."""
    lately = Lately()
    for after in (0, 1, STEP_SECONDS, STEP_SECONDS - 1):
        lately(replace(AT_NOON, time=NOON + after))

    assert [(step.at - NOON, step.calls) for step in lately.steps] == [(0, 2), (STEP_SECONDS, 2)]
    found = now(lately.steps, NOON + 10)
    assert found["calls"] == 4
    assert found["seconds"] == 10
    assert found["tokens"] == 4 * 101
    assert found["cost_usd"] == pytest.approx(0.02)
    assert found["usd_per_hour"] == pytest.approx(0.02 * 360)
    assert found["usd_per_million"] == pytest.approx(0.02e6 / 404)


def test_now_is_five_minutes() -> None:
    """Older calls are no longer now, and without calls nothing is divided by."""
    lately = Lately()
    assert now(lately.steps, NOON)["usd_per_million"] is None
    lately(AT_NOON)
    lately(replace(AT_NOON, time=NOON + NOW_SECONDS + 60))

    assert now(lately.steps, NOON + NOW_SECONDS + 60)["calls"] == 1


def test_memory_of_the_last_minutes_is_bounded() -> None:
    """Ten minutes are kept, whatever comes."""
    lately = Lately()
    for step in range(3 * KEPT_STEPS):
        lately(replace(AT_NOON, time=NOON + step * STEP_SECONDS))

    assert len(lately.steps) == KEPT_STEPS


def test_the_drawing_has_every_step() -> None:
    """Steps without calls are drawn as nothing, the running one is left out, and other policies stand beside the real one."""
    lately = Lately()
    for after in (0, 2 * STEP_SECONDS, 3 * STEP_SECONDS):
        lately(replace(AT_NOON, time=NOON + after, break_even=2.3, threshold=0.4))
    drawn = series(lately.steps, NOON + 3 * STEP_SECONDS + 1)

    assert len(drawn["times"]) == KEPT_STEPS
    assert drawn["times"][-1] == NOON + 2 * STEP_SECONDS
    assert drawn["tokens_per_second"]["fast"][-3:] == [101 / STEP_SECONDS, 0, 101 / STEP_SECONDS]
    assert drawn["usd_per_hour"][-3:] == pytest.approx([3.6, 0, 3.6])
    assert drawn["baseline_usd_per_hour"][-3:] == pytest.approx([7.2, 0, 7.2])
    assert drawn["break_even"][-3:] == [2.3, None, 2.3]
    assert drawn["observed"][-3:] == [3.8, None, 3.8]
    assert drawn["predicted"][-3:] == [4.5, None, 4.5]


def test_workers_speak_for_each_other(tmp_path: Path) -> None:
    """What one has told another hears whole, itself it does not hear, nor one that has long been silent."""
    lately = Lately()
    lately(replace(AT_NOON, break_even=2.3, threshold=0.4))
    told = Told(running={"fast": 2}, steps=lately.steps, decisions=[decision(CALL)])
    first, second = Colleagues(tmp_path, "0-1"), Colleagues(tmp_path, "1-2")
    first.tell(told)
    second.tell(Told())
    Colleagues(tmp_path, "2-3").tell(told)
    os.utime(tmp_path / "2-3.told", (1.0, 1.0))
    (tmp_path / "3-4.told").write_text("half of a")

    assert second.hear() == [told]
    assert first.hear() == [Told(decisions=[], steps=[])]
    both = together(lately.steps, second.hear()[0].steps)
    assert [(step.at, step.calls, step.cost_usd, step.tokens) for step in both] == [(NOON, 2, 0.01, {"fast": 202})]
    assert [step.calls for step in lately.steps] == [1]


def test_telling_into_a_full_disk_costs_no_call(tmp_path: Path) -> None:
    """Where nothing can be written nobody hears, and nothing fails."""
    gone = Colleagues(tmp_path / "gone", "0-1")
    gone.tell(Told())

    assert gone.hear() == []


def test_nothing_is_wrong_where_nothing_is() -> None:
    """A healthy gateway has no problems."""
    assert wrong() == []


@pytest.mark.parametrize(
    ("state", "level", "said"),
    [
        (pool(enabled=False, available=False), "note", "Pool fast is switched off."),
        (
            pool(available=False, why_unavailable="no live replica"),
            "error",
            "Pool fast is not available: no live replica.",
        ),
        (pool(guard="queue", guard_reason="12 wait"), "warning", "Guard queue holds pool fast."),
        (STATE | {"draining": True}, "note", "This gateway is draining."),
        (STATE | {"settlement": {"degraded": {"store": "away"}}}, "warning", "The store fails: away."),
    ],
)
def test_what_is_wrong_is_said(state: dict[str, Any], level: str, said: str) -> None:
    """Each condition of pools and books is one sentence of the right gravity."""
    assert wrong(state) == [(level, said)]


@pytest.mark.parametrize("state", ["unhealthy", "open", "half-open", "cooling"])
def test_replicas_that_are_out_are_named(state: str) -> None:
    """Every state of a replica but live is told with its name."""
    assert wrong(pool(replicas=[REPLICA | {"state": state}])) == [("warning", f"Replica fast-0 is {state}.")]


def test_a_guard_explains_an_unavailable_pool() -> None:
    """A pool that a guard has taken out is told once, as held."""
    for guard in GUARDS:
        state = pool(guard=guard, guard_reason="because", available=False, why_unavailable="held")
        assert wrong(state) == [("warning", f"Guard {guard} holds pool fast.")]


def test_traffic_that_goes_wrong_is_said() -> None:
    """Failures are told once they are a share of something, and answers that cost nothing at once."""
    assert wrong(now={"calls": 10, "failed": 5, "free": 0}) == []
    assert wrong(now={"calls": 40, "failed": 5, "free": 2}) == [
        ("error", "5 of the last 40 calls failed."),
        ("warning", "2 answers of the last minutes cost nothing."),
    ]


def test_limits_are_told_before_they_bite() -> None:
    """Budgets are told from four fifths on, minutes only when they are used up."""
    used = [
        Used("a", "usd_per_month", 0.79),
        Used("b", "usd_per_month", 0.85),
        Used("c", "tokens_per_minute", 0.99),
        Used("d", "requests_per_minute", 1.0),
    ]

    assert wrong(used=used) == [
        ("warning", "Tenant b has used 85% of its usd per month."),
        ("warning", "Tenant d has used up its requests per minute."),
    ]


def test_stale_figures_and_warnings_are_told_gravest_first() -> None:
    """Errors come before warnings, warnings before notes."""
    found = wrong(
        pool(available=False, why_unavailable="no live replica"), ages={"fast-0": 90.0}, warnings=("Set a price.",)
    )

    assert [level for level, _ in found] == ["error", "warning", "note"]
    assert found[1] == ("warning", "Replica fast-0 has not told its figures for 90 s.")


class Kept(MemoryStore):
    """A Store that holds some calls, or is away."""

    def __init__(self, *calls: Any, away: str = "") -> None:
        super().__init__()
        self._away = away
        self._held = Totals()
        for call in calls:
            self._held.add(entry_of(call))

    async def totals(self, first: str, last: str) -> list[Row]:
        """Return the calls' totals of the days, or fail."""
        if self._away:
            raise StoreError(self._away)
        return [row for row in self._held.rows() if first <= row.day <= last]


def sight(store: Store) -> Sight:
    """Return what the page looks at, with one call done."""
    return Sight(
        config=config_for({"spec": ["http://127.0.0.1:9"], "base": ["http://127.0.0.1:10"]}),
        state=STATE,
        store=store,
        own=Told(decisions=[decision(CALL)]),
        others=(),
        used=(),
        ages={},
        workers=1,
    )


async def test_todays_money_is_the_ledgers() -> None:
    """Today's totals are of today alone, in all and by tenant, model and pool, and idle is both pools' price."""
    yesterday = replace(AT_NOON, time=NOON - 86_400)
    other = replace(AT_NOON, tenant="zeta", pool="plain", cost_usd=0.02, counterfactual={"baseline": 0.02})
    found = await overview(sight(Kept(AT_NOON, other, yesterday)), NOON)
    today = found["money"]["today"]

    assert today["day"] == "2026-11-29"
    assert today["cost_usd"] == pytest.approx(0.025)
    assert today["saved_usd"] == pytest.approx(0.005)
    assert [(row["name"], row["calls"]) for row in today["by_tenant"]] == [("acme", 1), ("zeta", 1)]
    assert [row["name"] for row in today["by_pool"]] == ["fast", "plain"]
    assert found["money"]["idle_usd_per_hour"] == 36.0
    assert found["problems"] == []


async def test_a_store_that_is_away_leaves_the_rest() -> None:
    """Without the Store there is no money of today, which is told; all else is there."""
    found = await overview(sight(Kept(away="gone fishing")), NOON)

    assert found["money"]["today"] is None
    assert [each["text"] for each in found["problems"]] == ["Today's totals cannot be read."]
    assert found["decisions"][0]["request_id"] == "req-1"


async def test_all_workers_are_shown() -> None:
    """Calls under way, the last minutes and the last decisions are everybody's, newest first."""
    lately = Lately()
    lately(AT_NOON)
    earlier = decision(replace(CALL, request_id="a", time=CALL.time - 10))
    later = decision(replace(CALL, request_id="b", time=CALL.time + 10))
    other = Told(running={"fast": 3}, steps=lately.steps, decisions=[later, earlier])
    seen = sight(Kept())
    found = await overview(
        dataclasses.replace(seen, own=Told(steps=lately.steps, decisions=[decision(CALL)]), others=[other]), NOON
    )

    assert [each["request_id"] for each in found["decisions"]] == ["b", "req-1", "a"]
    assert found["money"]["now"]["calls"] == 2
    assert found["state"]["pools"][0]["running"] == 4


async def test_no_prompt_is_shown() -> None:
    """What people asked is in no decision, even where it is kept for the log."""
    found = await overview(
        dataclasses.replace(sight(Kept()), own=Told(decisions=[decision(replace(CALL, prompt="my secret"))])), NOON
    )

    assert "my secret" not in str(found)


async def test_the_page_needs_no_key_and_what_it_shows_does() -> None:
    """The page's files are sent to anybody, with rules for the browser; the overview only to whoever has the admin key."""
    async with serving(config_for({"base": ["http://127.0.0.1:9"]})) as running, httpx.AsyncClient() as client:
        at = f"{running.url}/draftlane"
        page = await client.get(f"{at}/console")
        refused = [
            (await client.get(f"{at}/overview", headers=headers)).status_code
            for headers in ({}, {"authorization": "Bearer sk-test"}, {"authorization": f"Bearer {ADMIN_KEY}"})
        ]
        missing = [
            (await client.get(f"{at}/console/{name}")).status_code for name in ("routes.py", "..%2froutes.py", "x")
        ]

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert refused == [401, 401, 200]
    assert missing == [404, 404, 404]


async def test_files_are_sent_once_and_packed() -> None:
    """A browser that has a file is told so, and the chart library travels packed."""
    async with serving(config_for({"base": ["http://127.0.0.1:9"]})) as running, httpx.AsyncClient() as client:
        at = f"{running.url}/draftlane/console/plotly.js"
        plain = await client.get(at, headers={"accept-encoding": "identity"})
        packed = await client.get(at)
        again = await client.get(at, headers={"if-none-match": plain.headers["etag"]})

    assert plain.content == packed.content
    assert plain.content.startswith(b"/**\n* plotly.js")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert len(gzip.compress(plain.content, 6)) == pytest.approx(int(packed.headers["content-length"]), rel=0.01)
    assert (again.status_code, again.content) == (304, b"")


def test_the_chart_library_is_not_imported() -> None:
    """Serving knows where plotly's script lies without importing plotly, which takes a second."""
    code = "import sys, gateway.console.routes as r; r._plotly(); print('plotly' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert said.strip() == "False"
