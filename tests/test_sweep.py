"""Windows measured on running engines: the curve, the best one, and what becomes of a sweep when things go wrong."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engines import engine

from gateway.__main__ import main
from gateway.engine import Running
from gateway.measure.load.pacing import Pace
from gateway.measure.load.sample import Sample, read
from gateway.measure.windows import candidate, online
from gateway.measure.windows.candidate import NOTHING, Candidate
from gateway.measure.windows.curve import Curve, Load, Measured, curve, step_models
from gateway.measure.windows.progress import Progress
from gateway.measure.windows.session import Plan
from gateway.measure.windows.starting import StartError, by_command, by_lab

COUNTING, TALE = "Count from {0} to {1}, one number per line.", "Tell a short story about a river and {0} boats."


def requests(path: Path, count: int = 12, **fields: Any) -> Path:
    """Write a trace of two categories."""
    lines = [
        {
            "prompt": (TALE if n % 2 else COUNTING).format(n, n + 60),
            "category": "tale" if n % 2 else "count",
            "max_tokens": 40,
            **fields,
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def run(*words: object) -> int:
    """Run the command where no event loop runs yet."""
    return await asyncio.to_thread(main, ["sweep", *map(str, words)])


def rows(found: dict[str, Any], category: str = "") -> dict[str, dict[str, Any]]:
    """Return a category's rows by window, "small:7" where drafts have names."""
    return {
        f"{row['draft']}:{row['window']}" if row["draft"] else str(row["window"]): row
        for row in found["windows"]
        if row["category"] == category
    }


async def test_windows_are_measured_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same prompts on every window: acceptance grows with it, baseline reads 1, and each category has a best one."""
    trace, out = requests(tmp_path / "t.jsonl"), tmp_path / "out.jsonl"
    spec = {"kind": "speculative", "per_request_metrics": True}
    async with engine(window=2, **spec) as (two, _), engine(window=8, **spec) as (eight, _), engine() as (plain, _):
        options = (trace, "--endpoint", f"2={two.url}", "--endpoint", f"8={eight.url}", "--baseline", plain.url)
        assert await run(*options, "--concurrency", 2, "--out", out, "--json") == 0
        calls = [running.record.total for running in (two, eight, plain)]
        found = json.loads(capsys.readouterr().out)
        assert await run(*options, "--concurrency", 2, "--out", out, "--resume", "--json") == 0
        again = json.loads(capsys.readouterr().out)
        assert [running.record.total for running in (two, eight, plain)] == calls

    assert again == found
    table = rows(found)
    assert list(table) == ["0", "2", "8"]
    assert table["0"]["acceptance_length"]["value"] == pytest.approx(1.0)
    two_, eight_ = (table[window]["acceptance_length"]["value"] for window in ("2", "8"))
    assert 1.0 < two_ < eight_ <= 9.0
    assert two_ <= 3.0 < rows(found, "count")["8"]["acceptance_length"]["value"]
    assert {row["n"] for row in table.values()} == {12}
    assert {row["n"] for row in rows(found, "tale").values()} == {6}
    assert set(found["best"]) == {"", "count", "tale"}
    assert found["load"] == "2 calls at once"
    assert any("small sample" in warning for warning in found["warnings"])
    samples = read(out)[1]
    assert {sample.target for sample in samples} == {"baseline", "window-2", "window-8"}
    assert len({(sample.line, sample.output_sha256) for sample in samples}) == 12  # temperature 0: all answer alike


async def test_drafts_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows of several drafts are compared together, and a better draft accepts more."""
    trace = requests(tmp_path / "t.jsonl", 6)
    async with (
        engine(kind="speculative", window=5) as (good, _),
        engine(kind="speculative", window=5, draft_quality=0.1) as (bad, _),
    ):
        assert await run(trace, "--endpoint", f"large:5={good.url}", "--endpoint", f"small:5={bad.url}", "--json") == 0
    table = rows(json.loads(capsys.readouterr().out))

    assert table["large:5"]["acceptance_length"]["value"] > table["small:5"]["acceptance_length"]["value"]


