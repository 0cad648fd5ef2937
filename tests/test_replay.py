"""`draftlane replay`: every line is sent once, measured, kept and told, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fakes import DONE, RESET, ROLE, SILENCE, USAGE, delta, refusal, reply, scripted, sse
from harness import ADMIN_KEY, KEY, config_for, key_digest, serving, until

from gateway.__main__ import main
from gateway.engine import EngineSettings, Running, serve
from gateway.measure.load import summary
from gateway.measure.load.busy import Busy
from gateway.measure.load.control import WrongModel, check_models
from gateway.measure.load.pacing import Pace
from gateway.measure.load.progress import Progress, clock_time
from gateway.measure.load.run import Run
from gateway.measure.load.sample import Sample, read
from gateway.measure.load.sending import Endpoint, measure, open_client
from gateway.measure.load.trace import Request

ROOT = Path(__file__).parent.parent
FAST = EngineSettings(kind="speculative", speed=200, slots=8)
PROMPTS = {"sequence": "Count from 1 to 100.", "story": "Tell me a story about a fox."}


def trace(path: Path, count: int = 6, **fields: Any) -> Path:
    """Write a trace of two categories, half a second apart."""
    names = list(PROMPTS)
    path.write_text(
        "".join(
            json.dumps(
                {
                    "prompt": PROMPTS[names[number % 2]],
                    "category": names[number % 2],
                    "max_tokens": 20,
                    "temperature": 0,
                    "timestamp": 1793527200 + number / 2,
                    **fields,
                }
            )
            + "\n"
            for number in range(count)
        )
    )
    return path


async def replayed(*arguments: Any) -> int:
    """Run the command in a thread, so that engines of this test's loop can answer it."""
    return await asyncio.to_thread(main, ["replay", *map(str, arguments)])


@asynccontextmanager
async def process(*arguments: Any, file_limit: int | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a process of its own, which is dead when the block ends."""

    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "gateway", "replay", *map(str, arguments)]
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe, preexec_fn=limit)
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def bodies(engine: Running) -> list[dict[str, Any]]:
    """Return the bodies that an engine received, in order."""
    return [entry.json() for entry in engine.record if entry.body]


def kept(path: Path) -> int:
    """Return how many samples a file holds."""
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


# --- what is sent, kept and told ---


async def test_every_call_is_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sample per line, a row per category, and figures that follow from the samples."""
    out = tmp_path / "results.jsonl"
    async with serve(FAST) as engine:
        price = ("--price-per-hour", 36, "--slots", 4)
        code = await replayed(
            trace(tmp_path / "t"), "--to", engine.url, "--concurrency", 3, "--out", out, "--json", *price
        )
    told = json.loads(capsys.readouterr().out)
    header, samples = read(out)

    assert (code, told["sent"], told["stopped"], told["bad_lines"]) == (0, 6, None, [])
    assert sorted(one.line for one in samples) == [1, 2, 3, 4, 5, 6]
    assert {one.category for one in samples} == set(told["categories"]) == set(PROMPTS)
    assert told["all"]["n"] == 6
    assert told["all"]["output_tokens"] == 120
    assert told["all"]["cost_usd"] == pytest.approx(sum(36 / 4 / 3600 * one.e2e_seconds for one in samples))
    assert told["all"]["usd_per_million_output_tokens"] == pytest.approx(told["all"]["cost_usd"] / 120 * 1e6)
    assert told["categories"]["sequence"]["acceptance_length"] > told["categories"]["story"]["acceptance_length"] >= 1
    assert (told["pools"], told["lateness"]) == ({}, None)
    assert header.settings["pace"] == "3 at once"


async def test_the_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence, a row for all and for each category, aligned; figures that nothing tells are dashes."""
    async with serve(FAST) as engine:
        assert await replayed(trace(tmp_path / "t"), "--to", engine.url, "--target-name", "mine", "--json-mode") == 0
    head, empty, *rows = capsys.readouterr().out.splitlines()

    assert head.startswith("6 calls to mine in ")
    assert empty == ""
    assert [row.split("  ")[0] for row in rows[1:]] == ["all", "category sequence", "category story"]
    assert rows[0].split()[:3] == ["n", "errors", "TTFT"]
    assert rows[1].split()[:5] == ["all", "6", "0", "–", "–"]
    assert len({row.index("0", 24) for row in rows[1:]}) == 1


async def test_through_a_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools are told apart, tenants use their own keys, the route is asked for, and costs are the gateway's own."""
    monkeypatch.setenv("HERS", "sk-hers")
    monkeypatch.setenv("OTHERS", KEY)
    monkeypatch.setenv("ADMIN", ADMIN_KEY)
    tenants = [{"name": name, "key_sha256": [key_digest(key)]} for name, key in (("a", "sk-hers"), ("b", KEY))]
    lines = trace(tmp_path / "t", 2, tenant="hers").read_text() + trace(tmp_path / "u", 2).read_text()
    (tmp_path / "t").write_text(lines)
    async with serve(FAST) as spec, serve(EngineSettings(speed=200)) as base:
        config = config_for({"spec": [spec.url], "base": [base.url]}, tenant=tenants)
        async with serving(config) as gateway:
            common = ("--to", gateway.url + "/v1", "--model", "demo", "--key-env", "OTHERS")
            common += ("--tenant-key", "hers=HERS", "--admin-key-env", "ADMIN", "--json")
            for route in ("speculative", "baseline"):
                assert await replayed(tmp_path / "t", *common, "--out", tmp_path / route, "--route", route) == 0
            finished = {call.request_id: call for call in gateway.finished}
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())

    assert (list(first["pools"]), list(second["pools"])) == (["spec"], ["base"])
    assert [call.tenant for call in finished.values()] == ["a", "a", "b", "b"] * 2
    for sample in read(tmp_path / "speculative")[1]:
        assert sample.request_id is not None
        assert sample.cost_usd == finished[sample.request_id].cost_usd > 0
    assert "receipts" not in str(first["warnings"])


