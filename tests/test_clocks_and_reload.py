"""Clocks that are set, and configurations read again under load: no limit breaks, no book is wrong, no request is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import ADMIN_KEY, KEY, config_for, serving, until
from hypothesis import given
from hypothesis import strategies as st
from stores import finished

from gateway.config import key_digest, load
from gateway.engine import EngineSettings, serve
from gateway.ledger.totals import Totals, entry_of
from gateway.store.allotments import every, monthly
from gateway.window import Window

# Unix times at which calendars are odd: leap days, ends of months and years, changes of summer time, a leap second.
ODD = [
    datetime(2028, 2, 28, 23, 59, 59, tzinfo=UTC),
    datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC),
    datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2027, 1, 31, 12, 0, 0, tzinfo=UTC),
    datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 59, 59, tzinfo=UTC),
    datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2100, 2, 28, 23, 59, 59, tzinfo=UTC),
]


@pytest.mark.parametrize("at", ODD, ids=lambda at: at.isoformat())
def test_windows_follow_each_other_without_a_gap(at: datetime) -> None:
    """Each window ends where the next one begins, in UTC, whatever the local clock does on that day."""
    for window in (every(60), every(86_400), monthly):
        name, end = window(at.timestamp())
        same, _ = window(end - 0.001)
        following, later = window(end)

        assert name == same != following
        assert end > at.timestamp()
        assert later > end
    assert monthly(at.timestamp())[0] == f"{at.year}-{at.month:02d}"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_days_are_utc_days_in_every_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's days do not depend on where the gateway runs, nor on summer time."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        totals = Totals()
        for at in ODD:
            totals.add(entry_of(finished(time=at.timestamp())))
        days = sorted(row.day for row in totals.rows())
        months = [monthly(at.timestamp())[0] for at in ODD]
    finally:
        monkeypatch.undo()
        time.tzset()

    assert days == sorted(at.date().isoformat() for at in ODD)
    assert months == [f"{at.year}-{at.month:02d}" for at in ODD]


@given(st.lists(st.tuples(st.floats(-1e7, 1e7), st.integers(1, 50)), min_size=1, max_size=60))
def test_whatever_a_clock_does_a_limit_is_never_exceeded(jumps: list[tuple[float, int]]) -> None:
    """However a clock jumps between calls, a minute's limit holds and what is used is never negative."""
    window, now = Window(100), 0.0
    for jump, amount in jumps:
        now += jump
        if window.wait(amount, now) == 0.0:
            window.take(amount, now)

        assert 0 <= window.used <= window.limit


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_no_time_corrupts_the_ledger(times: list[float]) -> None:
    """Times that no calendar has count on its first or last day, and every call counts once."""
    totals = Totals()
    for at in times:
        totals.add(entry_of(finished(time=at)))

    assert sum(row.measures["calls"] for row in totals.rows()) == len(times)
    assert all(1970 <= datetime.fromisoformat(row.day).year <= 9999 for row in totals.rows())


# ── Reload ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(engines: list[str], **changes: Any) -> str:
    """Return a configuration file of one pool with these engines."""
    values = {"tokens": 1_000_000, "ahead": 1.0, **changes}
    replicas = "".join(f'[[pool.replica]]\nurl = "{url}"\n' for url in engines)
    return (
        f'[server]\nport = 0\nlog = "off"\ndrain_seconds = 1.0\nadmin_key_sha256 = "{key_digest(ADMIN_KEY)}"\n'
        f"[limits]\nqueue_ahead = {values['ahead']}\n"
        '[[model]]\nname = "demo"\n[[pool]]\nname = "plain"\nmodel = "demo"\nkind = "baseline"\nslots = 8\n'
        f"{replicas}"
        f'[[tenant]]\nname = "tester"\nkey_sha256 = ["{key_digest(KEY)}"]\ntokens_per_minute = {values["tokens"]}\n'
    )


def write(path: Path, content: str) -> None:
    """Write a file."""
    path.write_text(content)


