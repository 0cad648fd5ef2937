"""The lab without vLLM: process records, addresses, configuration, dictated acceptance, prompts, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from itertools import islice
from pathlib import Path

import pytest

from gateway.config import parse
from gateway.measure.lab import __main__ as command
from gateway.measure.lab import dictated, front, session
from gateway.measure.lab.distil_prompts import prompts
from gateway.measure.lab.engines import NGRAM, EngineSpec, await_ready, launch, start
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.front import FrontPool
from gateway.measure.lab.model import STAMP, digests, publish, whole
from gateway.measure.lab.pace import Pace
from gateway.measure.lab.place import Place
from gateway.measure.lab.processes import Record, began, free_port, port_free, stop, tail
from gateway.measure.lab.session import Halves, Session

ROOT = Path(__file__).parent.parent
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A lab whose interpreter is this one, with a model that is none: whatever starts here ends by itself."""
    place = Place(tmp_path / "lab")
    place.python.parent.mkdir(parents=True)
    place.python.symlink_to(sys.executable)
    (place.root / ".ready").touch()
    place.target.mkdir(parents=True)
    (place.target / "config.json").write_text("{}")
    return place


def sleeper() -> subprocess.Popen[bytes]:
    """Start a process that leads a group of its own."""
    return subprocess.Popen(SLEEPER, start_new_session=True)


def test_a_lab_that_is_not_there_says_how_to_build_it(tmp_path: Path) -> None:
    """Starting an engine without a lab, or with a model that is not prepared, names the command that helps."""
    with pytest.raises(LabError, match="`make lab`"), start(EngineSpec(name="one"), place=Place(tmp_path)):
        pass
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / ".ready").touch()
    spec = EngineSpec(name="one", model=tmp_path / "models" / "other")
    with pytest.raises(LabError, match=r"no model in .*other.*lab-draft"), start(spec, place=Place(tmp_path)):
        pass


def test_an_engine_that_ends_at_once_shows_the_end_of_its_log(place: Place) -> None:
    """An interpreter without vLLM fails; the error has what it said, and nothing is left running."""
    one = launch(EngineSpec(name="broken"), place, log=place.run / "broken.log")
    with pytest.raises(LabError, match=r"(?s)engine broken has ended with 1:.*No module named 'vllm'.*broken\.log"):
        await_ready([one], seconds=60)
    one.stop()

    assert began(one.process.pid) is None


def test_an_engine_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """When the other end of its standard input closes, as it does when its owner is killed, the server ends."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text("import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.measure.lab.served", "--port", "1"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"['--port', '1']\n"
    assert process.poll() is None
    process.stdin.close()

    assert process.wait(20) == -signal.SIGTERM
    process.stdout.close()


def test_more_memory_than_there_is_is_refused_beforehand(place: Place) -> None:
    """An engine whose cache cannot fit is not even started."""
    with pytest.raises(LabError, match=r"needs about 100002 GiB of memory"):
        launch(EngineSpec(name="huge", kv_cache_gib=100_000), place, log=place.run / "huge.log")


def test_engines_are_told_what_they_are(tmp_path: Path) -> None:
    """A speculative engine gets its configuration and tells acceptance per request; both listen on this machine alone."""
    plain = EngineSpec(name="plain").arguments(tmp_path, 1)
    spec = EngineSpec(name="ngram", speculative_config=NGRAM, processors="1", acceptance=tmp_path / "length")
    drafted = spec.arguments(tmp_path, 2)
    environment = spec.environment(tmp_path / "plugins")

    assert "--speculative-config" not in plain
    assert drafted[drafted.index("--host") + 1] == "127.0.0.1"
    assert "--per-request-spec-decode-metrics" in drafted
    assert '"num_speculative_tokens": 5' in drafted[drafted.index("--speculative-config") + 1]
    assert (spec.window, EngineSpec(name="plain").window) == (5, None)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert environment[dictated.VARIABLE] == str(tmp_path / "length")
    assert environment["PYTHONPATH"].startswith(str(tmp_path / "plugins"))


def test_a_record_knows_its_process_from_another_with_the_same_id() -> None:
    """A record is alive while its process runs; a process that began at another moment is not the one it speaks of."""
    process = sleeper()
    record = Record.of("one", process.pid, "http://127.0.0.1:1", Path("one.log"))
    assert record.alive
    assert not Record(name="one", pid=process.pid, began=record.began - 1, url="", log="").alive
    stop(process.pid, seconds=5, reap=process)

    assert not record.alive


def test_stopping_reaches_children_and_those_that_do_not_listen() -> None:
    """All of a process group ends, also what ignores the polite signal."""
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"deaf\n"
    stop(process.pid, seconds=0.3, reap=process)
    process.stdout.close()

    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_down_stops_what_was_recorded_and_nothing_else(place: Place) -> None:
    """`make lab-stop` ends the recorded processes; a record whose id has gone to somebody else is left alone."""
    ours, other = sleeper(), sleeper()
    wrong = Record(name="gone", pid=other.pid, began=1, url="", log="")
    session._write(place, Session(urls={}, processes=[Record.of("ours", ours.pid, "", Path("log")), wrong]))
    ended = session.down(place)

    assert ended == ["ours"]
    assert ours.wait(5) is not None
    assert other.poll() is None
    assert session.current(place) is None
    assert session.down(place) == []
    stop(other.pid, seconds=5, reap=other)


def test_a_taken_port_is_named_before_anything_starts(place: Place) -> None:
    """The lab says which port is taken, by what it was meant for, and what to do."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not port_free(port)
        with pytest.raises(LabError, match=rf"port {port}, meant for the gateway, is taken.*--port N"):
            session.up(place, port=port, say=lambda _: None)