async def test_a_rate_and_a_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate goodput is told per second, and calls that break their promise do not count towards it."""
    trace = requests(tmp_path / "t.jsonl", 6)
    async with engine(kind="speculative") as (fast, _), engine() as (plain, _):
        options = (trace, "--endpoint", f"7={fast.url}", "--baseline", plain.url, "--rate", 200, "--json")
        assert await run(*options) == 0
        found = json.loads(capsys.readouterr().out)
        assert await run(*options, "--ttft-ms", 0.000001) == 1
        strict = json.loads(capsys.readouterr().out)

    assert found["load"] == "200 calls per second"
    tokens = 200 * 40
    assert rows(found)["7"]["goodput_tokens_per_s"]["value"] == pytest.approx(tokens, rel=0.3)
    assert rows(strict)["7"]["goodput_tokens_per_s"]["value"] == 0
    assert strict["best"] == {}


class Ending:
    """An engine that resets every connection once it has answered so many calls."""

    def __init__(self, running: Running, calls: int) -> None:
        self._running, self._calls = running, calls

    async def __call__(self) -> None:
        """Wait for the calls, then break."""
        while self._running.record.total < self._calls:
            await asyncio.sleep(0.001)
        self._running.fault("reset")


async def test_an_engine_that_dies_takes_nothing_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that ends half-way is given up, the others go on, what it gave is kept, and a resumed sweep completes it."""
    trace, out = requests(tmp_path / "t.jsonl", 24), tmp_path / "out.jsonl"
    async with engine(kind="speculative", window=3) as (dying, _), engine(kind="speculative") as (well, _):
        options = (trace, "--endpoint", f"3={dying.url}", "--endpoint", f"7={well.url}", "--out", out, "--json")
        end = asyncio.create_task(Ending(dying, 10)())
        assert await run(*options) == 1
        await end
        found = json.loads(capsys.readouterr().out)
        kept = [sample for sample in read(out)[1] if sample.target == "window-3" and sample.ok]
        dying.faults.clear()
        before = well.record.total
        assert await run(*options, "--resume") == 0
        whole = json.loads(capsys.readouterr().out)
        assert well.record.total == before

    assert "3 was given up" in found["ended"]
    assert 0 < len(kept) < 24
    assert any("3 answered too few of the prompts" in warning for warning in found["warnings"])
    assert rows(found)["7"]["n"] == 24
    assert {row["n"] for row in rows(whole).values()} == {24}
    assert whole["ended"] is None


async def test_refusals_count_against_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that an engine answers with an error has no goodput, and is told by its line."""
    trace = requests(tmp_path / "t.jsonl", 6)
    async with engine(kind="speculative") as (fast, _), engine() as (plain, _):
        plain.fault("500", count=4)  # the first warms up
        options = (trace, "--endpoint", f"7={fast.url}", "--baseline", plain.url, "--json")
        assert await run(*options) == 0
    found = json.loads(capsys.readouterr().out)

    assert rows(found)["0"]["met_share"] == 0.5
    assert any("3 of 12 calls failed, the first: line" in warning for warning in found["warnings"])


async def test_what_is_not_there_is_told_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An endpoint that does not answer, a model that is not served, and line 1731 of a trace that is no JSON."""
    trace = requests(tmp_path / "t.jsonl", 3)
    async with engine() as (plain, _):
        there = (trace, "--endpoint", f"7={plain.url}", "--endpoint", f"5={plain.url}")
        assert await run(trace, "--endpoint", f"7={plain.url}", "--endpoint", "5=http://127.0.0.1:9") == 1
        told = capsys.readouterr().err
        assert "http://127.0.0.1:9: " in told
        assert "start the endpoint, or name another with --endpoint" in told
        assert await run(*there, "--model", "other") == 2
        assert "model 'other' is not served" in capsys.readouterr().err
        text = trace.read_text().splitlines()[0] + "\n"
        trace.write_text(text * 1730 + "{\n")
        assert await run(*there) == 2
        assert "line 1731: no JSON" in capsys.readouterr().err
        assert await run(*there, "--skip-bad", "--limit", 2) == 0
        trace.write_text(text + "{\n")
        assert await run(*there, "--skip-bad") == 0
        assert "passed over: line 2" in capsys.readouterr().err
        trace.write_text("\n")
        assert await run(*there) == 2
        assert "no requests in it" in capsys.readouterr().err


