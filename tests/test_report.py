"""`draftlane report`: figures equal the ledger's, the page needs nothing else, and what is missing is told."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from harness import config_for
from PIL import Image

from gateway.__main__ import main
from gateway.config import load
from gateway.measure.report_facts import Facts, facts
from gateway.measure.report_page import headline, page
from gateway.store import Batch, Row, open_store

FIRST, LAST = date(2026, 11, 1), date(2026, 11, 3)
NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)
PRICED = config_for({"spec": ["http://127.0.0.1:9"], "base": ["http://127.0.0.1:10"]})
ODD = "$x$ & <b>Sons</b>"  # a tenant's name may hold no such signs today, and the page is no place to rely on that


def row(day: str, tenant: str, pool: str, cost: float, baseline: float, **outcomes: float) -> Row:
    """Return a row of one hundred calls and ten thousand tokens."""
    measures = {
        "calls": 100,
        "completion_tokens": 10_000,
        "slot_seconds": 720,
        "cost_usd": cost,
        "counterfactual_baseline_usd": baseline,
        "counterfactual_baseline_low_usd": 0.9 * baseline,
        "counterfactual_baseline_high_usd": 1.1 * baseline,
        "counterfactual_speculative_usd": cost,
        **{f"outcome_{name}": count for name, count in (outcomes or {"ok": 100.0}).items()},
    }
    return Row(day, tenant, "demo", pool, measures)


ROWS = (
    row("2026-11-01", "acme", "spec", 1.0, 3.0),
    row("2026-11-01", ODD, "base", 2.0, 2.0, ok=90, client_gone=5, truncated=4, stalled=1),
    row("2026-11-03", "acme", "spec", 0.5, 1.5),
)


def told(*rows: Row) -> Facts:
    """Return the facts of some rows."""
    return facts(rows, PRICED, first=FIRST, last=LAST, now=NOW)


class Outline(HTMLParser):
    """What a page refers to and says, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.words: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note references and scripts."""
        self.scripts += tag == "script"
        self.refers += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "srcset"}]

    def handle_data(self, data: str) -> None:
        """Note words."""
        self.words.append(data)


def test_facts_are_the_ledgers() -> None:
    """Every sum is that of the rows, by day and pool and in all, with days on which nothing happened."""
    found = told(*ROWS)

    assert [day.day for day in found.days] == [1, 2, 3]
    assert found.total["cost_usd"] == 3.5
    assert found.spent == {"base": [2.0, 0.0, 0.0], "spec": [1.0, 0.0, 0.5]}
    assert found.calls == {"base": [100, 0, 0], "spec": [100, 0, 100]}
    assert found.baseline == [5.0, 0.0, 1.5]
    assert found.saved == pytest.approx(3.0)
    assert [(policy.name, policy.usd) for policy in found.policies[:2]] == [("As routed", 3.5), ("All baseline", 6.5)]
    assert (found.policies[1].low, found.policies[1].high) == pytest.approx((5.85, 7.15))
    assert found.outcomes[:2] == (("ok", 290), ("client_gone", 5))
    assert found.failed == 5
    assert found.speculative == {"spec"}


def test_idle_is_bounded_by_now() -> None:
    """Pools cost their price from the first midnight until now, and idle is what of it no call paid."""
    found = told(*ROWS)

    assert found.capacity_usd == pytest.approx(2 * 18.0 * 60)
    assert found.idle_usd == pytest.approx(2 * 18.0 * 60 - 3.5)
    early = facts(ROWS, PRICED, first=FIRST, last=LAST, now=datetime(2026, 10, 1, tzinfo=UTC))
    assert (early.capacity_usd, early.idle_usd) == (0.0, 0.0)


def test_each_day_costs_its_own_price() -> None:
    """A price that holds from a day on counts from that day on, in dollars."""
    dearer = {"price": [{"from": date(2026, 11, 2), "per_hour": 36.0}]}
    config = config_for({"base": ["http://127.0.0.1:10"]}, pools={"base": dearer}, currency={"name": "EUR", "usd": 1.5})
    found = facts((), config, first=FIRST, last=LAST, now=NOW)

    assert found.capacity_usd == pytest.approx(1.5 * (24 * 18.0 + 36 * 36.0))


def test_the_page_needs_nothing_else() -> None:
    """No script, no reference but those inside, and odd names are shown as they are."""
    text = page(told(*ROWS), written=NOW)
    outline = Outline(text)
    words = "".join(outline.words)

    assert outline.scripts == 0
    assert [ref for ref in outline.refers if not ref.startswith("#")] == []
    assert re.findall(r"url\((?!#)", text) == []
    assert "<b>Sons" not in text
    assert words.count(ODD) == 2  # in the table and in a chart
    for said in ("$3.50", "$116.67", "$3.00", "96.67%", "client gone"):
        assert said in words, said


def test_the_headline_says_which_way_it_went() -> None:
    """Savings, losses and an empty time are told apart."""
    assert "Routing saved $3.00 against sending all to baseline" in headline(told(*ROWS))
    assert "Routing cost $2.00 more than sending all to baseline" in headline(
        told(row("2026-11-01", "a", "spec", 3.0, 1.0))
    )
    assert headline(told()) == "No calls were counted in this time."


def test_an_empty_time_has_a_page_too() -> None:
    """Nothing counted is a page that says so, without a division by nothing."""
    text = page(told(), written=NOW)

    assert "No calls were counted" in text
    assert text.count("<svg") == 4


def test_the_same_rows_give_the_same_page() -> None:
    """A report can be compared with another by its bytes."""
    assert page(told(*ROWS), written=NOW) == page(told(*ROWS), written=NOW)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration file whose ledger holds the rows."""
    text = (Path(__file__).parent.parent / "config.toml").read_text()
    path = tmp_path / "config.toml"
    path.write_text(text.replace("[store]\n", f'[store]\nkind = "sqlite"\npath = "{tmp_path / "draftlane.db"}"\n'))
    return path