def test_two_commands_do_not_start_the_lab_at_once(place: Place) -> None:
    """While one command starts or stops the lab another one says so."""
    with session._lock(place), pytest.raises(LabError, match="just starting or stopping"):
        session.down(place)


def test_status_tells_that_nothing_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a lab that is up, status fails and names the command; stopping is fine."""
    monkeypatch.setenv("DRAFTLANE_LAB", str(place.root))

    assert command.main(["status"]) == 1
    assert "`make lab` starts it" in capsys.readouterr().err
    assert command.main(["down"]) == 0


@pytest.mark.parametrize("draft", [None, "SmolLM2-draft-4"])
def test_the_written_configuration_is_one_that_the_gateway_takes(draft: str | None) -> None:
    """Pools, paces, keys and changed sections arrive as they were meant, for prompt lookup and for draft models."""
    config = (
        NGRAM if draft is None else {"method": "draft_model", "model": f"models/{draft}", "num_speculative_tokens": 3}
    )
    pools = [
        FrontPool(EngineSpec(name="baseline"), "http://127.0.0.1:1", Pace(0.04, 0.05, 0.1)),
        FrontPool(EngineSpec(name="spec", speculative_config=config), "http://127.0.0.1:2", Pace(0.05, 0.15, 0.1)),
    ]
    text = front.configuration(pools, 8090, {"routing": {"explore_near": 0.0}, "server": {"log": "off"}})
    found = parse(tomllib.loads(text), {})
    baseline, speculative = found.pools

    assert (found.server.port, found.server.log, found.routing.explore_near) == (8090, "off", 0.0)
    assert (baseline.speculative, baseline.slots, baseline.step_growth) == (False, 16, 0.05)
    assert speculative.window == (5 if draft is None else 3)
    assert (speculative.drafter, speculative.draft) == (("ngram", "ngram") if draft is None else ("draft_model", draft))
    assert baseline.revision != speculative.revision


def test_processors_are_divided_evenly() -> None:
    """Two engines share no processor where there are two or more, and have the same number of them."""
    halves = Halves.of_machine()
    first, second = set(halves.first.split(",")), set(halves.second.split(","))

    assert len(first) == len(second)
    assert halves.apart == first.isdisjoint(second) == (len(os.sched_getaffinity(0)) > 1)


def test_ports_are_free_ones() -> None:
    """What is called free can be listened on."""
    assert port_free(free_port())


def test_the_end_of_a_log_is_shown_with_its_path(tmp_path: Path) -> None:
    """Long logs are shortened, missing ones told."""
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))

    assert "line 99" in tail(log)
    assert "line 80" not in tail(log)
    assert str(log) in tail(log)
    assert "No such file" in tail(tmp_path / "none")


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1.0, [0, 0, 0, 0, 0]), (3.5, [1, 1, 0.5, 0, 0]), (6.0, [1, 1, 1, 1, 1]), (9.0, [1, 1, 1, 1, 1])],
)
def test_dictated_rates_add_up_to_the_length(length: float, expected: list[float]) -> None:
    """The expected number of tokens per step, bonus included, is what was asked for, within the window."""
    found = dictated.rates(length, 5)
    expectation, chance = 1.0, 1.0
    for rate in found:
        chance *= rate
        expectation += chance

    assert found == expected
    assert expectation == min(length, 6.0)


def test_a_dictated_length_is_followed_while_it_is_written(tmp_path: Path) -> None:
    """A changed file changes the length; one that is gone or half written leaves it."""
    path = tmp_path / "length"
    wish = dictated._Wish(str(path))
    assert wish.length() is None
    for content, expected in (("4.0", 4.0), ("", 4.0), ("1.5", 1.5)):
        path.write_text(content)
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        assert wish.length() == expected
    path.unlink()

    assert wish.length() == 1.5


def test_a_model_is_whole_only_as_it_was_published(tmp_path: Path) -> None:
    """A folder appears with its stamp; one byte more, or no stamp, and it is made again."""
    part, folder = tmp_path / ".part", tmp_path / "model"
    part.mkdir()
    (part / "config.json").write_text("{}")
    assert not whole(folder)
    publish(part, folder, source="x")
    assert whole(folder)
    assert set(digests(folder)) == {"config.json"}
    (folder / "config.json").write_text("{ }")
    assert not whole(folder)
    (folder / STAMP).unlink()

    assert not whole(folder)


def test_distilled_prompts_are_many_and_repeatable() -> None:
    """Prompts for drafts differ from one another, and are the same for the same seed."""
    first = list(islice(prompts(3), 160))

    assert first == list(islice(prompts(3), 160))
    assert len(set(first)) > 120
    assert set(first) != set(islice(prompts(4), 160))


def test_lab_tests_are_left_out_with_a_word_where_there_is_no_lab(tmp_path: Path) -> None:
    """Without a lab and outside CI the directory is not collected and the summary says so; under CI it is collected."""
    run = [sys.executable, "-m", "pytest", "tests/e2e/lab", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "DRAFTLANE_LAB": str(tmp_path)}
    environment.pop("CI", None)
    without = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    under_ci = subprocess.run(
        run, cwd=ROOT, env={**environment, "CI": "true"}, capture_output=True, text=True, check=False
    )

    assert "tests/e2e/lab was left out" in without.stdout
    assert "test_pools" not in without.stdout
    assert "test_pools.py::" in under_ci.stdout