def small_files() -> None:
    """Let this process write files of 8 KB at most, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


async def test_a_full_disk_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When a sample cannot be kept the sweep ends, tells what it has, leaves a whole file, and goes on with --resume."""
    trace, out = requests(tmp_path / "t.jsonl", 16), tmp_path / "out.jsonl"
    async with engine(kind="speculative") as (fast, _), engine() as (plain, _):
        options = [trace, "--endpoint", f"7={fast.url}", "--baseline", plain.url, "--out", out, "--json"]
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "gateway", "sweep", *map(str, options)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=small_files,
        )
        found = json.loads(done.stdout)
        kept = len(read(out)[1])
        assert await run(*options, "--resume") == 0
        whole = json.loads(capsys.readouterr().out)
        assert await run(*options[:5], "--out", "/dev/full") == 1
        assert "/dev/full: No space left" in capsys.readouterr().err
        assert await run(*options) == 2
        assert "exists already" in capsys.readouterr().err

    assert done.returncode == 1
    assert f"{out}: File too large; the {kept} samples measured before are kept" in found["ended"]
    assert 0 < kept < 32
    assert {row["n"] for row in rows(whole).values()} == {16}


ENGINE = f"{sys.executable} -m gateway engine --port {{port}} --speed 300"
FAST = ENGINE + " --kind speculative --window {window}"


async def test_engines_are_started_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command is run for each window and ended; one that does not come up is told with its log and the others go on."""
    trace = requests(tmp_path / "t.jsonl", 6)
    refusing = f"sh -c 'test {{window}} != 4 && exec {FAST} || echo no window of four; exit 3'"
    assert await run(trace, "--windows", "2,6", "--start", FAST, "--start-baseline", ENGINE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert await run(trace, "--windows", "4,6", "--start", refusing, "--json") == 1
    partial = json.loads(capsys.readouterr().out)

    assert list(rows(found)) == ["0", "2", "6"]
    assert any("one after another" in warning for warning in found["warnings"])
    assert list(rows(partial)) == ["6"]
    assert "no window of four" in partial["ended"]


def test_starting_tells_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is none, or is not there, or never answers, or ends, with its last words; a lab that was not built."""
    with pytest.raises(StartError, match="--start"):
        by_command("engine '")
    for command, words in (("/no/such/engine", "No such file"), ("sleep 60", "no answer from")):
        with pytest.raises(StartError, match=words), by_command(command, seconds=0.01)(Candidate(5)):
            pass
    for script, words in (("exit 3", "ended with 3 and said nothing$"), ("echo no room; exit 3", r"3:\n\s*no room$")):
        with pytest.raises(StartError, match=words), by_command(f"sh -c '{script}'", seconds=60)(Candidate(5)):
            pass
    monkeypatch.setenv("DRAFTLANE_LAB", str(tmp_path))
    for one in (NOTHING, Candidate(5), Candidate(5, "draft")):
        with pytest.raises(StartError, match="there is no lab"), by_lab()(one):
            pass


def call(
    window: int, prompt: int, *, seconds: float, tokens: float = 100, met: bool = True, steps: float = 50
) -> Measured:
    """Return one call."""
    return Measured(
        candidate=Candidate(window),
        prompt=prompt,
        category="c" if prompt % 2 else "",
        tokens=tokens,
        met=met,
        seconds=seconds,
        decode_seconds=seconds,
        decode_tokens=tokens - 1,
        steps=steps,
    )


def drawn(times: dict[int, float], *, load: Load | None = None, prompts: Sequence[int] = range(40)) -> Curve:
    """Return the curve of windows whose calls take so long, each prompt a little more or less."""
    calls = [call(window, n, seconds=took * (1 + n % 7 / 10)) for window, took in times.items() for n in prompts]
    return curve(calls, [Candidate(window) for window in times], load or Load(at_once=4))


def test_the_best_window_has_the_most_goodput() -> None:
    """Four calls at once: four times the tokens over the seconds; pairs make a difference of 2 % sure."""
    found = drawn({0: 2.0, 3: 1.02, 5: 1.0, 7: 1.5})
    (row,) = (row for row in found.rows if row.window == 5 and row.category == "")

    assert found.best[""].window == 5
    assert found.best[""].flat_with == ()
    assert row.goodput_tokens_per_s is not None
    assert row.goodput_tokens_per_s.value == pytest.approx(4 * 100 / 1.2875)
    assert found.best[""].gain_over_baseline is not None
    assert found.best[""].gain_over_baseline.value == pytest.approx(2.0)
    assert set(found.best) == {"", "c", "uncategorised"}