async def test_receipts_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin key that is not accepted costs no sample: it is told, and the price given stands in."""
    monkeypatch.setenv("KEY", KEY)
    monkeypatch.setenv("ADMIN", "sk-wrong")
    async with serve(FAST) as base, serving(config_for({"base": [base.url]})) as gateway:
        options = ("--to", gateway.url, "--model", "demo", "--key-env", "KEY", "--admin-key-env", "ADMIN")
        assert await replayed(trace(tmp_path / "t", 2), *options, "--price-per-hour", 1, "--json") == 0
    told = json.loads(capsys.readouterr().out)

    assert any("2 receipts were not there" in warning for warning in told["warnings"])
    assert told["all"]["cost_usd"] > 0


async def test_repeats_limits_defaults_and_modes(tmp_path: Path) -> None:
    """The first lines, several times over, with fields filled in, in one piece."""
    out = tmp_path / "out"
    (tmp_path / "t").write_text('"a"\n{"prompt": "b", "max_tokens": 2}\n"c"\n')
    options = ("--limit", 2, "--repeat", 3, "--default", "max_tokens=4", "--default", "user=me", "--json-mode")
    async with serve(FAST) as engine:
        assert await replayed(tmp_path / "t", "--to", engine.url, "--out", out, *options) == 0
        seen = bodies(engine)

    assert [(one.line, one.repeat, one.completion_tokens) for one in read(out)[1]] == [
        (line, repeat, 6 - 2 * line) for repeat in range(3) for line in (1, 2)
    ]
    assert all(body["user"] == "me" and "stream" not in body and body["model"] == "demo" for body in seen)


async def test_traces_that_can_be_read_once(tmp_path: Path) -> None:
    """Standard input and named pipes are read whole before anything is sent."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines = trace(tmp_path / "t", 3).read_text()
    async with serve(FAST) as engine:
        writing = asyncio.create_task(asyncio.to_thread(fifo.write_text, lines))
        assert await replayed(fifo, "--to", engine.url) == 0
        await writing
        command = [sys.executable, "-m", "gateway", "replay", "-", "--to", engine.url, "--json"]
        pipe = asyncio.subprocess.PIPE
        running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
        out, _ = await running.communicate(lines.encode())

    assert json.loads(out)["sent"] == 3


