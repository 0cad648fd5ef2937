"""The fleet simulation: exact queues and steps, honest traffic, the same figures every time, routing that earns its keep."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import score

from gateway.measure import fleet
from gateway.measure.fleet_policies import POLICIES, AcceptanceTarget
from gateway.measure.fleet_report import (
    calls_to_adapt,
    calls_to_foresee,
    largest_move,
    quantile,
    template_calls_to_adapt,
)
from gateway.measure.fleet_rows import DataError, Row, read, templates
from gateway.measure.fleet_run import Tally
from gateway.measure.fleet_traffic import SCENARIOS, Call, Scenario, Shape, acceptance, calls, shaped
from gateway.measure.fleet_world import Job, PoolSpec, World

KINDS = {
    "count": (6.0, "Say all numbers up to"),
    "csv": (4.5, "As CSV table, list"),
    "story": (1.4, "Tell a story of a table with legs"),
    "chat": (2.2, "Talk about"),
}


def line(kind: str, index: int, chance: Random) -> dict[str, Any]:
    """A labelled request of a kind, its acceptance scattered about the kind's."""
    mean, words = KINDS[kind]
    length = min(7.9, max(1.05, mean * chance.lognormvariate(0.0, 0.15)))
    return {
        "id": f"{kind}-{index}",
        "source": "made",
        "category": kind,
        "messages": [{"role": "user", "content": f"{words} {index}"}],
        "temperature": 0,
        "output_tokens": chance.randint(20, 300),
        "acceptance_length": {"draft": {"3": min(3.9, length), "7": length}, "ngram": {"5": min(5.9, length)}},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of labelled requests of four kinds, written by this test."""
    directory = tmp_path_factory.mktemp("labels")
    chance = Random(7)
    for kind in KINDS:
        lines = [json.dumps(line(kind, index, chance)) for index in range(30)]
        (directory / f"{kind}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def run(capsys: pytest.CaptureFixture[str], data: Path, *more: str) -> tuple[int, str, str]:
    """Run the command and return its exit code, output and messages."""
    parser = argparse.ArgumentParser()
    fleet.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["fleet", "--data", str(data), *more])
    code = fleet.run(args)
    out, err = capsys.readouterr()
    return code, out, err


def spec(**changes: Any) -> PoolSpec:
    """A small baseline pool: one replica of two slots, a tenth of a second a step, no prefill."""
    facts: dict[str, Any] = {
        "name": "base",
        "speculative": False,
        "window": 1,
        "drafter": None,
        "replicas": 1,
        "slots": 2,
        "step_seconds": 0.1,
        "growth": 0.0,
        "ttft_seconds": 0.0,
        "price_per_hour": 3600.0,
    }
    return PoolSpec(**(facts | changes))


def ended(world: World) -> list[Job]:
    """The jobs of a world in the order of their ends, filled as they end."""
    found: list[Job] = []
    world.on_end = found.append
    return found


# World


def test_a_call_takes_its_steps() -> None:
    """Twenty tokens at two per step and a tenth of a second a step take one second."""
    world = World([spec()], 0)
    found = ended(world)
    world.start(Job("a", 0.0), world.pools["base"], tokens=20, acceptance=2.0)
    world.finish()

    assert found[0].ended == pytest.approx(1.0)
    assert found[0].decode_seconds == pytest.approx(1.0)


def test_a_full_replica_lets_wait() -> None:
    """With two slots the third call starts when the first ends, in the order of arrival."""
    world = World([spec()], 0)
    found = ended(world)
    for name in "abc":
        world.start(Job(name, 0.0), world.pools["base"], tokens=10, acceptance=1.0)
    world.finish()

    assert [job.call for job in found] == ["a", "b", "c"]
    assert [job.started for job in found] == pytest.approx([0.0, 0.0, 1.0])


def test_company_slows_everybody() -> None:
    """With steps that double beside a second call, two calls of one second take two, and a late one shares the rest."""
    world = World([spec(growth=1.0)], 0)
    found = ended(world)
    world.start(Job("a", 0.0), world.pools["base"], tokens=10, acceptance=1.0)
    world.advance(0.5)
    world.start(Job("b", 0.5), world.pools["base"], tokens=10, acceptance=1.0)
    world.finish()

    # a: half alone, half at half pace until 1.5; b: half by then, the rest alone.
    assert [job.ended for job in found] == pytest.approx([1.5, 2.0])


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 200)), min_size=1, max_size=25), st.integers(1, 4))
@settings(max_examples=40)
def test_every_call_ends_once_and_no_work_is_lost(arrivals: list[tuple[float, int]], replicas: int) -> None:
    """Whatever arrives: all end, none faster than alone on an idle replica, and the pool is empty at last."""
    world = World([spec(replicas=replicas, growth=0.3)], 1)
    found = ended(world)
    for gap, tokens in arrivals:
        world.advance(world.now + gap)
        world.start(Job(tokens, world.now), world.pools["base"], tokens=tokens, acceptance=1.0)
    world.finish()

    assert len(found) == len(arrivals)
    assert all(job.ended - job.arrived >= int(str(job.call)) * 0.1 - 1e-6 for job in found)
    assert world.pools["base"].busy == 0


def test_what_ran_on_a_lost_replica_starts_anew() -> None:
    """A pool that loses a replica still ends every call, on those that are left."""
    world = World([spec(replicas=2)], 0)
    found = ended(world)
    for name in "abcd":
        world.start(Job(name, 0.0), world.pools["base"], tokens=10, acceptance=1.0)
    world.advance(0.5)
    world.lose(world.pools["base"], 1)
    world.finish()

    assert sorted(str(job.call) for job in found) == list("abcd")
    assert max(job.ended for job in found) > 1.0
    assert world.pools["base"].view().live_replicas == 1


# Data and traffic


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "line 1: KeyError"),
        ("nonsense", "line 1: JSONDecodeError"),
        (json.dumps(line("chat", 0, Random(0)) | {"output_tokens": 0}), "must be positive"),
        (json.dumps(line("chat", 0, Random(0)) | {"acceptance_length": {"draft": {"7": 9.5}}}), "outside"),
    ],
)
def test_bad_labels_are_told_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """A line that is no labelled request ends the command with 2 and says where and why."""
    (tmp_path / "bad.jsonl").write_text(text + "\n")
    code, out, err = run(capsys, tmp_path)

    assert (code, out) == (2, "")
    assert "bad.jsonl, " in err
    assert said in err


def test_no_labels_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty directory, and one of empty files, end the command with 2."""
    assert run(capsys, tmp_path)[0] == 2
    (tmp_path / "empty.jsonl").write_text("\n")
    assert run(capsys, tmp_path)[0] == 2


def test_a_window_without_labels_is_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for a window that was not labelled ends the command with 2."""
    code, _, err = run(capsys, data, "--windows", "5")

    assert code == 2
    assert "window 5" in err


def row(group: str, index: int) -> Row:
    """A row of a group."""
    return Row(f"{group}-{index}", ("made", group), "", 10, {("draft", 7): 3.0}, score())


def test_groups_of_five_are_templates() -> None:
    """Four rows of one source and category are no template, five are, each with a fingerprint of its own."""
    rows = [row(group, index) for group, count in (("a", 4), ("b", 5), ("c", 9)) for index in range(count)]
    found = templates(rows)

    assert sorted(len(each) for each in found.values()) == [5, 9]
    assert all(len(fingerprint) == 16 for fingerprint in found)


def test_templated_traffic_is_as_told() -> None:
    """Four fifths of the calls come from templates, each equally often; the rest come from all rows without one."""
    rows = [row(group, index) for group, count in (("a", 5), ("b", 40), ("c", 3)) for index in range(count)]
    found = list(calls(Scenario("templated", Shape(), 4000, 1), rows))
    by_template = Counter(call.template for call in found)

    assert by_template.pop("") == pytest.approx(800, abs=80)
    assert list(by_template.values()) == pytest.approx([1600, 1600], abs=120)
    assert {call.row.group[1] for call in found if not call.template} == {"a", "b", "c"}
    assert all(earlier.time <= later.time for earlier, later in pairwise(found))


@pytest.mark.parametrize("name", SCENARIOS)
def test_traffic_is_the_same_every_time(name: Any) -> None:
    """A scenario's calls follow from its seed alone."""
    rows = [row(group, index) for group in "abcd" for index in range(6)]
    scenario = Scenario(name, shaped(name, Shape()), 300, 5)

    assert list(calls(scenario, rows)) == list(calls(scenario, rows))
    assert list(calls(scenario, rows)) != list(calls(Scenario(name, scenario.shape, 300, 6), rows))


def test_the_draft_gets_worse_in_the_middle() -> None:
    """In the drop, m − 1 falls by 30 % from the middle on; the new tenant arrives in the middle with templates of its own."""
    rows = [row(group, index) for group in "abcd" for index in range(6)]
    drop = list(calls(Scenario("acceptance-drop", Shape(), 100, 0), rows))
    arrival = list(calls(Scenario("new-tenant", Shape(), 400, 0), rows))
    mine = {call.template for call in arrival if call.tenant == "first"}
    theirs = {call.template for call in arrival if call.tenant == "second"}

    assert [acceptance(call, "draft", 7) for call in drop] == pytest.approx([3.0] * 50 + [2.4] * 50)
    assert all(call.tenant == "first" for call in arrival[:200])
    assert theirs - {""}
    assert mine & theirs == {""}


# Reports


def test_quantiles_are_values_that_occurred() -> None:
    """The nearest rank is taken, from the smallest to the largest."""
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]