def test_a_flat_optimum_is_told() -> None:
    """Windows that are better on some prompts and worse on others cannot be told apart."""
    calls = [call(w, n, seconds=1.0 + (n % 3 == w % 3)) for w in (4, 5) for n in range(30)]
    found = curve(calls, [Candidate(4), Candidate(5)], Load())
    best = found.best[""]

    assert best.flat_with == (str(9 - best.window),)
    assert any("the optimum is flat" in warning for warning in found.warnings)


def test_the_last_window_tried_and_few_prompts_are_told() -> None:
    """A best window at the edge, less than five prompts, less than twenty, and none in common."""
    assert any("larger than 7 may be better" in each for each in drawn({5: 1.0, 7: 0.5}).warnings)
    assert any("smaller than 5 may be better" in each for each in drawn({5: 0.5, 7: 1.0}).warnings)
    assert any("too few for intervals" in each for each in drawn({5: 0.5, 7: 1.0}, prompts=range(3)).warnings)
    assert any("a small sample" in each for each in drawn({5: 0.5, 7: 1.0}, prompts=range(19)).warnings)
    apart = [call(5, 1, seconds=1), call(7, 2, seconds=1)]
    assert (
        "all together: no prompt was answered by all windows"
        in curve(apart, [Candidate(5), Candidate(7)], Load()).warnings
    )
    assert curve([], [Candidate(5)], Load()).rows == ()


def test_at_a_rate_that_all_carry_time_per_token_decides() -> None:
    """Goodput is the callers' own there; without it a window that breaks promises loses by goodput all the same."""
    found = drawn({3: 1.0, 5: 0.8, 7: 1.2}, load=Load(at_once=None, rate=2.0))
    assert (found.best[""].window, found.best[""].by) == (5, "tpot")
    calls = [call(w, n, seconds=w / 10, met=w != 3 or n < 5) for w in (3, 5) for n in range(30)]
    strict = curve(calls, [Candidate(3), Candidate(5)], Load(at_once=None, rate=2.0))
    assert (strict.best[""].window, strict.best[""].by) == (5, "goodput")


def test_step_times_are_fitted() -> None:
    """Base and slope of the step times of all prompts, for drafts with two windows or more."""
    found = step_models(drawn({0: 1.0, 2: 2.0, 4: 3.0}).rows)
    mean = 1.2875 / 50

    assert found[""].base_seconds == pytest.approx(mean)
    assert found[""].per_token_seconds == pytest.approx(0.5 * mean)
    assert step_models(drawn({0: 1.0, 2: 2.0}).rows) == {}
    assert step_models(drawn({2: 3.0, 4: 2.0}).rows) == {}  # drafting does not cost less than nothing


def sample(**fields: Any) -> Sample:
    """Return a sample of eleven tokens in two seconds, half of it the first's."""
    plain = {"line": 1, "id": "a", "target": "window-7", "started": 0.0, "status": 200, "error": None}
    times = {"ttft_seconds": 1.0, "e2e_seconds": 2.0, "completion_tokens": 11}
    return Sample(**{**plain, **times, **fields})


def test_samples_are_counted_alike_from_either_source() -> None:
    """The engine's metrics count the prefill's token as a step, events do not: the same call gives the same steps."""
    events = online.measured(sample(acceptance_length=5.0, acceptance_source="events"), Candidate(7), online.Promise())
    told = online.measured(sample(acceptance_length=11 / 3, acceptance_source="engine"), Candidate(7), online.Promise())

    assert events is not None
    assert told is not None
    assert events.steps == pytest.approx(2.0)
    assert told.steps == pytest.approx(2.0)
    assert (events.decode_seconds, events.decode_tokens, events.tokens) == (1.0, 10.0, 11.0)


@pytest.mark.parametrize(
    ("fields", "promise", "met"),
    [
        ({}, online.Promise(), True),
        ({}, online.Promise(ttft_seconds=1.0, tpot_seconds=0.1), True),
        ({}, online.Promise(ttft_seconds=0.9), False),
        ({}, online.Promise(tpot_seconds=0.09), False),
        ({"ttft_seconds": None}, online.Promise(ttft_seconds=9.0), False),
        ({"completion_tokens": 1}, online.Promise(tpot_seconds=0.01), True),
        ({"error": "http 500: no", "status": 500}, online.Promise(), False),
    ],
)
def test_promises(fields: dict[str, Any], promise: online.Promise, *, met: bool) -> None:
    """A call counts when it was whole and as quick as was asked."""
    assert promise.met(sample(**fields)) is met


