"""What the ledger counts of finished calls, how batches leave it, what receipts keep, and what the report says."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from stores import NOON, finished, row, sum_of

from gateway.config import Store as StoreConfig
from gateway.console import DECISIONS
from gateway.ledger import Ledger, Receipts, cli, journal_directory, open_ledger
from gateway.ledger.blackbox import Blackbox, recover
from gateway.ledger.receipts import RECENT
from gateway.ledger.report import Report, figures
from gateway.ledger.totals import MAX_KEYS, MEASURES, OVERFLOW, Totals, entry_of, totalled
from gateway.record import OUTCOMES, Finished
from gateway.store import Batch, Row
from gateway.store.sqlite import SqliteStore


def counted(*calls: Finished) -> tuple[Row, ...]:
    """Return the rows of calls."""
    totals = Totals()
    for call in calls:
        totals.add(entry_of(call))
    return totals.rows()


def test_a_call_counts_all_that_it_used() -> None:
    """A call adds its tokens, slot-seconds, cost, counterfactuals and outcome to its day, tenant, model and pool."""
    (found,) = counted(finished(), finished(outcome="client_gone", completion_tokens=7))

    assert found.key == ("2026-11-30", "acme", "demo", "fast")
    assert found.measures == {
        "calls": 2.0,
        "prompt_tokens": 200.0,
        "completion_tokens": 47.0,
        "slot_seconds": 4.0,
        "cost_usd": 0.5,
        "counterfactual_baseline_usd": 1.0,
        "counterfactual_speculative_usd": 0.5,
        "outcome_ok": 1.0,
        "outcome_client_gone": 1.0,
    }


def test_tokens_counted_from_events_are_marked() -> None:
    """Where the engine told no usage, the tokens count as usual and as estimated."""
    (found,) = counted(finished(usage_source="events"), finished())

    assert (found.measures["completion_tokens"], found.measures["estimated_tokens"]) == (80.0, 140.0)


def test_output_without_cost_is_noticed() -> None:
    """A call that generated something and cost nothing is unpriced; one that generated nothing is not."""
    (found,) = counted(finished(cost_usd=0.0), finished(cost_usd=0.0, completion_tokens=0), finished())

    assert found.measures["unpriced_calls"] == 1.0


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_has_its_place(outcome: str) -> None:
    """Each outcome is counted under its own name, and their sum is the number of calls."""
    (found,) = counted(finished(outcome=outcome), finished())
    by_outcome = {name: amount for name, amount in found.measures.items() if name.startswith("outcome_")}

    assert sum(by_outcome.values()) == found.measures["calls"] == 2.0
    assert f"outcome_{outcome}" in by_outcome


@pytest.mark.parametrize(
    ("time", "day"),
    [
        (NOON + 43_199.999, "2026-11-30"),
        (NOON + 43_200.0, "2026-12-01"),
        (1_835_438_400.0, "2028-02-29"),  # a leap day
        (1_793_494_800.0, "2026-11-01"),  # an hour in which clocks in America are set back
        (0.0, "1970-01-01"),
        (-1e9, "1970-01-01"),
        (1e300, "9999-12-31"),
        (math.nan, "1970-01-01"),
    ],
)
def test_the_day_is_the_calls_own(time: float, day: str) -> None:
    """A call counts under the UTC day of its own time, and a clock that has gone mad breaks nothing."""
    (found,) = counted(finished(time=time))

    assert (found.day, found.measures["calls"]) == (day, 1.0)


@given(
    cost=some.floats(),
    slot=some.floats(),
    time=some.floats(),
    elsewhere=some.floats(),
)
def test_a_poisoned_call_poisons_nothing(cost: float, slot: float, time: float, elsewhere: float) -> None:
    """A number that is none counts as 0; the rest of the call, and every other call, still count."""
    bad = finished(cost_usd=cost, slot_seconds=slot, time=time, counterfactual={"baseline": elsewhere})
    rows = counted(finished(), bad)

    assert sum_of(rows, "completion_tokens") == 80.0
    assert all(math.isfinite(amount) for found in rows for amount in found.measures.values() if abs(amount) < 1e300)


def test_a_flood_of_names_is_bounded() -> None:
    """Should keys ever come from clients, memory stays bounded and the sums stay right."""
    totals = Totals()
    for i in range(MAX_KEYS + 100):
        totals.add(entry_of(finished(tenant=f"t{i}")))
    rows = totals.rows()

    assert len(rows) == MAX_KEYS + 1
    assert [found.measures["calls"] for found in rows if found.tenant == OVERFLOW] == [100.0]


def test_rows_add_up_by_fields() -> None:
    """Adding up by some fields keeps those and loses no amount."""
    rows = [row("a", "2026-11-29", calls=1.0), row("b", "2026-11-29", calls=2.0), row("a", "2026-11-30", calls=4.0)]

    assert [(found.tenant, found.measures["calls"]) for found in totalled(rows, ["tenant"])] == [("a", 5.0), ("b", 2.0)]
    assert [found.measures for found in totalled(rows, [])] == [{"calls": 7.0}]


def test_a_batch_stays_as_it_is_until_it_is_settled() -> None:
    """What is counted while a batch is on its way goes into the next one, under the next number."""
    ledger = Ledger()
    ledger.append(finished())
    first = ledger.take({})
    ledger.append(finished(tenant="later"))
    assert ledger.taken == first
    with pytest.raises(RuntimeError, match="batch 1"):
        ledger.take({})
    ledger.settled()
    second = ledger.take({})

    assert first is not None
    assert second is not None
    assert [(batch.seq, batch.rows[0].tenant) for batch in (first, second)] == [(1, "acme"), (2, "later")]


def test_nothing_makes_no_batch() -> None:
    """Without calls and learning there is no batch, and no number is used up."""
    ledger = Ledger()

    assert (ledger.take({}), ledger.take({"curve": {}}), ledger.seq) == (None, None, 1)


def test_batches_name_the_last_that_taught() -> None:
    """A batch says which of its predecessors had learning in it."""
    ledger = Ledger()
    taken: list[Batch | None] = []
    for deltas in ({}, {"c": {"a": [1.0]}}, {}, {"c": {"a": [2.0]}}, {"c": {"a": [3.0]}}):
        ledger.append(finished())
        taken.append(ledger.take(deltas))
        ledger.settled()

    assert [batch.previous for batch in taken if batch] == [0, 0, 2, 2, 4]


def test_the_black_box_follows_the_batches(tmp_path: Path) -> None:
    """The black box holds exactly what is not settled, goes when all is, and stays when something is not."""
    ledger = Ledger(Blackbox(tmp_path / "box"))
    ledger.append(finished())
    ledger.take({})
    ledger.append(finished(tenant="later"))
    unsettled = recover(tmp_path / "box")
    ledger.settled()
    later = recover(tmp_path / "box")
    ledger.close()
    assert (tmp_path / "box").exists()
    ledger.take({})
    ledger.settled()
    ledger.close()

    assert [(seq, len(entries)) for seq, entries in unsettled] == [(1, 1), (2, 1)]
    assert [(seq, entries[0][1]) for seq, entries in later] == [(2, "later")]
    assert not (tmp_path / "box").exists()


def test_a_full_black_box_still_counts(tmp_path: Path) -> None:
    """Calls beyond the black box's room count in memory, and the ledger says how many those are."""
    ledger = Ledger(Blackbox(tmp_path / "box"))
    calls = 0
    while ledger.unguarded < 10:
        ledger.append(finished())
        calls += 1
    batch = ledger.take({})
    ledger.settled()
    ledger.close()

    assert batch is not None
    assert sum_of(batch.rows, "calls") == calls