def test_adaptation_is_timed_from_the_change() -> None:
    """A policy that is twice as slow as the oracle for 700 calls after a change has adapted after about so many."""
    mine, oracle = Tally(4000), Tally(4000)
    for index in range(4000):
        oracle.decode[index] = 1.0
        mine.decode[index] = 2.0 if 2000 <= index < 2700 else 1.02
    found = calls_to_adapt(mine, oracle, 2000)

    assert found is not None
    assert 650 <= found <= 700


def test_foresight_is_timed_from_the_change() -> None:
    """Expectations that are right from the 300th call on are foresight from just before it."""
    mine = Tally(2000)
    for index in range(2000):
        mine.speculated[index] = 1
        mine.acceptance[index] = 2.0
        mine.expected[index] = 3.0 if 1000 <= index < 1300 else 2.0
    found = calls_to_foresee(mine, 1000)

    assert found is not None
    assert 280 <= found <= 300


def test_templates_that_turn_around_are_timed() -> None:
    """A template whose best pool becomes baseline has adapted when its choices have."""
    oracle, mine = Tally(200), Tally(200)
    for index in range(200):
        oracle.speculated[index] = index < 100
        mine.speculated[index] = index < 130
    sequence = [Call(index, 0.0, "t", "abc", row("a", 0), 1.0) for index in range(200)]
    found = template_calls_to_adapt(mine, oracle, sequence, 100)

    assert found is not None
    assert found["templates"] == 1
    assert 20 <= found["max"] <= 30