def test_calls_without_an_answer_count_for_nothing() -> None:
    """Nobody answered: the same as not having asked; a refusal counts as a call without tokens."""
    assert online.measured(sample(error="connect: refused", status=0), Candidate(7), online.Promise()) is None
    refused = online.measured(sample(error="http 400: no", status=400), Candidate(7), online.Promise())
    assert refused is not None
    assert (refused.tokens, refused.met, refused.decode_seconds) == (0.0, False, None)


def test_windows_and_endpoints_are_read() -> None:
    """Ranges, lists, both; a draft before a window may hold colons and slashes."""
    assert candidate.windows("5-7,3") == (3, 5, 6, 7)
    assert candidate.endpoint("7=http://h:1") == (Candidate(7), "http://h:1")
    assert candidate.endpoint("org/small:v2:7=https://h") == (Candidate(7, "org/small:v2"), "https://h")
    assert [one.label for one in candidate.all_of((3, 5), ("a", "b"))] == [
        *("a:window-3", "a:window-5", "b:window-3", "b:window-5")
    ]
    assert (str(NOTHING), NOTHING.label) == ("none", "baseline")


def test_blocks_hold_every_prompt_once(tmp_path: Path) -> None:
    """All prompts, in an order that follows from seed and repeat, in blocks that suit the load."""
    from gateway.measure.load.trace import read as trace

    prompts = list(trace(requests(tmp_path / "t.jsonl", 50)))
    plan = Plan(requests=prompts, load=Load(at_once=4), seed=1)
    blocks = plan.blocks(0)

    assert sorted(one.line for block in blocks for one in block) == list(range(1, 51))
    assert {len(block) for block in blocks} == {16, 2}
    assert plan.blocks(0) == blocks
    assert plan.blocks(1) != blocks
    assert plan.pace(0) == Pace(kind="concurrency", at_once=4)
    open_ = Plan(requests=prompts, load=Load(at_once=None, rate=1.0), seed=1)
    assert [len(block) for block in open_.blocks(0)] == [20, 20, 10]
    assert open_.pace(2) == Pace(kind="rate", at_once=512, rate=1.0, seed=3)


class Stream:
    """A stream that is a terminal or not, and may break."""

    def __init__(self, *, terminal: bool, broken: bool = False) -> None:
        self.written: list[str] = []
        self._terminal, self._broken = terminal, broken

    def isatty(self) -> bool:
        """Whether somebody looks."""
        return self._terminal

    def write(self, text: str) -> int:
        """Take text."""
        if self._broken:
            raise OSError("gone")
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


def test_progress_is_told_now_and_then() -> None:
    """A line every ten seconds, or drawn again on a terminal; a stream that is gone ends no sweep."""
    now = [0.0]
    plain, terminal = Stream(terminal=False), Stream(terminal=True)
    for stream in (plain, terminal, Stream(terminal=True, broken=True)):
        now[0] = 0.0
        progress = Progress(stream, 20, clock=lambda: now[0])  # type: ignore[arg-type]
        for _ in range(4):
            now[0] += 5.0
            progress.saw(sample())
        progress.note("starting")
        progress.done()

    told = [f"{ended}/20  0.2/s  ETA {left}  0 errors  window-7\n" for ended, left in ((2, "1:30"), (4, "1:20"))]
    assert plain.written == [*told, "starting\n"]
    assert len(terminal.written) == 6


def test_a_sweep_that_is_ended_stops_what_it_started(tmp_path: Path) -> None:
    """SIGTERM in the middle: its engine ends with it, and what was measured is kept and told."""
    trace, out = requests(tmp_path / "t.jsonl", 40), tmp_path / "out.jsonl"
    slow = FAST.replace("--speed 300", "--speed 5")
    words = ["sweep", str(trace), "--windows", "2,6", "--start", slow, "--out", str(out), "--json"]
    command = [sys.executable, "-m", "gateway", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not out.exists() or out.read_bytes().count(b"\n") < 4:
            time.sleep(0.05)
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.terminate()
        found = json.loads(process.communicate()[0])

    assert process.returncode == 1
    assert found["ended"] == "interrupted"
    assert rows(found)["2"]["n"] >= 3
    assert not Path(f"/proc/{child}").exists()