async def keep(config: Path) -> None:
    """Put the rows into the ledger."""
    store = open_store(load(config).store)
    await store.open()
    await store.append("origin", 0, [Batch(1, ROWS)])
    await store.aclose()


def run(config: Path, *words: str) -> int:
    """Run the command for the days of the rows."""
    return main(["report", "--config", str(config), "--from", str(FIRST), "--to", str(LAST), *words])


async def test_the_command_writes_page_and_picture(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files are there, the totals on stdout are the ledger's, and exit is 0."""
    await keep(config)
    html, png = config.with_name("r.html"), config.with_name("r.png")
    code = await _in_thread(config, "--out", str(html), "--png", str(png), "--json")
    said: dict[str, Any] = json.loads(capsys.readouterr().out)

    assert code == 0
    assert (said["html"], said["png"]) == (str(html), str(png))
    assert said["total"]["cost_usd"] == 3.5
    assert said["saved_usd"] == pytest.approx(3.0)
    assert html.read_text().startswith("<!doctype html>")
    with Image.open(png) as picture:
        assert picture.size == (1800, 1080)
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 100


async def _in_thread(config: Path, *words: str) -> int:
    """Run the command where no event loop runs yet."""
    return await asyncio.to_thread(run, config, *words)


def test_wrong_use_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Days in the wrong order are wrong use; a ledger in memory and a folder that is not there are failures."""
    assert main(["report", "--config", str(config), "--from", "2026-11-03", "--to", "2026-11-01"]) == 2
    assert "lies after" in capsys.readouterr().err
    assert run(config, "--out", str(config.parent / "gone" / "r.html")) == 1
    assert "gone" in capsys.readouterr().err
    assert run(config, "--out", "/dev/full") == 1
    assert "No space left on device: '/dev/full'" in capsys.readouterr().err
    assert run(Path(__file__).parent.parent / "config.toml", "--out", str(config.with_name("x.html"))) == 1
    assert "ends with its gateway" in capsys.readouterr().err
    assert not config.with_name("x.html").exists()