def test_a_disk_that_refuses_still_counts(tmp_path: Path) -> None:
    """Without a place for journals the ledger counts in memory."""
    (tmp_path / "file").write_text("")
    ledger, outbox = open_ledger(tmp_path / "file" / "journals")
    ledger.append(finished())
    batch = ledger.take({})
    with pytest.raises(OSError, match="file"):
        outbox.seal(batch)
    ledger.settled()
    ledger.close()
    outbox.close()

    assert outbox.writes


def test_journals_lie_beside_the_store() -> None:
    """A Store in memory has no journals; others have them where the configuration says, or beside their file."""
    assert journal_directory(StoreConfig()) is None
    assert journal_directory(StoreConfig(kind="sqlite", path="/x/a.db")) == Path("/x/a.db.outbox")
    assert journal_directory(StoreConfig(kind="redis", journal="/x/j")) == Path("/x/j")
    assert journal_directory(StoreConfig(kind="redis")) == Path("draftlane.db.outbox")


def test_receipts_are_a_ring() -> None:
    """At least as many of the last calls are found as are to be kept, and not many more; of one id the last is told."""
    receipts = Receipts(kept=100)
    for i in range(1000):
        receipts.append(finished(request_id=f"r-{i}", attempts=i))
    found = [receipts.get(f"r-{i}") is not None for i in range(1000)]

    assert all(found[-100:])
    assert sum(found) <= 100 + 2 * 64
    for i in (999, 990, 901):
        assert (receipts.get(f"r-{i}") or {})["attempts"] == i
    receipts.append(finished(request_id="r-901", attempts=7))
    for _ in range(2):
        assert (receipts.get("r-901") or {})["attempts"] == 7
        receipts.unshared(0)  # writes down


