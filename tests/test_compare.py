"""`draftlane compare`: the same prompts on two pools, in pairs, until there is enough to say whether to adopt the second."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import DONE, ROLE, USAGE, delta, refusal, reply, scripted, sse
from harness import until

from gateway.__main__ import main
from gateway.engine import EngineSettings, Running, serve
from gateway.measure.load.sample import Results, Sample, read
from gateway.measure.paired import pairs, verdict
from gateway.measure.paired.compared import Terms, comparison
from gateway.measure.paired.intervals import Estimate, Resamples, noise_share, student
from gateway.measure.paired.outputs import parted
from gateway.measure.paired.result import Comparison, Difference, Ended, Level
from gateway.measure.paired.words import as_text
from gateway.measure.publish import compare_page, sweep_page
from gateway.measure.publish.results import sweep_of

ROOT = Path(__file__).parent.parent
NAMES = ("base", "spec")
ENDED = Ended(by="repeats", text="all repetitions are done")
FAST = {
    "base": EngineSettings(kind="baseline", speed=200, slots=8),
    "spec": EngineSettings(kind="speculative", speed=200, slots=8, per_request_metrics=True),
}
PROMPTS = {"sequence": "Count from {} to 100.", "story": "Tell me story {} about a fox."}


# --- made-up calls, of which the truth is known ---


def call(name: str, line: int, tpot: float, **changes: Any) -> Sample:
    """Return a call of 101 tokens after 0.1 s, each but the first taking `tpot` seconds; calls follow each other."""
    repeat = int(changes.get("repeat", 0))
    fields: dict[str, Any] = {
        "line": line,
        "id": f"p{line}",
        "target": name,
        "started": 1000.0 + 100.0 * repeat + 10.0 * line + (5.0 if name.startswith("spec") else 0.0),
        "status": 200,
        "ttft_seconds": 0.1,
        "e2e_seconds": 0.1 + 100 * tpot,
        "prompt_tokens": 20,
        "completion_tokens": 101,
        "output_sha256": f"{line:064x}",
    }
    return Sample(**{**fields, **changes})


def calls(
    ratios: dict[str, float], *, prompts: int = 30, noise: float = 0.02, level: int = 1, **fields: Any
) -> list[Sample]:
    """Return pairs of calls by category, the second pool's decode time being the ratio's share of the first's, with noise."""
    chance = np.random.default_rng(7)
    found = []
    for place, (category, ratio) in enumerate(ratios.items()):
        for line in range(1 + prompts * place, 1 + prompts * (place + 1)):
            base = 0.045 * float(np.exp(noise * chance.standard_normal()))
            spec = 0.045 * ratio * float(np.exp(noise * chance.standard_normal()))
            for name, tpot in (("base", base), ("spec", spec)):
                found.append(call(f"{name}@{level}", line, tpot, category=category, **fields))
    return found


def compared(samples: Iterable[Sample], **terms: Any) -> Comparison:
    """Return what calls amount to."""
    return comparison(samples, NAMES, Terms(**terms), ENDED, settings={"temperature": 0.0})


def only(found: Comparison) -> Level:
    """Return the one level of a comparison."""
    (level,) = found.levels
    return level


# --- intervals ---


def test_students_quantile_is_right() -> None:
    """Within half a percent of the tables, from four degrees of freedom on."""
    for freedom, confidence, table in ((4, 0.95, 2.776), (9, 0.95, 2.262), (30, 0.95, 2.042), (4, 0.995, 5.598)):
        assert student(confidence, freedom) == pytest.approx(table, rel=0.005)


@pytest.mark.parametrize("prompts", [5, 8, 40])
def test_intervals_hold_as_often_as_they_say(prompts: int) -> None:
    """Of 400 made-up experiments, nine in ten and more have the truth in their 95 % interval, even with five prompts."""
    chance = np.random.default_rng(prompts)
    held = 0
    for seed in range(400):
        ease = chance.lognormal(0, 0.5, prompts)
        base = ease * chance.lognormal(0, 0.1, prompts)
        spec = 0.5 * ease * chance.lognormal(-0.04, 0.3, prompts)  # of mean 0.5·exp(0.005) per unit
        found = Resamples([np.stack([base, spec], axis=1)], seed=seed, draws=300).estimate(
            lambda s: s[..., 1] / s[..., 0]
        )
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low < 0.5 < found.high

    assert held / 400 >= 0.9


def test_the_same_seed_gives_the_same_intervals() -> None:
    """A comparison can be told again, figure by figure; another seed moves ends, not figures."""
    samples = calls({"json": 0.5})
    first, again, other = (only(compared(samples, seed=seed)).overall.ratios.tpot for seed in (1, 1, 2))

    assert first == again
    assert first is not None
    assert other is not None
    assert first.value == other.value
    assert first.low != other.low


