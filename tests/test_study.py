"""The study's tools on made-up calls and on embedded engines: figures, resuming, arms, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from harness import KEY, config_for, serving

from bench.study import __main__ as command
from bench.study import drafts, families, figures, routing
from bench.study.load import Job
from bench.study.prompts import FAMILIES, KINDS, requests
from bench.study.stand import Kept, endpoint
from gateway import engine
from gateway.engine import EngineSettings
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.load.sample import Sample


def sample(line: int, seconds: float, *, tokens: int = 101, acceptance: float = 1.0, **fields: object) -> Sample:
    """Return a call that decoded 100 tokens in so many seconds, its first token after 0.1 s."""
    given = {"category": "story" if line % 2 else "json", "target": "x", "pool": None, **fields}
    return Sample(
        line=line,
        id=str(line),
        started=1000.0 + 100.0 * line,
        status=200,
        ttft_seconds=0.1,
        e2e_seconds=seconds + 0.1,
        completion_tokens=tokens,
        acceptance_length=acceptance,
        output_sha256=f"answer {line}",
        **given,  # type: ignore[arg-type]
    )


def test_ratios_of_made_up_calls_are_exact() -> None:
    """Twice as fast at every prompt is a ratio of 0.5 with an interval of no width; steps and tokens add up."""
    base = [sample(line, 4.0) for line in range(1, 9)]
    fast = [sample(line, 2.0, acceptance=2.0) for line in range(1, 9)]
    found = figures.pair(base, fast)

    assert found.tpot is not None
    assert (found.tpot.value, found.tpot.low, found.tpot.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.ttft is not None
    assert (found.ttft.value, found.ttft.low, found.ttft.high) == pytest.approx((1.0, 1.0, 1.0))
    assert (found.first.tpot_ms, found.second.tpot_ms) == pytest.approx((40.0, 20.0))
    assert found.first.step_ms == pytest.approx(40.0)
    assert found.second.acceptance == pytest.approx(2.0)
    assert found.equal == 1.0
    assert figures.shown(found.tpot) == "0.50 (0.50–0.50)"


def test_the_quickest_repetition_of_each_prompt_counts() -> None:
    """Of a target's answers to a prompt the one that took least is kept; failures, however quick, are not."""
    calls = [
        sample(1, 4.0),
        sample(1, 3.0, repeat=1),
        replace_error(sample(1, 1.0)),
        sample(1, 9.0, target="y"),
        sample(2, 5.0),
    ]

    assert [(one.target, one.line, one.e2e_seconds) for one in figures.quickest(calls)] == [
        ("x", 1, 3.1),
        ("y", 1, 9.1),
        ("x", 2, 5.1),
    ]


def test_figures_of_drafts_are_told_and_written(tmp_path: Path) -> None:
    """Each engine has a row with its ratio, all together and by kind of family, and the file has them with intervals."""
    asked = requests(model=SERVED)
    base = figures.by_group([sample(one.line, 4.0, category=one.category) for one in asked], KINDS)
    fast = figures.by_group([sample(one.line, 3.0, category=one.category, acceptance=2.0) for one in asked], KINDS)
    found = {"draft-4 window 2": {group: figures.pair(base[group], samples) for group, samples in fast.items()}}
    made = {"SmolLM2-draft-4": {"parameters": 42e6, "agreement": 0.5, "seconds": 600, "corpus_tokens": 1000}}

    (row,) = (line for line in drafts._shown(found, made).splitlines() if "window 2" in line)
    assert row.count("0.75 (0.75–0.75)") == 3
    assert "story 2.00" in row

    command.write(tmp_path / "x.json", "drafts", {name: asdict(one) for name, one in found["draft-4 window 2"].items()})
    told = json.loads((tmp_path / "x.json").read_text())["drafts"]
    assert set(told) == {*KINDS, "predictable", "open", figures.ALL}
    assert told["open"]["tpot"] == pytest.approx({"value": 0.75, "low": 0.75, "high": 0.75})


def test_answers_of_one_token_and_failures_are_left_out() -> None:
    """What has no pace is not in any family's figures."""
    found = figures.by_family([sample(1, 4.0), sample(3, 4.0, tokens=1), replace_error(sample(5, 4.0))])

    assert {name: len(group) for name, group in found.items()} == {"story": 1, figures.ALL: 1}


def replace_error(found: Sample) -> Sample:
    """Return a sample as if it had failed."""
    import msgspec

    return msgspec.structs.replace(found, error="broken: gone")


def test_tables_are_markdown() -> None:
    """Columns are as wide as their widest cell."""
    assert figures.table(("a", "bb"), [("long", 1)]) == "| a    | bb |\n|------|----|\n| long | 1  |"


def test_throughput_counts_the_time_of_an_arm_s_own_calls() -> None:
    """Between an arm's calls others may run; that time is not the arm's."""
    calls = [sample(line, 4.9) for line in (1, 2)]  # 100 s apart, 5 s each

    assert routing._wall(calls) == pytest.approx(202 / 10.0, rel=0.01)


def test_prompts_are_of_every_family_in_turn() -> None:
    """Five prompts of each family, neighbours of different ones, lines numbered from 1, all for the lab's model."""
    asked = requests(model=SERVED)

    assert len(asked) == sum(len(family.prompts) for family in FAMILIES) == 40
    assert [one.line for one in asked] == list(range(1, 41))
    assert [one.category for one in asked[:8]] == [family.name for family in FAMILIES]
    assert {one.body["model"] for one in asked} == {SERVED}
    begun = [one for one in asked if one.body.get("continue_final_message")]
    assert {one.category for one in begun} == {"repetition", "sequence", "json"}