async def test_sixty_four_streams_at_once() -> None:
    """One sender reads them all whole: every event is counted, and no stream is mistaken for another."""
    settings = EngineSettings(kind="baseline", speed=10, slots=64)
    async with serve(settings) as engine:
        samples: list[Sample] = []
        calls = [
            Request(
                line=n,
                id=str(n),
                path="/v1/completions",
                body={"model": "demo", "prompt": "a", "max_tokens": 5 + n % 9},
            )
            for n in range(128)
        ]
        async with open_client() as client:
            pace = Pace(at_once=64)
            run = Run(
                lambda job: measure(client, Endpoint(name="e", url=engine.url), job.request),
                samples.append,
                pace,
                stop_after=1,
            )
            await run.all(pace.jobs((0, one) for one in calls))

    assert (run.ended, run.errors, run.stopped) == (128, 0, None)
    assert all(one.completion_tokens == one.events == 5 + one.line % 9 for one in samples)


# --- when it is sent ---


def requests(times: Sequence[float | None]) -> list[Request]:
    """Return requests at these times."""
    return [Request(line=n, id="a", path="/", body={}, at=at) for n, at in enumerate(times, 1)]


def test_schedules() -> None:
    """Poisson gaps have the rate's mean and follow from the seed; even ones are even; traces keep their times."""
    many = [(0, one) for one in requests([None] * 2000)]
    due = [job.due for job in Pace(kind="rate", rate=50, seed=3).jobs(many)]
    gaps = [after - before for before, after in pairwise(one for one in due if one is not None)]

    assert due[0] == 0
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 / 50**2, rel=0.2)  # exponential, not even
    assert due == [job.due for job in Pace(kind="rate", rate=50, seed=3).jobs(many)]
    assert [job.due for job in Pace(kind="rate", rate=4, spacing="even").jobs(many[:3])] == [0, 0.25, 0.5]
    assert [job.due for job in Pace(at_once=4).jobs(many[:2])] == [None, None]
    twice = [(repeat, one) for repeat in (0, 1) for one in requests([0, 1, 4])]
    assert [job.due for job in Pace(kind="trace", speedup=2).jobs(twice, span=6)] == [0, 0.5, 2, 3, 3.5, 5]
    assert [job.due for job in Pace(kind="trace").jobs(twice[1:3], span=6)] == [
        0,
        3,
    ]  # what is left of a run begins at once


async def test_open_loops_count_from_their_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls that wait for a place are late, by each sample's own word, and the user is warned what that hides."""
    async with serve(EngineSettings(kind="baseline", slots=1, speed=5)) as engine:
        options = ("--to", engine.url, "--rate", 1000, "--even", "--at-once", 1, "--out", tmp_path / "out", "--json")
        assert await replayed(trace(tmp_path / "t", 4), *options) == 0
    told = json.loads(capsys.readouterr().out)
    samples = sorted(read(tmp_path / "out")[1], key=lambda one: one.line)
    late = [one.late_seconds for one in samples if one.late_seconds is not None]

    assert len(late) == 4
    assert sorted(late) == late
    assert late[3] > sum(one.e2e_seconds for one in samples[:3]) - 0.01
    assert told["lateness"]["latest_seconds"] == late[3]
    assert told["lateness"]["e2e_from_schedule_seconds"]["p95"] > told["all"]["e2e_seconds"]["p95"]
    assert any("calls were sent late" in warning for warning in told["warnings"])