def test_too_few_prompts_have_no_interval() -> None:
    """Four prompts give figures and no interval, however often they were repeated."""
    samples = [
        call(f"{name}@1", line, 0.045, repeat=repeat) for name in NAMES for line in range(4) for repeat in range(9)
    ]
    found = only(compared(samples)).overall

    assert found.prompts == 4
    assert found.pairs == 36
    assert found.ratios.tpot == Estimate(1.0)
    assert found.finding == "few"


def test_pairs_are_tighter_than_calls_apart() -> None:
    """What makes a prompt slow on both pools is no uncertainty of their ratio, and is some where calls have no pairs."""
    samples = [
        call(f"{name}@1", line, 0.001 * (1 + line % 10) * share)
        for line in range(40)
        for name, share in (("base", 1), ("spec", 0.5))
    ]
    widths = []
    for pairing in ("own names", ""):
        ratio = only(compared(samples, pairing=pairing)).overall.ratios.tpot
        assert ratio is not None
        assert ratio.value == pytest.approx(0.5)
        widths.append(ratio.half_width or 0.0)

    assert widths[0] < 0.01 < widths[1]
    assert any("no pairs" in warning for warning in compared(samples, pairing="").warnings)


def test_noise_is_told_from_prompts() -> None:
    """Repeating helps against what differs between repetitions, not against what differs between prompts."""
    chance = np.random.default_rng(3)
    ones = [np.ones(3) for _ in range(30)]
    noisy = [1 + 0.1 * chance.standard_normal(3) for _ in range(30)]
    differing = [np.full(3, 1 + 0.1 * value) for value in chance.standard_normal(30)]

    assert (noise_share(noisy, ones) or 0) > 0.7
    assert (noise_share(differing, ones) or 0) < 0.01
    assert noise_share([each[:1] for each in noisy], [each[:1] for each in ones]) is None


# --- figures ---


def test_figures_are_ratios_of_sums() -> None:
    """TPOT weighs by tokens, E2E and TTFT by calls; acceptance is tokens over steps; cost is of all tokens."""
    short = {"completion_tokens": 11, "e2e_seconds": 0.1 + 10 * 0.09, "acceptance_length": 1.1, "cost_usd": 0.11}
    long = {"acceptance_length": 4.0, "acceptance_source": "engine", "cost_usd": 0.2}
    samples = [
        sample
        for line in range(10)
        for sample in (call("base@1", line, 0.045), call("spec@1", line, 0.03, **(short if line % 2 else long)))
    ]
    pool = only(compared(samples)).overall.pools[1]

    assert pool.tpot_seconds is not None
    assert pool.tpot_seconds.value == pytest.approx((100 * 0.03 + 10 * 0.09) / 110)
    assert pool.e2e_seconds is not None
    assert (pool.e2e_seconds.value, pool.e2e_seconds.p50) == pytest.approx((2.05, 2.05))
    assert pool.ttft_seconds is not None
    assert pool.ttft_seconds.value == pytest.approx(0.1)
    assert pool.acceptance_length is not None
    assert pool.acceptance_length.value == pytest.approx(112 / (101 / 4 + 11 / 1.1))
    assert pool.usd_per_million_output_tokens is not None
    assert pool.usd_per_million_output_tokens.value == pytest.approx(1e6 * 0.31 / 112)
    assert pool.completion_tokens == 5 * 112