async def test_families_are_measured_once_and_gone_on_with(tmp_path: Path) -> None:
    """A run that is repeated measures nothing anew; one that lost some samples measures those; other settings are refused."""
    case = families.Case(8, 0.0, 1)
    options = {"speed": 100.0, "model": SERVED, "per_request_metrics": True}
    async with (
        engine.serve(EngineSettings(kind="baseline", **options)) as baseline,
        engine.serve(EngineSettings(kind="speculative", **options)) as speculative,
    ):
        urls = {"baseline": baseline.url, "speculative": speculative.url}
        path = tmp_path / "families.jsonl"
        with Kept(path, {"study": "families"}) as kept:
            await families._measure((case,), urls, kept)
            found = families._figures(kept, case)
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:-5]) + "\n")
        before = len(baseline.engine.record) + len(speculative.engine.record)
        with Kept(path, {"study": "families"}) as kept:
            await families._measure((case,), urls, kept)

        assert len(lines) == 1 + 2 * 40
        assert len(baseline.engine.record) + len(speculative.engine.record) == before + 5
    assert list(found) == [*(family.name for family in FAMILIES), "predictable", "open", figures.ALL]
    assert found["sequence"].second.acceptance > found["story"].second.acceptance >= 1.0
    assert families._shown(case, found).count("\n") == 2 + 1 + 11
    with pytest.raises(Exception, match="holds results of another run"):
        Kept(path, {"study": "other"})


async def test_arms_go_where_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forced arms reach their pool, alternation both, and the routed arm's shares and reasons are told."""
    options = {"speed": 100.0, "model": SERVED, "per_request_metrics": True}
    async with (
        engine.serve(EngineSettings(kind="baseline", **options)) as baseline,
        engine.serve(EngineSettings(kind="speculative", **options)) as speculative,
        serving(
            config_for(
                {"speculative": [speculative.url], "baseline": [baseline.url]},
                model=[{"name": SERVED}],
                pools={name: {"model": SERVED} for name in ("speculative", "baseline")},
            )
        ) as front,
    ):
        asked = [routing._shortened(one) for one in requests(model=SERVED)]
        with Kept(tmp_path / "routing.jsonl", {}) as kept:
            for arm in routing.ARMS:
                jobs = [
                    Job(replace(job.endpoint, key=KEY), job.request, job.repeat)
                    for job in routing._jobs(arm, front.url, asked, 0)
                ]
                await kept.measure(jobs, 16)
            told = routing._told(16, kept)
            pools = {arm: {one.pool for one in kept.of(arm)} for arm in routing.ARMS}

    assert pools["baseline"] == {"baseline"}
    assert pools["speculative"] == {"speculative"}
    assert pools["alternate"] == {"baseline", "speculative"}
    assert set(told["arms"]) == set(routing.ARMS)
    assert "routed to the speculative pool: " in capsys.readouterr().out


async def test_failed_calls_are_asked_again(tmp_path: Path) -> None:
    """A call that met no engine is told, and is not taken for measured."""
    job = Job(endpoint("gone", "http://127.0.0.1:9"), requests(model=SERVED)[0])
    with Kept(tmp_path / "x.jsonl", {}) as kept:
        await kept.measure([job], 1)
        assert kept.samples == []
    with Kept(tmp_path / "x.jsonl", {}) as kept:
        assert kept.samples == []


async def test_a_draft_is_compared_with_the_baseline_beside_it(tmp_path: Path) -> None:
    """Both get the same prompts as often, each goes first in turn, and their ratio is one of what was measured together."""
    arm = drafts.Arm("draft-4 window 2", {})
    options = {"speed": 100.0, "model": SERVED, "per_request_metrics": True}
    async with (
        engine.serve(EngineSettings(kind="baseline", **options)) as baseline,
        engine.serve(EngineSettings(kind="speculative", **options)) as speculative,
    ):
        with Kept(tmp_path / "drafts.jsonl", {}) as kept:
            assert not drafts._whole(kept, arm)
            await drafts._measure(arm, baseline.url, speculative.url, kept)
            found = drafts._compared(kept, arm)
            own, beside = kept.of(arm.name), kept.of(arm.beside)

            assert drafts._whole(kept, arm)
    assert len(own) == len(beside) == drafts.REPEATS * drafts.PROMPTS * len(FAMILIES)
    first = {repeat: min(one.started for one in own if one.repeat == repeat) for repeat in range(2)}
    assert [min(one.started for one in beside if one.repeat == repeat) < first[repeat] for repeat in range(2)] == [
        True,
        False,
    ]
    assert found["sequence"].first.acceptance == 1.0 < found["sequence"].second.acceptance


def test_drafts_that_are_not_distilled_are_named(tmp_path: Path) -> None:
    """Comparing drafts before `make lab-draft` says so."""
    place = Place(tmp_path)
    place.python.parent.mkdir()
    place.python.touch()
    (tmp_path / ".ready").touch()

    with pytest.raises(LabError, match=r"SmolLM2-draft-4.*`make lab` prepares the target, `make lab-draft` the drafts"):
        drafts.arms(place, quick=True)


def test_the_command_tells_what_it_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown part is wrong use; a missing lab is told with the command that builds it."""
    monkeypatch.setenv("DRAFTLANE_LAB", str(tmp_path / "lab"))
    with pytest.raises(SystemExit) as wrong:
        command.main(["familes"])
    assert wrong.value.code == 2
    assert command.main(["families", "--out", str(tmp_path / "out")]) == 1
    assert "`make lab`" in capsys.readouterr().err
    (header,) = (tmp_path / "out" / "families.jsonl").read_text().splitlines()
    assert json.loads(header)["settings"]["study"] == "families"