def test_receipts_tell_the_last_calls() -> None:
    """The records of the last calls are at hand, newest first, written down or not."""
    receipts = Receipts()
    for i in range(150):
        receipts.append(finished(request_id=f"r-{i}"))

    assert [call.request_id for call in receipts.last(3)] == ["r-149", "r-148", "r-147"]
    assert len(receipts.last(1000)) == RECENT >= DECISIONS


def test_no_request_id_is_mistaken_for_another() -> None:
    """Whatever stands in an id or in an answer's facts, it is found as the whole id and as nothing else."""
    receipts = Receipts()
    ids = ["a", 'a"b', 'x","request_id":"y', "line\nbreak", "ü", ""]
    for number, name in enumerate(ids):
        receipts.append(finished(request_id=name, detail='{"request_id":"z",', attempts=number))
    for _ in range(2):
        assert [(receipts.get(name) or {}).get("attempts") for name in ids] == list(range(len(ids)))
        assert [receipts.get(name) for name in ("y", "z", "b", "x", "line")] == [None] * 5
        receipts.unshared(0)


def test_receipts_are_shared_once_and_without_prompts() -> None:
    """Each call is handed on once, oldest first, and what was said in it is not."""
    receipts = Receipts()
    for i in range(5):
        receipts.append(finished(request_id=f"r-{i}", prompt="a secret"))
    first, rest = receipts.unshared(2), receipts.unshared(9)
    own = receipts.get("r-0")

    assert ([*first], [*rest], receipts.unshared(9)) == (["r-0", "r-1"], ["r-2", "r-3", "r-4"], {})
    assert b"secret" not in b"".join([*first.values(), *rest.values()])
    assert own is not None
    assert own["prompt"] == ""


ROWS = [
    row("acme", "2026-11-29", calls=2.0, completion_tokens=1000.0, cost_usd=0.5, outcome_ok=1.0),
    row("acme", calls=1.0, completion_tokens=3000.0, cost_usd=0.25, counterfactual_baseline_usd=1.0, outcome_ok=1.0),
    row("=cmd", calls=1.0, outcome_rejected=1.0),
]


def test_the_report_divides_where_it_can() -> None:
    """Dollars per million tokens and savings follow from the sums, and are None where there is nothing to divide."""
    told = figures(ROWS[1].measures)

    assert told["usd_per_million_output_tokens"] == pytest.approx(0.25 / 0.003)
    assert (told["saved_against_baseline_usd"], told["saved_against_speculative_usd"]) == (0.75, None)
    assert figures(ROWS[2].measures)["usd_per_million_output_tokens"] is None
    assert {*MEASURES} < {*told}