def test_throughput_is_of_the_whole_pool() -> None:
    """Four calls under way at once give four times the tokens per second of one; the load that was reached is told."""
    samples = [
        call(f"{name}@4", line, tpot, started=1000.0 + (line // 4) * 20)
        for line in range(40)
        for name, tpot in (("base", 0.05), ("spec", 0.025))
    ]
    level = only(compared(samples))
    base, spec = level.overall.pools

    assert level.reached == {"base": 4.0, "spec": 4.0}
    assert base.output_tokens_per_second is not None
    assert base.output_tokens_per_second.value == pytest.approx(4 * 101 / 5.1)
    assert spec.output_tokens_per_second is not None
    assert level.overall.ratios.output_tokens_per_second is not None
    assert level.overall.ratios.output_tokens_per_second.value == pytest.approx(5.1 / 2.6)


def test_time_with_nothing_under_way_does_not_count() -> None:
    """Overlapping calls count once, gaps between blocks not at all."""
    samples = [call("base", 1, 0.0, started=start, e2e_seconds=2.0) for start in (0.0, 1.0, 10.0)]

    assert pairs.busy_seconds(samples) == 5.0


def test_failed_calls_break_their_pair_and_are_told() -> None:
    """A pair counts whole or not at all; failures are counted by pool and warned of, with line, name and reason."""
    samples = calls({"": 0.5})
    samples[3] = call("spec@1", 2, 0.02, error="http 500: no", status=500)
    found = compared(samples)

    assert only(found).overall.pairs == 29
    assert [pool.failed for pool in only(found).overall.pools] == [0, 1]
    assert any("1 of 30 calls failed" in warning for warning in found.warnings)
    assert "spec@1: line 2 (p2) failed, http 500: no" in found.warnings


def test_answers_in_one_piece_are_judged_by_their_end() -> None:
    """Without a time to first token, E2E carries the verdict, and the reader is told."""
    samples = [
        call(f"{name}@1", line, tpot, ttft_seconds=None)
        for line in range(20)
        for name, tpot in (("base", 0.04), ("spec", 0.02))
    ]
    found = compared(samples)

    assert only(found).overall.carrier == "e2e"
    assert found.verdict.answer == "adopt"
    assert any("E2E carries the verdict" in warning for warning in found.warnings)


# --- verdicts ---


@pytest.mark.parametrize(
    ("ratios", "answer", "said"),
    [
        (
            {"": 0.5},
            "adopt",
            r"Adopt spec: decode time per token is 0\.50 \(0\.\d\d–0\.\d\d\) of base's, \d\.\d\d times as fast",
        ),
        ({"": 1.5}, "dont", r"Don't adopt spec: decode time per token is 1\.\d\d \(1\."),
        ({"": 1.0}, "dont", r"no difference worth having"),
        ({"json": 0.4, "code": 0.6}, "adopt", r"Adopt spec: "),
        ({"json": 0.4, "chat": 1.5}, "adopt_for", r"Adopt spec for json \(0\.40 .*\)\. Not for chat \(1\."),
        ({"json": 0.4, "chat": 1.0}, "adopt", r"Adopt spec: "),
        ({"json": 0.9, "chat": 2.0}, "adopt_for", r"Adopt spec for json"),
        ({"a": 1.2, "b": 1.4}, "dont", r"Don't adopt"),
    ],
)
def test_the_verdict_follows_from_the_intervals(ratios: dict[str, float], answer: str, said: str) -> None:
    """Adopt, adopt for some categories, or don't, each with the interval that carries it."""
    found = compared(calls(ratios))

    assert found.verdict.answer == answer
    assert re.search(said, found.verdict.text), found.verdict.text
    assert as_text(found).endswith(f"Verdict: {found.verdict.text}")
    if answer == "adopt_for":
        assert found.verdict.categories == ("json",)


def test_a_wide_interval_is_no_verdict() -> None:
    """What holds gain and loss is not enough, and it is said about how many prompts would be."""
    found = compared(calls({"": 0.97}, prompts=8, noise=0.4))
    needed = re.search(r"about (\d+) prompts would tell it to ±5%", found.verdict.text)

    assert found.verdict.answer == "not_enough"
    assert needed is not None
    assert int(needed[1]) > 100
    assert any("which holds gain and loss" in warning for warning in found.warnings)


def test_a_loss_end_to_end_outweighs_a_gain_per_token() -> None:
    """A pool that decodes faster and lets callers wait longer is not adopted; where lengths differ, E2E says nothing."""
    slow = [call("base@1", line, 0.04) for line in range(20)]
    slow += [call("spec@1", line, 0.03, ttft_seconds=9.0, e2e_seconds=12.0) for line in range(20)]
    longer = [call("base@1", line, 0.04) for line in range(20)]
    longer += [call("spec@1", line, 0.03, completion_tokens=401, e2e_seconds=12.1) for line in range(20)]

    assert compared(slow).verdict.answer == "dont"
    assert compared(longer).verdict.answer == "adopt"


def test_many_categories_do_not_win_by_chance() -> None:
    """Twenty categories without any difference: intervals widen for their number, and hardly one of them is called a gain."""
    found = only(compared(calls({f"c{n:02}": 1.0 for n in range(20)}, prompts=8, noise=0.1)))
    gains = [each for each in found.categories if each.finding in ("gain", "loss")]
    judged, plain = found.categories[0].judged, found.categories[0].ratios.tpot

    assert gains == []
    assert judged is not None
    assert plain is not None
    assert (judged.half_width or 0) > 1.3 * (plain.half_width or 1)


def test_cost_is_told_beside_the_verdict() -> None:
    """A faster pool that costs more per token is adopted for time, and its price is told."""
    dear = [*calls({"": 0.5}, cost_usd=1.0)]
    dear = [
        one if one.target == "base@1" else call(one.target, one.line, one.tpot_seconds or 0, cost_usd=3.0)
        for one in dear
    ]

    assert "It costs more: 3.00 (3.00–3.00) of base's per output token" in compared(dear).verdict.text


def test_a_sign_that_flips_with_load_is_said() -> None:
    """A gain at one concurrency and a loss at another is the first thing that is told, with both intervals."""
    found = compared([*calls({"json": 0.5, "chat": 0.9}), *calls({"json": 0.7, "chat": 1.4}, level=16)])

    assert found.verdict.text.startswith("The sign flips with load (")
    assert re.search(r"chat: 0\.\d\d \(.*?\) at 1, 1\.\d\d \(.*?\) at 16", found.verdict.text)
    assert [level.concurrency for level in found.levels] == [1, 16]
    assert verdict.flipped(found.levels[:1]) == []


# --- outputs ---


def test_equality_of_outputs_is_counted() -> None:
    """Equal pairs, the first that differ, and how often each pool repeats itself; many differences are warned of."""
    samples = [
        call(f"{name}@1", line, 0.04, repeat=repeat, output_sha256="b" if name == "spec" and line in (4, 7) else "a")
        for name in NAMES
        for line in range(1, 21)
        for repeat in (0, 1)
    ]
    found = compared(samples)
    equality = only(found).equality

    assert equality is not None
    assert (equality.pairs, equality.equal, equality.share) == (40, 36, 0.9)
    assert (equality.first, equality.repeated) == (Difference(line=4, id="p4"), {"base": (20, 20), "spec": (20, 20)})
    assert any("only 90% are equal at temperature 0" in warning for warning in found.warnings)
    assert "36 of 40 pairs are equal (base gave 20 of 20 again" in as_text(found)


def test_a_pool_that_does_not_repeat_itself_is_no_news() -> None:
    """Where baseline differs from itself as often, nothing is warned of."""
    samples = [
        call(f"{name}@1", line, 0.04, repeat=repeat, output_sha256=f"{name}{line}{repeat}")
        for name in NAMES
        for line in range(1, 21)
        for repeat in (0, 1)
    ]

    assert not any("equal" in warning for warning in compared(samples).warnings)


def test_the_place_where_texts_part_is_found() -> None:
    """The first character that differs, with some before it; equal texts leave the difference as it was."""
    difference = Difference(line=1, id="a")
    found = parted(difference, "x" * 50 + "one", "x" * 50 + "two")

    assert found.character == 50
    assert found.texts == ("x" * 20 + "one", "x" * 20 + "two")
    assert parted(difference, "same", "same") == difference
    assert parted(difference, "longer", "long").character == 4


# --- measuring, over sockets ---


def trace(path: Path, count: int = 6, **fields: Any) -> Path:
    """Write requests of two categories."""
    lines = []
    for number in range(count):
        category = list(PROMPTS)[number % 2]
        lines.append({"prompt": PROMPTS[category].format(number), "category": category, "max_tokens": 12, **fields})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@asynccontextmanager
async def pools(**settings: EngineSettings) -> AsyncIterator[dict[str, Running]]:
    """Run both engines."""
    async with serve(settings.get("base", FAST["base"])) as base, serve(settings.get("spec", FAST["spec"])) as spec:
        yield {"base": base, "spec": spec}


def to(engines: dict[str, Running]) -> tuple[str, ...]:
    """Return the options that name both engines."""
    return "--baseline", engines["base"].url, "--speculative", engines["spec"].url, "--names", "base,spec"


async def compare(*arguments: Any) -> int:
    """Run the command in a thread, so that engines of this test's loop can answer it."""
    return await asyncio.to_thread(main, ["compare", *map(str, arguments)])


def asked(engine: Running) -> list[dict[str, Any]]:
    """Return the bodies that an engine received, in order."""
    return [entry.json() for entry in engine.record if entry.body]


def prompts(bodies: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return how often each prompt was asked."""
    return Counter(body["messages"][-1]["content"] for body in bodies)


async def test_both_pools_get_the_same_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every prompt goes to both pools as often, at temperature 0, after one call each to warm up; figures are of all pairs."""
    async with pools() as engines:
        code = await compare(
            trace(tmp_path / "t", temperature=0.9), *to(engines), "--repeats", 2, "--precision", 1e-9, "--json",
            "--price-baseline", 10, "--price-speculative", 12, "--slots", 8,
        )  # fmt: skip
        base, spec = (asked(engines[name]) for name in NAMES)
    found = json.loads(capsys.readouterr().out)
    (level,) = found["levels"]

    assert code == 0
    assert prompts(base[1:]) == prompts(spec[1:])
    assert set(prompts(base[1:]).values()) == {2}
    assert base[0]["messages"] == spec[0]["messages"]
    assert {body["temperature"] for body in (*base, *spec)} == {0.0}
    assert found["kind"] == "compare"
    assert (level["overall"]["pairs"], level["overall"]["prompts"]) == (12, 6)
    assert [each["category"] for each in level["categories"]] == ["sequence", "story"]
    assert level["equality"]["equal"] == level["equality"]["pairs"] == 12
    assert level["equality"]["repeated"] == {"base": [6, 6], "spec": [6, 6]}
    base_pool, spec_pool = level["overall"]["pools"]
    assert base_pool["acceptance_length"]["value"] == pytest.approx(1.0)
    assert spec_pool["acceptance_length"]["value"] > 1.5
    assert spec_pool["usd_per_million_output_tokens"]["value"] > 0


async def test_each_pool_is_first_as_often(tmp_path: Path) -> None:
    """At concurrency 1 prompts go to one pool and then to the other, each pool first in turn, in an order of the seed."""
    orders = []
    async with pools() as engines:
        for number, seed in enumerate((1, 1, 2)):
            out = tmp_path / f"o{number}"
            await compare(trace(tmp_path / "t", 10), *to(engines), "--seed", seed, "--repeats", 1, "--out", out)
            orders.append([(one.target, one.line) for one in sorted(read(out)[1], key=lambda one: one.started)])

    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        halves = [order[place : place + 2] for place in range(0, 20, 2)]
        assert all(first[1] == second[1] for first, second in halves)
        assert Counter(first[0] for first, _ in halves) == {"base@1": 5, "spec@1": 5}


async def test_levels_are_measured_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each concurrency has its own figures; while one pool is measured the other rests."""
    out = tmp_path / "out"
    async with pools() as engines:
        await compare(
            trace(tmp_path / "t", 16), *to(engines), "--concurrency", "1,4", "--repeats", 1, "--out", out, "--json"
        )
    found = json.loads(capsys.readouterr().out)
    calls = sorted(read(out)[1], key=lambda one: one.started)

    assert [level["concurrency"] for level in found["levels"]] == [1, 4]
    assert Counter(one.target for one in calls) == {"base@1": 16, "spec@1": 16, "base@4": 16, "spec@4": 16}
    for name, other in (("base@4", "spec@4"), ("spec@4", "base@4")):
        apart = [one for one in calls if one.target == other]
        for one in (each for each in calls if each.target == name):
            assert not any(
                each.started < one.started + one.e2e_seconds and one.started < each.started + each.e2e_seconds
                for each in apart
            )


async def test_a_budget_of_requests_is_kept_and_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a call more, pairs stay whole, and --resume sends what is missing and nothing twice."""
    path, out = trace(tmp_path / "t", 10), tmp_path / "out"
    async with pools() as engines:
        options = (path, *to(engines), "--repeats", 1, "--precision", 1e-9, "--out", out, "--json")
        assert await compare(*options, "--budget-requests", 9) == 0
        first = json.loads(capsys.readouterr().out)
        assert await compare(*options, "--budget-requests", 9) == 2
        assert "exists already; go on with --resume" in capsys.readouterr().err
        assert await compare(*options, "--resume") == 0
        second = json.loads(capsys.readouterr().out)
        assert await compare(*options, "--resume", "--temperature", 0.5) == 2
        assert "temperature: 0.0 there, 0.5 here" in capsys.readouterr().err
        counts = [prompts(asked(engines[name])) for name in NAMES]

    assert (first["ended"]["by"], first["levels"][0]["overall"]["pairs"]) == ("budget_requests", 4)
    assert (second["ended"]["by"], second["levels"][0]["overall"]["pairs"]) == ("repeats", 10)
    assert [sum(count.values()) for count in counts] == [12, 12]  # ten prompts, and a call to warm up each time


async def test_a_budget_of_seconds_ends_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget that is spent at once leaves what there is, which is nothing, and says so."""
    async with pools() as engines:
        assert await compare(trace(tmp_path / "t"), *to(engines), "--budget-seconds", 1e-9) == 1
    assert "nothing was measured" in capsys.readouterr().err


async def test_enough_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With intervals as wide as anything, one look at twenty pairs ends it; the rest of the file is not sent."""
    async with pools() as engines:
        path = trace(tmp_path / "t", 60)
        assert await compare(path, *to(engines), "--precision", 1e6, "--json") == 0
        sent = len(asked(engines["spec"])) - 1
    found = json.loads(capsys.readouterr().out)

    assert found["ended"]["by"] == "precision"
    assert 20 <= sent < 60
    assert found["levels"][0]["overall"]["pairs"] == sent


async def test_too_few_prompts_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No repetition makes an interval out of four prompts, so one pass is all, and the verdict is that it is not enough."""
    async with pools() as engines:
        assert await compare(trace(tmp_path / "t", 4), *to(engines), "--json") == 0
        assert len(asked(engines["base"])) == 5
    found = json.loads(capsys.readouterr().out)

    assert (found["ended"]["by"], found["verdict"]["answer"]) == ("prompts", "not_enough")
    assert "4 prompts" in found["verdict"]["text"]


async def test_outputs_that_differ_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first prompt whose answers differ is asked once more, and the place where they part is told."""
    models = reply({"data": [{"id": "demo"}]})

    def answering(text: str) -> tuple[Any, ...]:
        stream = sse(ROLE, delta(text[:4]), delta(text[4:], finish="stop"), USAGE, DONE)
        whole = reply({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})
        return [models], *([stream] * 6), [whole]

    async with scripted(*answering("The fox ran.")) as base, scripted(*answering("The fox sat.")) as spec:
        options = ("--baseline", base.url, "--speculative", spec.url, "--repeats", 1)
        assert await compare(trace(tmp_path / "t", 5), *options) == 0
    said = capsys.readouterr().out

    assert "0 of 5 pairs are equal" in said
    assert "from character 8 on: baseline 'The fox ran.', speculative 'The fox sat.'" in said


# --- what breaks on the way ---


async def test_an_endpoint_that_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured is kept and told, exit is 1, and --resume goes on with what is missing."""
    path, out = trace(tmp_path / "t", 30), tmp_path / "out"
    async with serve(FAST["base"]) as base, AsyncExitStack() as life:
        spec = await life.enter_async_context(serve(EngineSettings(kind="speculative", speed=40)))
        port = int(spec.url.rpartition(":")[2])
        options = (path, *to({"base": base, "spec": spec}), "--repeats", 1, "--precision", 1e-9, "--out", out, "--json")
        running = asyncio.create_task(compare(*options))
        await until(lambda: out.exists() and out.read_bytes().count(b"\n") > 8)
        await life.aclose()
        assert await running == 1
        told = capsys.readouterr()
        before = {one.key for one in read(out)[1] if one.ok}
        async with serve(EngineSettings(kind="speculative", speed=200, port=port)):
            asks = len(asked(base))
            assert await compare(*options, "--resume") == 0
            assert len(asked(base)) - asks == 1 + 30 - sum(key[0] == "base@1" for key in before)

    assert "spec stopped answering (" in told.err
    assert json.loads(told.out)["ended"]["by"] == "endpoint"
    assert before <= {one.key for one in read(out)[1] if one.ok}
    assert json.loads(capsys.readouterr().out)["levels"][0]["overall"]["pairs"] == 30


async def test_an_endpoint_that_is_not_there_or_refuses_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named before anything is measured, or after its first refusals; a wrong model is wrong use."""
    path = trace(tmp_path / "t", 30)
    async with (
        serve(FAST["base"]) as base,
        scripted([reply({"data": [{"id": "demo"}]})], [refusal("no such thing", 404)]) as bad,
    ):
        here = ("--baseline", base.url)
        assert await compare(path, *here, "--speculative", "http://127.0.0.1:9") == 1
        assert "start the endpoint, or name another with --speculative" in capsys.readouterr().err
        assert asked(base) == []
        assert await compare(path, *here, "--speculative", bad.url, "--repeats", 1) == 1
        assert "speculative refuses every call (http 404: no such thing)" in capsys.readouterr().err
        assert len(asked(base)) < 10
        assert await compare(path, *here, "--speculative", base.url, "--model", "none") == 2
        assert "model 'none' is not served by" in capsys.readouterr().err


async def test_a_full_disk(tmp_path: Path) -> None:
    """The file is named, what was measured is kept and told, and --resume goes on."""
    path, out = trace(tmp_path / "t", 20), tmp_path / "out"
    async with pools() as engines:
        options = (path, *to(engines), "--repeats", 1, "--precision", 1e-9, "--out", out, "--json")
        code, said, error = await process(*options, file_limit=6000)
        kept = len(read(out)[1])
        assert code == 1
        assert f"{out}: File too large; the {kept} samples measured before are kept" in error
        assert 4 < kept < 40
        assert json.loads(said)["ended"]["by"] == "interrupted"
        assert await compare(*options, "--resume") == 0

    assert len({one.key for one in read(out)[1]}) == 40


async def test_an_interrupt(tmp_path: Path) -> None:
    """Ctrl-C ends measuring, not the report: what there is is told, with exit 1."""
    path, out = trace(tmp_path / "t", 200), tmp_path / "out"
    async with pools(spec=EngineSettings(kind="speculative", speed=40)) as engines:
        options = (path, *to(engines), "--repeats", 1, "--precision", 1e-9, "--out", out, "--json")
        code, said, error = await process(*options, stop=lambda: out.exists() and out.read_bytes().count(b"\n") > 12)
    found = json.loads(said)

    assert code == 1
    assert "draftlane compare: interrupted" in error
    assert found["ended"]["by"] == "interrupted"
    assert found["levels"][0]["overall"]["pairs"] >= 5


async def process(
    *arguments: Any, file_limit: int | None = None, stop: Callable[[], bool] | None = None
) -> tuple[int, str, str]:
    """Run the command in a process of its own, interrupted as soon as `stop` says so."""

    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "gateway", "compare", *map(str, arguments)]
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe, preexec_fn=limit)
    if stop is not None:
        await until(stop, 30)
        os.kill(running.pid, signal.SIGINT)
    said, error = await running.communicate()
    assert running.returncode is not None
    return running.returncode, said.decode(), error.decode()


# --- the command ---


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name FILE, --baseline and --speculative to measure"),
        (("t",), "name FILE, --baseline and --speculative to measure"),
        (("t", "--from", "a"), "--from compares files, and measures nothing"),
        (("--from", "a", "--from", "b", "--from", "c"), "one file of --out, or two of other tools"),
        (("--from", "a", "--from", "b"), "a: No such file"),
        (("--from", "a", "--resume"), "name it with --out"),
        (("--from", "a", "--write", "b.json"), "--write b.json: name a format before the file: vllm"),
        (
            ("t", "--baseline", "http://u:p@h", "--speculative", "http://h"),
            "--baseline: expected an address without a name",
        ),
        (("t", "--baseline", "here", "--speculative", "http://127.0.0.1:9"), "--baseline here: expected an address"),
        (
            ("t", "--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9", "--key-env", "NONE"),
            "NONE is not set",
        ),
    ],
)
def test_wrong_use_is_told(
    words: Sequence[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be meant ends with 2 and says what to do."""
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "t")

    assert main(["compare", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--names", "one"),
        ("--names", "a,a"),
        ("--names", "a@1,b"),
        ("--concurrency", "1,x"),
        ("--temperature", "-1"),
        ("--precision", "0"),
    ],
)
def test_options_are_checked(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that an option does not take is named with the option."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", "t", option, value])

    assert ended.value.code == 2
    assert option in capsys.readouterr().err


def test_a_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file, its line, and what to do are told before anything is sent."""
    path = trace(tmp_path / "t", 3)
    path.write_text(path.read_text() + '{"prompt": \n')
    here = ("--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9")

    assert main(["compare", str(path), *here]) == 2
    assert f"{path}: line 4: no JSON" in capsys.readouterr().err


async def test_files_of_all_kinds_come_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Page, picture and other tools' files are written, and a comparison of what was written says the same."""
    out = tmp_path / "out"
    with Results(
        out, {"command": "compare", "names": list(NAMES), "temperature": 0.0, "models": ["demo", "demo"]}
    ) as kept:
        for sample in calls({"json": 0.4, "chat": 1.5}, prompts=8):
            kept.append(sample)
    files = ("--html", tmp_path / "r.html", "--png", tmp_path / "r.png", "--write", f"vllm:{tmp_path / 'v.json'}")
    assert await compare("--from", out, *files, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert (
        await compare(
            "--from", tmp_path / "v.base.json", "--from", tmp_path / "v.spec.json", "--names", "base,spec", "--json"
        )
        == 0
    )
    again = json.loads(capsys.readouterr().out)
    text = (tmp_path / "r.html").read_text()

    assert first["verdict"] == again["verdict"]
    assert again["pairing"] == "calls are paired by the files' own names of prompts"
    assert "Adopt spec for json" in text
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=\"(?!#)", text) == []
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert await compare("--from", out, "--price-baseline", 10, "--price-speculative", 20, "--json") == 0
    cost = json.loads(capsys.readouterr().out)["levels"][0]["overall"]["ratios"]
    assert cost["cost"]["value"] == pytest.approx(2 * cost["e2e"]["value"])
    assert await compare("--from", out, "--html", tmp_path / "none" / "r.html") == 1
    assert "No such file" in capsys.readouterr().err


def test_a_full_disk_leaves_files_as_they_were(tmp_path: Path) -> None:
    """What cannot be written whole is named, each file for itself, and neither takes an older one with it nor leaves a part."""
    out = kept_in(tmp_path / "out")
    page, picture, calls_of = (tmp_path / name for name in ("r.html", "r.png", "v.base.json"))
    for path in (page, picture, calls_of):
        path.write_text("older")
    files = ("--html", page, "--png", picture, "--write", f"vllm:{tmp_path / 'v.json'}")
    code, said, error = asyncio.run(process("--from", out, *files, file_limit=1500))

    assert code == 1
    assert "Adopt spec" in said
    for path in (page, picture, calls_of):
        assert str(path) in error
        assert path.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r.html", "r.png", "v.base.json"]


def test_a_picture_goes_through_a_link(tmp_path: Path) -> None:
    """Links are written through, be it to another file or, as /dev/stdout, to a pipe."""
    out, link = kept_in(tmp_path / "out"), tmp_path / "link.png"
    link.symlink_to(tmp_path / "real.png")
    assert main(["compare", "--from", str(out), "--png", str(link)]) == 0
    assert link.is_symlink()
    assert link.read_bytes().startswith(b"\x89PNG")
    line = [sys.executable, "-m", "gateway", "compare", "--from", str(out), "--png", "/dev/stdout"]
    piped = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    assert piped.startswith(b"\x89PNG")
    assert b"Adopt spec" in piped


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_a_full_disk_under_a_page_is_told_with_its_name(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither `compare` nor `report` leaves it at the system's own words; what compare found is printed all the same."""
    out, full = kept_in(tmp_path / "out"), Path("/dev/full")
    assert main(["compare", "--from", str(out), option, str(full)]) == 1
    said = capsys.readouterr()
    assert "No space left on device: '/dev/full'" in said.err
    assert "Adopt spec" in said.out
    files = {"--html": tmp_path / "r.html", "--png": tmp_path / "r.png", option: full}
    assert main(["report", str(out), "--out", str(files["--html"]), "--png", str(files["--png"])]) == 1
    assert "No space left on device: '/dev/full'" in capsys.readouterr().err


def test_reports_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`draftlane report` shows compare's JSON and a sweep's, whatever figures that lacks; what is neither is told."""
    result, sweep, page = tmp_path / "c.json", tmp_path / "s.json", tmp_path / "r.html"
    assert main(["compare", "--from", str(kept_in(tmp_path / "out")), "--json"]) == 0
    result.write_text(capsys.readouterr().out)
    rows = [
        {"window": 0, "category": "json", "tpot_seconds": 0.045},
        {"window": 5, "category": "json", "n": 9, "goodput_tokens_per_s": 90.0, "interval": [80, 99]},
        {
            "window": 7,
            "category": "json",
            "goodput_tokens_per_s": {"value": 95.0, "interval": None},
            "acceptance_length": 4.1,
        },
        {"window": 7},
    ]
    best = {"json": {"window": 7, "draft": None, "flat_with": ["5"], "by": "goodput"}, "": 7}
    sweep.write_text(json.dumps({"kind": "sweep", "windows": rows, "best": best, "warnings": ["<few>"]}))
    options = ("--out", str(page), "--png", str(tmp_path / "r.png"))

    assert main(["report", str(result), *options]) == 0
    assert "Adopt spec" in capsys.readouterr().out
    assert "Adopt spec" in page.read_text()
    assert main(["report", str(sweep), *options]) == 0
    assert "Best windows: all together 7; json 7 (flat: 5 may be as good)." in capsys.readouterr().out
    assert "90.0 (80.0–99.0)" in page.read_text()
    assert "&lt;few&gt;" in page.read_text()
    assert main(["report", str(tmp_path / "out"), *options]) == 0
    sweep.write_text(json.dumps({"kind": "sweep", "windows": rows, "best": {"": 0}}))
    assert main(["report", str(sweep), *options]) == 0
    assert "Best windows: all together no speculation." in capsys.readouterr().out
    with Results(tmp_path / "calls", {"command": "sweep"}):
        assert main(["report", str(tmp_path / "calls"), *options]) == 2
    assert "calls of draftlane sweep" in capsys.readouterr().err
    for wrong in ('{"kind": "compare"}', '{"kind": "sweep"}', "nothing"):
        sweep.write_text(wrong)
        assert main(["report", str(sweep), *options]) == 2
        assert str(sweep) in capsys.readouterr().err


@pytest.mark.parametrize(
    "samples",
    [
        [call("base@1", 1, 0.04)],
        [call("base@1", 1, 0.04, error="broken: gone"), call("spec@4", 2, 0.1)],
        calls({"": 0.5}, prompts=1),
        calls({f"c{n}": 0.5 for n in range(40)}, prompts=1),
    ],
    ids=["one side", "no pair", "one prompt", "many categories"],
)
def test_little_has_a_page_too(samples: list[Sample], tmp_path: Path) -> None:
    """Whatever is missing, text, page and picture say what there is, and of what there is too little."""
    found = compared(samples)

    assert found.verdict.answer == ("adopt" if len(samples) > 2 * 5 else "not_enough")
    assert found.verdict.text in as_text(found)
    assert "Not enough samples" in compare_page.page(found) or found.verdict.answer == "adopt"
    assert any("too few prompts for an interval" in warning for warning in found.warnings)
    compare_page.picture(found, tmp_path / "p.png")
    empty = sweep_of({"kind": "sweep", "windows": []})
    assert "No window was measured" in sweep_page.page(empty)
    sweep_page.picture(empty, tmp_path / "p.png")


async def test_two_replays_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results files of replay are pairs by the lines of their trace; of other traces, or alone, they are not."""
    path, other = trace(tmp_path / "t", 10), trace(tmp_path / "u", 8)
    async with pools() as engines:
        for name, source, engine in (("b", path, "base"), ("s", path, "spec"), ("o", other, "spec")):
            words = ["replay", str(source), "--to", engines[engine].url, "--out", str(tmp_path / name)]
            assert await asyncio.to_thread(main, words) == 0
    capsys.readouterr()
    for second, pairing in (("s", "calls are paired by the files' own names of prompts"), ("o", "")):
        assert await compare("--from", tmp_path / "b", "--from", tmp_path / second, "--json") == 0
        assert json.loads(capsys.readouterr().out)["pairing"] == pairing
    assert await compare("--from", tmp_path / "b") == 2
    assert "such files come in twos" in capsys.readouterr().err


def kept_in(path: Path) -> Path:
    """Return a results file with a gain for all."""
    with Results(path, {"command": "compare", "names": list(NAMES)}) as kept:
        for sample in calls({"": 0.4}, prompts=8):
            kept.append(sample)
    return path