def test_the_largest_move_looks_through_a_window() -> None:
    """A slow climb of 0.3 within a minute is 0.15 within thirty seconds."""
    climb = [(float(second), 0.005 * second) for second in range(61)]

    assert largest_move(climb) == pytest.approx(0.15)


# Policies


def figures(capsys: pytest.CaptureFixture[str], data: Path, *more: str) -> dict[str, Any]:
    """The command's JSON."""
    code, out, _ = run(capsys, data, "--json", *more)
    assert code == 0
    return dict(json.loads(out))


def test_the_same_command_prints_the_same_figures(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but data, arguments and seed decides; another seed gives other figures."""
    first, second = (figures(capsys, data, "--requests", "400", "--seed", "3") for _ in range(2))

    assert first == second
    assert figures(capsys, data, "--requests", "400", "--seed", "4") != first
    assert list(first["policies"]) == list(POLICIES)


def test_routing_beats_every_other_policy(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On templated traffic draftlane is within 5 % of the oracle, learning included, and better than the others.

    A threshold fixed by luck between two pairs of templates needs no learning; draftlane comes close to that as well.
    """
    found = figures(capsys, data, "--requests", "4000")["policies"]
    times = {name: each["relative_decode_time"] for name, each in found.items()}

    assert times["baseline"] == pytest.approx(1.0)
    assert times["oracle"] == min(times.values())
    assert times["draftlane"] <= 1.05 * times["oracle"]
    assert times["draftlane"] < 1.05 * times["fixed-threshold"]
    for name in set(POLICIES) - {"oracle", "draftlane", "fixed-threshold"}:
        assert times["draftlane"] < times[name]


def test_a_pessimistic_prior_recovers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Believing in nothing at first costs a little; the same belief without learning costs everything."""
    found = figures(capsys, data, "--requests", "4000", "--prior", "pessimistic")["policies"]

    assert found["draftlane"]["regret"] < 0.08
    assert found["static-prior"]["relative_decode_time"] > 0.99


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_tells_its_story(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each scenario runs, reports all figures, and those with a change say how long adapting took."""
    found = figures(
        capsys, data, "--scenario", name, "--requests", "1500", "--policies", "speculative", "--replicas", "2"
    )

    assert found["scenario"] == name
    assert list(found["policies"]) == ["baseline", "speculative", "draftlane", "oracle"]
    assert found["policies"]["draftlane"]["objective_regret"] < 0.1
    assert found["threshold"]["largest_move_in_30_s"] <= 0.1 + 1e-9
    assert ("time_to_adapt" in found) == (name in fleet.CHANGING)


def test_several_windows_are_several_pools(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a short window beside the long one, more calls are worth speculating."""
    one = figures(capsys, data, "--requests", "1500", "--policies", "draftlane")["policies"]
    two = figures(capsys, data, "--requests", "1500", "--policies", "draftlane", "--windows", "7,3")["policies"]

    assert two["draftlane"]["relative_decode_time"] < one["draftlane"]["relative_decode_time"]
    assert two["draftlane"]["speculative_share"] > one["draftlane"]["speculative_share"]


def test_prompt_lookup_labels_can_be_drawn(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The n-gram labels make a fleet as well, at a ratio of its own."""
    found = figures(
        capsys,
        data,
        "--requests",
        "1000",
        "--drafter",
        "ngram",
        "--windows",
        "5",
        "--ratio",
        "1.3",
        "--policies",
        "oracle",
    )

    assert found["fleet"]["drafter"] == "ngram"
    assert found["policies"]["draftlane"]["regret"] < 0.1


def test_all_scenarios_come_as_a_list_and_a_plot(
    data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--scenario all` prints a list of reports, and `--plot` draws them."""
    picture = tmp_path / "fleet.png"
    found = figures(
        capsys, data, "--scenario", "all", "--requests", "60", "--policies", "baseline", "--plot", str(picture)
    )

    assert [report["scenario"] for report in found["scenarios"]] == list(SCENARIOS)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_people_get_a_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` a table names every policy, and progress goes to stderr."""
    code, out, err = run(capsys, data, "--scenario", "acceptance-drop", "--requests", "300")

    assert code == 0
    assert all(name in out for name in POLICIES)
    assert "after the change" in out
    assert "acceptance-drop: oracle" in err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--requests", "0"],
        ["--scenario", "armageddon"],
        ["--policies", "hope"],
        ["--cost-weight", "2"],
        ["--ratio", "0"],
        ["--replicas", "-1"],
    ],
)
def test_wrong_use_exits_with_2(wrong: list[str], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that make no sense are refused by name."""
    with pytest.raises(SystemExit) as caught:
        run(capsys, data, *wrong)

    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_broken_artefact_is_told(data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An artefact that cannot be used ends the command with 2."""
    (tmp_path / "artefact.json").write_text("{}")
    code, _, err = run(capsys, data, "--artefact", str(tmp_path / "artefact.json"))

    assert code == 2
    assert "artefact" in err


def test_the_acceptance_target_chases_its_target() -> None:
    """The naive controller raises its threshold while acceptance is too low, and lowers it while it is high."""
    policy = AcceptanceTarget()
    world = World([spec(name="spec", speculative=True, window=7)], 0)
    call = Call(0, 0.0, "t", "", row("a", 0), 1.0)
    before = policy.threshold
    for _ in range(10):
        policy.learn(call, world.pools["spec"].view(), 1.2, 50.0, 0.0)
    raised = policy.threshold
    for _ in range(60):
        policy.learn(call, world.pools["spec"].view(), 6.0, 50.0, 0.0)

    assert raised > before > policy.threshold


def test_reading_scores_every_row(data: Path) -> None:
    """Rows carry the artefact's score of their messages, and what every drafter and window achieved."""
    from classifier.scorer import Scorer

    rows = read(data, Scorer.load())

    assert len(rows) == 30 * len(KINDS)
    assert all(0.0 <= each.score.value <= 1.0 for each in rows)
    assert set(rows[0].acceptance) == {("draft", 3), ("draft", 7), ("ngram", 5)}


def test_data_errors_are_errors() -> None:
    """The error of bad data is an exception of its own, with the message for people."""
    with pytest.raises(DataError, match="holds no"):
        read(Path("/nonexistent"), None)  # type: ignore[arg-type]