async def test_reloads_under_load_lose_no_request(tmp_path: Path) -> None:
    """While calls run, engines come and go with each reload; every call is answered in full, and leases come back."""
    settings, path = EngineSettings(speed=60, slots=8), tmp_path / "config.toml"
    async with serve(settings) as one, serve(settings) as two, httpx.AsyncClient(timeout=30) as client:
        write(path, text([one.url]))
        async with serving(load(path), path=path) as gateway:
            stop = asyncio.Event()

            async def ask() -> list[tuple[int, bool]]:
                found = []
                while not stop.is_set():
                    body = {"model": "demo", "messages": [{"role": "user", "content": "Count to 20."}], "stream": True}
                    answer = await client.post(
                        f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
                    )
                    found.append((answer.status_code, answer.text.endswith("data: [DONE]\n\n")))
                return found

            asking = [asyncio.create_task(ask()) for _ in range(12)]
            for number in range(30):
                engines = [[one.url], [two.url], [one.url, two.url]][number % 3]
                write(path, text(engines, tokens=1_000_000 + number, ahead=number % 2))
                answer = await client.post(
                    f"{gateway.url}/draftlane/reload", headers={"authorization": f"Bearer {ADMIN_KEY}"}
                )
                assert answer.status_code == 200, answer.text
                await asyncio.sleep(0.02)
            stop.set()
            answers = [answer for found in await asyncio.gather(*asking) for answer in found]
            running = [pool.running for pool in gateway.gateway.pipeline.live.pools]

    assert len(answers) > 30
    assert set(answers) == {(200, True)}
    assert {call.outcome for call in gateway.finished} == {"ok"}
    assert len(one.record) > 0
    assert len(two.record) > 0
    assert running == [0]


BROKEN: dict[str, Callable[[str], str]] = {
    "not TOML": lambda good: good + "[[[",
    "unknown key": lambda good: good.replace("slots = 8", "slot = 8"),
    "no model": lambda good: good.replace('model = "demo"', 'model = "nosuch"'),
    "no tenant": lambda good: good.partition("[[tenant]]")[0],
    "needs a restart": lambda good: good.replace("port = 0", "port = 1234"),
    "no such file": lambda good: good.replace("slots = 8", 'slots = 8\ntls_ca = "nosuch.pem"').replace(
        "http:", "https:"
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_invalid_reload_changes_nothing_and_says_why(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer, the log and a metric tell of it; what was in force stays in force, counts included."""
    path = tmp_path / "config.toml"
    async with serve(EngineSettings(speed=500)) as engine, httpx.AsyncClient(timeout=30) as client:
        path.write_text(text([engine.url]))
        async with serving(load(path), path=path) as gateway:
            before = gateway.gateway.pipeline.live.config
            path.write_text(BROKEN[broken](text([engine.url])))
            with caplog.at_level(logging.ERROR, "gateway.app"):
                refused = await client.post(
                    f"{gateway.url}/draftlane/reload", headers={"authorization": f"Bearer {ADMIN_KEY}"}
                )
            answer = await client.post(
                f"{gateway.url}/v1/chat/completions",
                json={"model": "demo", "messages": [{"role": "user", "content": "Hi."}]},
                headers={"authorization": f"Bearer {KEY}"},
            )
            page = (await client.get(f"{gateway.url}/metrics")).text

    assert refused.status_code == 422
    problems = json.loads(refused.text)["problems"]
    assert problems
    assert any(problems[0].split(":")[0] in record.getMessage() for record in caplog.records)
    assert 'draftlane_config_reloads_total{result="refused"} 1.0' in page
    assert answer.status_code == 200
    assert gateway.gateway.pipeline.live.config is before


async def test_calls_go_on_with_the_pool_they_have_when_it_is_removed() -> None:
    """A stream that runs when its engine is taken out of the configuration ends as if nothing had happened."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count to 30."}], "stream": True}
    async with (
        serve(EngineSettings(speed=10)) as one,
        serve(EngineSettings(speed=500)) as two,
        serving(config_for({"plain": [one.url]})) as gateway,
        httpx.AsyncClient(timeout=30, headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        call = asyncio.create_task(client.post(f"{gateway.url}/v1/chat/completions", json=body))
        await until(lambda: one.batch.running)
        gateway.gateway._apply(config_for({"spare": [two.url]}))
        answer = await call
        (finished_call,) = await gateway.settled(1)

    assert answer.text.endswith("data: [DONE]\n\n")
    assert (finished_call.outcome, finished_call.pool) == ("ok", "plain")