def test_the_report_is_a_table_csv_and_json() -> None:
    """All forms hold the same rows; the table and JSON end with the total."""
    report = Report.of(ROWS, first="2026-11-01", last="2026-11-30", by=("tenant",))
    table = report.render("table").splitlines()
    lines = list(csv.DictReader(io.StringIO(report.render("csv"))))
    told = json.loads(report.render("json"))

    assert [line.split()[:2] for line in table[1:]] == [["=cmd", "1"], ["acme", "3"], ["total", "4"]]
    assert [(line["tenant"], float(line["calls"])) for line in lines] == [("=cmd", 1.0), ("acme", 3.0)]
    assert [(line["tenant"], line["calls"]) for line in told["rows"]] == [("=cmd", 1.0), ("acme", 3.0)]
    assert (told["total"]["cost_usd"], told["from"], told["by"]) == (0.75, "2026-11-01", ["tenant"])


def test_an_empty_report_is_a_report() -> None:
    """Without rows every form is still well-formed."""
    report = Report.of([], first="2026-11-01", last="2026-11-30")

    assert json.loads(report.render("json"))["rows"] == []
    assert report.render("csv").startswith("day,tenant,model,pool,calls")
    assert report.render("table").splitlines()[1].startswith("total")


CONFIG = """
[[model]]
name = "demo"
[[pool]]
name = "base"
model = "demo"
kind = "baseline"
embedded = {{}}
[[tenant]]
name = "acme"
anonymous = true
[store]
{store}
"""


@pytest.fixture
def ledger_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `draftlane ledger` over a SQLite file with three rows, or over another store."""

    def run(*words: str, store: str = f'kind = "sqlite"\npath = "{tmp_path}/store.db"') -> tuple[int, str, str]:
        (tmp_path / "config.toml").write_text(CONFIG.format(store=store))
        asyncio.run(fill(tmp_path / "store.db"))
        parser = argparse.ArgumentParser()
        cli.add_parser(parser.add_subparsers())
        args = parser.parse_args(["ledger", "--config", str(tmp_path / "config.toml"), *words])
        code = args.run(args)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


async def fill(path: Path) -> None:
    """Put three rows into a SQLite Store."""
    store = SqliteStore(path)
    await store.append("one", 0, (Batch(1, tuple(ROWS)),))
    await store.aclose()


def test_the_command_reads_the_store(ledger_of: Callable[..., tuple[int, str, str]]) -> None:
    """The command reports the days asked for, added up as asked for."""
    code, out, _ = ledger_of("--from", "2026-11-30", "--to", "2026-11-30", "--by", "day,tenant", "--json")
    told = json.loads(out)

    assert (code, [line["tenant"] for line in told["rows"]]) == (0, ["=cmd", "acme"])
    assert told["total"]["completion_tokens"] == 3000.0
    assert ledger_of("--from", "2026-11-29", "--to", "2026-11-29")[1].splitlines()[1].startswith("2026-11-29  acme")


def test_the_command_says_what_is_wrong(ledger_of: Callable[..., tuple[int, str, str]]) -> None:
    """Days in the wrong order are wrong use; a Store that cannot be read is a failure with the way out."""
    assert ledger_of("--from", "2026-12-01", "--to", "2026-11-01")[0] == 2
    code, out, err = ledger_of(store='kind = "memory"')
    assert (code, out) == (1, "")
    assert "set store.kind" in err
    assert ledger_of(store='kind = "tape"')[0] == 1


def test_the_command_knows_its_words(ledger_of: Callable[..., tuple[int, str, str]]) -> None:
    """An unknown field or a malformed day ends with the parser's code for wrong use."""
    for words in (("--by", "planet"), ("--from", "yesterday"), ("--format", "xml")):
        with pytest.raises(SystemExit) as left:
            ledger_of(*words)
        assert left.value.code == 2