async def test_a_trace_is_sent_at_its_times(tmp_path: Path) -> None:
    """No call is sent before its time."""
    async with serve(FAST) as engine:
        began = time.time()
        options = ("--to", engine.url, "--trace-times", "--speedup", 10, "--out", tmp_path / "out")
        assert await replayed(trace(tmp_path / "t", 4), *options) == 0

    started = sorted(one.started for one in read(tmp_path / "out")[1])
    assert all(one - began >= number * 0.05 - 0.001 for number, one in enumerate(started))


# --- what can be wrong with it ---


async def test_line_1731(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is no JSON is named before anything is sent; with --skip-bad it is passed over, named and counted."""
    path = tmp_path / "t"
    path.write_text('"x"\n' * 1730 + '{"prompt": "x"\n' + '"x"\n' + "[]\n")
    async with serve(FAST) as engine:
        assert await replayed(path, "--to", engine.url, "--limit", 1731) == 2
        assert (bodies(engine), engine.connections) == ([], set())
        error = capsys.readouterr().err
        assert f"{path}: line 1731: no JSON" in error
        assert "--skip-bad" in error
        assert "more cannot be sent" not in error
        (tmp_path / "u").write_text('"x"\n{\n"y"\n[]\n' + "3\n" * 20)
        options = ("--skip-bad", "--json", "--default", "max_tokens=1")
        assert await replayed(tmp_path / "u", "--to", engine.url, *options) == 0
    captured = capsys.readouterr()

    assert "passed over: line 2: no JSON" in captured.err
    assert "passed over: 12 more lines" in captured.err
    assert json.loads(captured.out)["bad_lines"] == [2, 4, *range(5, 25)]
    assert json.loads(captured.out)["sent"] == 2


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ('"a"', ("--to", "nowhere"), "--to nowhere: expected an address"),
        ('"a"', ("--key-env", "NOT_THERE"), "--key-env: NOT_THERE is not set"),
        ('"a"', ("--tenant-key", "x=NOT_THERE"), "--tenant-key x: NOT_THERE is not set"),
        ('{"prompt": "a", "tenant": "y"}', ("--tenant-key", "x=HOME"), "line 1: tenant 'y': no key"),
        ('"a"', ("--tenant-key", "x=HOME"), "lines without a tenant: no key"),
        ('"a"', ("--trace-times",), "line 1: no timestamp"),
        ('{"prompt":"a","at":5}\n{"prompt":"a","at":4}', ("--trace-times",), "line 2: its time lies before"),
        ('"a"', ("--even",), "--even and --seed"),
        ('"a"', ("--speedup", "2"), "--speedup is for --trace-times"),
        ('"a"', ("--at-once", "2"), "--at-once bounds"),
        ('"a"', ("--resume",), "name it with --out"),
        ("\n\n", (), "no requests in it"),
        (None, (), "No such file or directory; name a file"),
    ],
)
def test_wrong_use_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str | None, options: tuple[str, ...], said: str
) -> None:
    """Options that cannot be meant are refused with what to do, before anything is asked of anybody."""
    if lines is not None:
        (tmp_path / "t").write_text(lines)
    address = () if "--to" in options else ("--to", "http://127.0.0.1:1", "--unchecked", "--stop-after", "1")

    assert main(["replay", str(tmp_path / "t"), *address, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--to", "http://x", "--rate", "0"),
        ("--to", "http://x", "--rate", "1", "--concurrency", "1"),
        ("--to", "http://x", "--repeat", "-1"),
        ("--to", "http://x", "--tenant-key", "x"),
        ("--to", "http://x", "--idle-seconds", "nan"),
    ],
)
def test_wrong_options_are_wrong_use(options: tuple[str, ...]) -> None:
    """Argparse refuses what it can, with 2."""
    with pytest.raises(SystemExit) as caught:
        main(["replay", "t", *options])

    assert caught.value.code == 2


async def test_endpoints_and_models_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent and no file begun where nobody listens, the key is refused, or the model is not served."""
    path, out = trace(tmp_path / "t"), tmp_path / "out"
    async with serve(EngineSettings(speed=200, api_key="sk-x")) as engine:
        assert await replayed(path, "--to", engine.url, "--out", out) == 1
        assert "--key-env" in capsys.readouterr().err
    assert await replayed(path, "--to", engine.url, "--out", out) == 1
    assert "start the endpoint, or name another with --to" in capsys.readouterr().err
    async with serve(FAST) as engine:
        assert await replayed(path, "--to", engine.url, "--out", out, "--model", "gpt-9") == 2
        assert "model 'gpt-9' is not served" in capsys.readouterr().err
        assert (bodies(engine), out.exists()) == ([], False)


def test_the_model_of_lines_that_name_none() -> None:
    """It is the endpoint's only one; where there are several or no list, the user says which."""
    here = Endpoint(name="here", url="http://here")

    assert check_models(here, {"": 1}, ["a"]) == "a"
    assert check_models(here, {"a": 1}, ["a", "b"]) is None
    assert check_models(here, {"anything": 1}, []) is None
    for wanted, served, said in (
        ({"": 3}, ["a", "b"], "line 3: no model, and http://here has a, b"),
        ({"": 3}, [], "http://here lists none"),
        ({"a": 1, "c": 7}, [*"abdefghijk"], "line 7: model 'c' is not served by http://here, which has .* and 2 more"),
    ):
        with pytest.raises(WrongModel, match=said):
            check_models(here, wanted, served)


# --- what breaks on the way ---


async def test_an_endpoint_that_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured is kept, the run ends with 1 and says how to go on; going on sends what had no answer, once."""
    path, out = trace(tmp_path / "t", 20), tmp_path / "out"
    async with AsyncExitStack() as life:
        engine = await life.enter_async_context(serve(EngineSettings(kind="speculative", speed=40)))
        port = int(engine.url.rpartition(":")[2])
        options = (path, "--to", engine.url, "--out", out, "--target-name", "it", "--stop-after", 3, "--json")
        running = asyncio.create_task(replayed(*options))
        await until(lambda: kept(out) >= 4, 30)
        await life.aclose()  # connections are cut in the middle of their answers, and nobody listens any more
        assert await running == 1
    captured = capsys.readouterr()
    answered = [one.line for one in read(out)[1] if one.ok]

    assert f"go on with --resume --out {out}" in captured.err
    assert "3 calls in a row had no answer" in json.loads(captured.out)["stopped"]
    assert 4 <= len(answered) < 20
    async with serve(EngineSettings(kind="speculative", speed=200, port=port)) as engine:
        assert await replayed(*options, "--resume") == 0
        assert len(bodies(engine)) == 20 - len(answered)
    told = json.loads(capsys.readouterr().out)

    assert sorted(one.line for one in read(out)[1] if one.ok) == list(range(1, 21))
    assert (told["skipped"], told["all"]["n"], told["all"]["errors"]) == (len(answered), 20, 0)


async def test_refusals_are_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An endpoint's error is measured and told by kind and by line, and no reason to stop or to ask again."""
    out = tmp_path / "out"
    good = sse(ROLE, delta("a", finish="stop"), USAGE, DONE)
    models, busy = [reply({"data": []})], [refusal("busy", 503)]
    async with scripted(models, busy, good, busy, [refusal("no", 400)]) as engine:
        options = (trace(tmp_path / "t", 4), "--to", engine.url, "--model", "m", "--stop-after", 1, "--out", out)
        assert await replayed(*options, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["errors"] == {"http 503": 2, "http 400": 1}
        assert found["warnings"][-2:] == [
            "line 1, line 3 failed, the first: http 503: busy",
            "line 4 failed, http 400: no",
        ]
        seen = len(engine.seen)
        assert await replayed(*options, "--resume") == 0
        assert len(engine.seen) == seen + 1  # the models alone

    assert "4 calls to" in (told := capsys.readouterr().out)
    assert "3 failed (2 × http 503, 1 × http 400)" in told
    assert [one.error for one in read(out)[1]][:2] == ["http 503: busy", None]


async def test_no_answer_at_all_is_a_failure(tmp_path: Path) -> None:
    """A run in which every call was refused ends with 1."""
    async with scripted([refusal("no", 400)]) as engine:
        assert await replayed(trace(tmp_path / "t", 3), "--to", engine.url, "--model", "m") == 1


async def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with its file: at the start nothing is sent, later what was measured stays and is gone on from."""
    path, out = trace(tmp_path / "t", 12), tmp_path / "out"
    async with serve(FAST) as engine:
        assert await replayed(path, "--to", engine.url, "--out", "/dev/full") == 1
        assert "/dev/full: No space left on device" in capsys.readouterr().err
        assert bodies(engine) == []
        async with process(path, "--to", engine.url, "--out", out, file_limit=3000) as running:
            _, error = await running.communicate()
        assert running.returncode == 1
        found = read(out)[1]
        assert f"{out}: File too large; the {len(found)} samples measured before are kept" in error.decode()
        assert 2 < len(found) < 12
        assert await replayed(path, "--to", engine.url, "--out", out, "--resume") == 0

    assert sorted(one.line for one in read(out)[1]) == list(range(1, 13))


async def test_kill_9(tmp_path: Path) -> None:
    """Every sample that was there before is there after, and going on sends the rest."""
    path, out = trace(tmp_path / "t", 40), tmp_path / "out"
    async with serve(EngineSettings(kind="speculative", speed=40)) as engine:
        options = (path, "--to", engine.url, "--out", out, "--concurrency", 4)
        async with process(*options) as running:
            await until(lambda: kept(out) >= 8, 30)
            running.kill()
            await running.wait()
        with out.open("ab") as file:
            file.write(b'{"line": 3, "id": "torn')  # a write that the kill had cut
        before = {one.line for one in read(out)[1]}
        sent = len(bodies(engine))
        assert await replayed(*options, "--resume") == 0
        assert len(bodies(engine)) - sent == 40 - len(before)

    assert len(before) >= 8
    assert sorted(one.line for one in read(out)[1]) == list(range(1, 41))


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_waits_for_what_is_under_way(tmp_path: Path, sign: signal.Signals) -> None:
    """The first one ends the sending and keeps every answer that comes."""
    out = tmp_path / "out"
    async with serve(EngineSettings(kind="baseline", slots=8, speed=20)) as engine:
        options = ("--to", engine.url, "--out", out, "--concurrency", 4, "--json")
        async with process(trace(tmp_path / "t", 60), *options) as running:
            await until(lambda: kept(out) >= 4, 30)
            running.send_signal(sign)
            said, error = await running.communicate()
        asked = len(bodies(engine))
    told = json.loads(said)

    assert running.returncode == 1
    assert (told["stopped"], told["lost"]) == ("interrupted", 0)
    assert kept(out) == told["sent"] == told["all"]["n"] == asked < 60
    assert told["all"]["errors"] == 0
    assert f"draftlane replay: interrupted; go on with --resume --out {out}" in error.decode()


async def test_a_second_interrupt_waits_for_nothing(tmp_path: Path) -> None:
    """Calls that do not end are left, told, and sent again when the run goes on."""
    out = tmp_path / "out"
    models = [reply({"data": [{"id": "demo"}]})]
    good = sse(ROLE, delta("a", finish="stop"), USAGE, DONE)
    async with scripted(models, good, [SILENCE]) as engine:
        options = ("--to", engine.url, "--out", out, "--json")
        async with process(trace(tmp_path / "t", 5), *options) as running:
            await until(lambda: len(engine.seen) == 3, 30)
            running.send_signal(signal.SIGINT)
            assert running.stderr is not None
            assert b"stopping: 1 calls are under way" in await running.stderr.readline()
            running.send_signal(signal.SIGINT)
            said, error = await running.communicate()

    assert (running.returncode, json.loads(said)["lost"], kept(out)) == (1, 1, 1)
    assert b"interrupted; 1 calls under way were left" in error


async def test_an_interrupt_before_the_first_call(tmp_path: Path) -> None:
    """While the trace is still being read, Ctrl-C ends the command with a word and leaves nothing behind."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with process(fifo, "--to", "http://127.0.0.1:1") as running:
        writer = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)  # returns when the command has opened its end
        running.send_signal(signal.SIGINT)
        _, error = await running.communicate()
        os.close(writer)

    assert (running.returncode, error.decode()) == (1, "draftlane replay: interrupted; nothing was sent\n")


async def test_a_trace_that_vanishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is gone when it is to be sent once more ends the run, which keeps what it has."""
    path, out = trace(tmp_path / "t", 2), tmp_path / "out"
    async with serve(FAST) as engine:
        running = asyncio.create_task(replayed(path, "--to", engine.url, "--repeat", 500, "--out", out, "--json"))
        await until(lambda: kept(out) >= 3, 30)
        path.unlink()
        assert await running == 1
    told = json.loads(capsys.readouterr().out)

    assert f"{path}: No such file or directory" in told["stopped"]
    assert kept(out) == told["all"]["n"] < 1000


async def test_results_of_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is neither overwritten nor mixed with other settings or another trace; more repeats of the same go on."""
    path, out = trace(tmp_path / "t", 2), tmp_path / "out"
    async with serve(FAST) as engine:
        options = ("--to", engine.url, "--out", out)
        assert await replayed(path, *options) == 0
        assert await replayed(path, *options) == 2
        assert "exists already; go on with --resume" in capsys.readouterr().err
        assert await replayed(path, *options, "--resume", "--concurrency", 2) == 2
        assert "pace: '1 at once' there, '2 at once' here" in capsys.readouterr().err
        assert await replayed(trace(tmp_path / "u", 3), *options, "--resume") == 2
        assert "trace_sha256" in capsys.readouterr().err
        assert await replayed(path, *options, "--resume", "--repeat", 2) == 0

    assert sorted((one.line, one.repeat) for one in read(out)[1]) == [(1, 0), (1, 1), (2, 0), (2, 1)]


async def test_broken_streams_are_sent_again(tmp_path: Path) -> None:
    """A stream that was reset is no answer: it is kept as a failure, and asked for again when the run goes on."""
    out = tmp_path / "out"
    broken = [*sse(ROLE, delta("a"))[:-1], RESET]
    models = [reply({"data": [{"id": "demo"}]})]
    async with scripted(models, broken, models, sse(ROLE, delta("a", finish="stop"), USAGE, DONE)) as engine:
        options = (trace(tmp_path / "t", 1), "--to", engine.url, "--out", out)
        assert await replayed(*options) == 1
        assert [one.error is None for one in read(out)[1]] == [False]
        assert await replayed(*options, "--resume") == 0
        assert [one.error is None for one in read(out)[1]] == [True]


# --- progress, honesty, figures ---


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Whether it is one."""
        return True


def counting(**fields: Any) -> Run:
    """Return a run that is as far as it is told."""

    async def send(_: Any) -> Sample:
        raise AssertionError

    run = Run(send, lambda _: None, Pace(), stop_after=1)
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def test_progress_says_rate_eta_and_errors() -> None:
    """The rate is that of the last half a minute, and the end follows from it."""
    now = 0.0
    run = counting()
    progress = Progress(Terminal(), run, 1000, clock=lambda: now)
    now, run.ended = 10.0, 20

    assert progress.text().endswith("20/1,000   2%  2.0/s  ETA 8:10  0 under way  0 errors")
    now, run.ended, run.errors = 60.0, 500, 1
    assert "  9.6/s  ETA 0:52  0 under way  1 error" in progress.text()
    assert progress.text().startswith("████████████░░░░░░░░░░░░  500/1,000  50%")
    run.stopped = "interrupted"
    assert "ETA" not in progress.text()
    assert clock_time(3723) == "1:02:03"


async def test_progress_is_redrawn_or_written() -> None:
    """A terminal's line is drawn over itself and gone at the end; a file gets plain lines; a closed stream harms nothing."""
    terminal, file, closed = Terminal(), io.StringIO(), io.StringIO()
    closed.close()
    for stream in (terminal, file):
        async with Progress(stream, counting(), 10, line=0.01) as progress:
            await until(lambda stream=stream: "0/10" in stream.getvalue())
            progress.note("note")
    with pytest.raises(ValueError, match="closed"):
        closed.isatty()

    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert "\r\x1b[2Knote\n" in terminal.getvalue()
    assert "\x1b" not in file.getvalue()
    assert "\n0/10   0%  0.0/s" in "\n" + file.getvalue()


async def test_a_busy_sender_says_so() -> None:
    """A loop that is held up knows by how much, and a warning tells it."""
    async with Busy() as busy:
        for _ in range(5):
            await asyncio.sleep(0.025)
            time.sleep(0.1)  # noqa: ASYNC251 - this is what is noticed
        await asyncio.sleep(0.025)

    assert busy.late > 0.05
    assert busy.warning is not None
    assert "send less at once" in busy.warning


def sample(line: int = 1, **fields: Any) -> Sample:
    """Return a sample of one line."""
    found: Mapping[str, Any] = {"id": "a", "target": "here", "started": 0.0, "status": 200, "e2e_seconds": 1.0}
    return Sample(line=line, **{**found, **fields})


def test_failures_name_their_lines() -> None:
    """Each kind names its first five lines once, whatever the repeats, and calls of files without lines by their names."""
    busy = [sample(line, id=f"line-{line}", error="http 503: busy", repeat=line % 2) for line in range(8, 0, -1)]
    again = sample(8, id="line-8", error="http 503: still busy", repeat=3)
    found = summary.failures([*busy, again, sample(9), sample(0, id="talk/2", error="timeout: 3 s.")])

    assert found == [
        "line 1, line 2, line 3, line 4, line 5 and 3 more failed, the first: http 503: busy",
        "talk/2 failed, timeout: 3 s",
    ]


def test_figures() -> None:
    """TPOT is (E2E − TTFT)/(tokens − 1); failed calls cost and count, and time nothing; pauses between runs do not count."""
    samples = [
        sample(1, ttft_seconds=0.2, completion_tokens=5, cost_usd=1.0),
        sample(2, started=0.5, e2e_seconds=1.5, ttft_seconds=0.3, completion_tokens=1, cost_usd=1.0),
        sample(3, started=100.0, error="broken: x", ttft_seconds=9.0, completion_tokens=4, cost_usd=1.0),
    ]
    found = summary.figures(samples, summary.under_way(samples))

    assert summary.under_way(samples) == 3.0
    assert (found.n, found.errors, found.output_tokens) == (3, 1, 6)
    assert found.tpot_seconds == summary.Spread(pytest.approx(0.2), pytest.approx(0.2))
    assert found.ttft_seconds == summary.Spread(pytest.approx(0.25), pytest.approx(0.295))
    assert (found.tokens_per_second, found.usd_per_million_output_tokens) == (2.0, 5e5)
    nothing = summary.figures([], 0.0)
    assert (nothing.n, nothing.tokens_per_second, nothing.usd_per_million_output_tokens) == (0, None, None)
    assert summary.table([("all", nothing)]).splitlines()[1].split() == ["all", "0", "0", *["–"] * 9]


def test_lateness_within_reason_is_no_warning() -> None:
    """A few milliseconds, or little beside the answers, are nothing to warn of."""
    quick = summary.lateness([sample(late_seconds=0.004)])
    small = summary.lateness([sample(late_seconds=0.04)])
    large = summary.lateness([sample(late_seconds=0.5, ttft_seconds=0.1)])

    assert quick is not None
    assert small is not None
    assert large is not None
    assert (quick.warning, small.warning) == (None, None)
    assert large.warning is not None
    assert "E2E is 1.50 s at p50" in large.warning
    assert large.ttft_from_schedule_seconds == summary.Spread(0.6, 0.6)
    assert summary.lateness([sample()]) is None
