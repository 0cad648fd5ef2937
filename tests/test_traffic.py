"""Observations of own traffic: what is kept of a call, the files that processes share, and giving them out again."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import config_for

from classifier.scorer import Scorer, View
from gateway import wire
from gateway.__main__ import main
from gateway.config import Config
from gateway.pools import Pools
from gateway.record import Finished
from gateway.routing.guards import Verdict
from gateway.traffic import Keeper, keeper
from gateway.traffic.cli import Told, chosen
from gateway.traffic.files import SMALLEST_FILE, Files, lines, stored
from gateway.traffic.lines import TEXT_BYTES, at_reference, observed

SCORER = Scorer.load()
NOON = 1_790_000_000.0
ALWAYS = (0.0, float("inf"))


def config(directory: Path, privacy: str = "features", **pool: Any) -> Config:
    """Return a configuration that keeps observations in a directory."""
    return config_for(
        {"spec": ["http://127.0.0.1:9"], "base": ["http://127.0.0.1:7"]},
        pools={"spec": pool},
        classifier={"observations": privacy, "observations_path": str(directory)},
    )


def finished(**fields: Any) -> Finished:
    """Return a speculated call that showed an acceptance."""
    shown: dict[str, Any] = {
        "request_id": "req-1",
        "time": NOON,
        "endpoint": "chat",
        "tenant": "tester",
        "model": "demo",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "pool": "spec",
        "speculative": True,
        "acceptance": 3.0,
        "steps": 17.0,
        "source": "events",
        "propensity": 0.95,
        "template": "0123456789abcdef",
    }
    return Finished(**{**shown, **fields})


def call(text: str = "Count to ten.", **fields: Any) -> wire.Call:
    """Return a parsed chat request, written over two lines."""
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], **fields}
    return wire.parse(json.dumps(body, indent=1).encode(), "chat")


class Kept:
    """A keeper with what it told."""

    def __init__(self, settings: Config, origin: str = "one") -> None:
        self.pools = Pools(settings, {})
        self.count = 0
        self.dropped: Counter[str] = Counter()
        self.trouble: list[str | None] = []
        self.keeper = Keeper(
            settings.classifier,
            self.pools,
            SCORER,
            origin=origin,
            kept=self._kept,
            dropped=lambda reason, count: self.dropped.update({reason: count}),
            trouble=self.trouble.append,
        )

    def _kept(self, count: int) -> None:
        self.count += count


def found(directory: Path) -> list[dict[str, Any]]:
    """Return all observations of a directory."""
    return [json.loads(line) for line in lines(directory)]


async def test_features_are_kept_without_a_word_of_the_request(tmp_path: Path) -> None:
    """The line holds what training reads, features instead of text, and nothing of what was asked."""
    kept = Kept(config(tmp_path))
    asked = call("Tell me about the unmistakable Quetzalcoatlus.")
    kept.keeper(finished(), asked)
    await kept.keeper.stop()

    (seen,) = found(tmp_path)
    assert seen["features"] == SCORER.features(asked.view)
    assert (seen["acceptance"], seen["steps"], seen["propensity"], seen["source"]) == (3.0, 17.0, 0.95, "events")
    assert (seen["template"], seen["endpoint"], seen["biased"]) == ("0123456789abcdef", "chat", "")
    assert "request" not in seen
    assert b"uetzalcoatlus" not in b"".join(lines(tmp_path))
    assert kept.count == 1
    assert not kept.dropped


async def test_text_is_kept_where_the_operator_wants_it(tmp_path: Path) -> None:
    """The request lies in the line, on one line whatever its layout; a very large one is kept as features."""
    kept = Kept(config(tmp_path, "text"))
    for text in ("small", "large" * TEXT_BYTES):
        kept.keeper(finished(), call(text))
    await kept.keeper.stop()

    small, large = found(tmp_path)
    assert small["request"]["messages"] == [{"role": "user", "content": "small"}]
    assert large["features"]["digest"] == SCORER.features(View.of({}))["digest"]
    assert "request" not in large


@pytest.mark.parametrize(
    "fields",
    [
        {"speculative": False},
        {"outcome": "truncated"},
        {"acceptance": None},
        {"steps": None},
    ],
    ids=["baseline", "cut", "no acceptance", "no steps"],
)
def test_a_call_that_showed_nothing_leaves_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Only whole answers of speculative pools tell how many drafted tokens were accepted."""
    assert observed(finished(**fields), Pools(config(tmp_path), {})["spec"]) is None


def test_what_teaches_nothing_says_why(tmp_path: Path) -> None:
    """Bias, a guard and another kind of drafter are told, so that training passes over them."""
    plain, ngram = Pools(config(tmp_path), {})["spec"], Pools(config(tmp_path, drafter="ngram"), {})["spec"]
    guarded = Pools(config(tmp_path), {})["spec"]
    guarded.verdict = Verdict(guard="control", reason="reads 1.2", learns=False)

    assert (observed(finished(biased="parser"), plain) or {})["biased"] == "parser"
    assert (observed(finished(), ngram) or {})["biased"] == "ngram"
    assert (observed(finished(), guarded) or {})["biased"] == "guard"


def test_acceptance_is_carried_to_the_reference_window() -> None:
    """A shorter window shows less of the same acceptance; the reference window shows it as it is."""
    assert at_reference(3.1, 7) == 3.1
    # .81 a token, as 1 + .81 + .81² + .81³ is 3, and so on to the seventh
    assert at_reference(3.0, 3) == pytest.approx(4.295, abs=0.001)
    assert at_reference(4.0, 3) == pytest.approx(8.0)
    assert at_reference(1.0, 3) == pytest.approx(1.0)


async def test_the_buffer_is_bounded_and_drops_are_counted(tmp_path: Path) -> None:
    """What comes faster than it can be written is dropped by number, never silently."""
    kept = Kept(config(tmp_path))
    asked = call()
    most = min(keeper.MOST_WAITING, keeper.MOST_BYTES // keeper._VIEW_BYTES)
    for _ in range(most + 7):
        kept.keeper(finished(), asked)
    assert kept.dropped == {"buffer": 7}
    await kept.keeper.stop()

    assert kept.count == most == len(found(tmp_path))


async def test_a_disk_that_refuses_is_told_and_tried_again(tmp_path: Path) -> None:
    """What could not be written waits and is written once the disk is well; the trouble is told meanwhile."""
    blocked = tmp_path / "kept"
    blocked.write_text("a file where the directory should be")
    kept = Kept(config(blocked))
    kept.keeper(finished(), call())
    await kept.keeper.flush()
    assert kept.count == 0
    assert "kept" in (kept.trouble[-1] or "")
    blocked.unlink()
    kept.keeper(finished(request_id="req-2"), call())
    await kept.keeper.stop()

    assert [seen["id"] for seen in found(blocked)] == ["req-1", "req-2"]
    assert kept.trouble[-1] is None
    assert not kept.dropped


async def test_what_a_disk_never_took_is_counted_at_the_end(tmp_path: Path) -> None:
    """A process that ends with observations in hand says so."""
    blocked = tmp_path / "kept"
    blocked.write_text("")
    kept = Kept(config(blocked))
    kept.keeper(finished(), call())
    await kept.keeper.stop()

    assert kept.dropped == {"buffer": 1}


def test_several_processes_write_files_of_their_own(tmp_path: Path) -> None:
    """Each has its files, for its owner alone, of bounded size."""
    line = b"x" * 999 + b"\n"
    one, two = (
        Files(tmp_path / "kept", origin, most_bytes=1 << 20, seconds=60, writers=2) for origin in ("one", "two")
    )
    for _ in range(200):
        one.append(line)
        two.append(line)

    paths = stored(tmp_path / "kept")
    assert {path.name[:4] for path in paths} == {"one-", "two-"}
    assert max(path.stat().st_size for path in paths) <= (1 << 20) // 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert len(list(lines(tmp_path / "kept"))) == 400
    one.close()
    two.close()


def test_the_oldest_files_go_first_and_are_counted(tmp_path: Path) -> None:
    """Beyond the bound, or their time, files go whole; one that a process writes to stays."""
    files = Files(tmp_path, "one", most_bytes=4 * SMALLEST_FILE, seconds=1000)
    line = b"x" * 1023 + b"\n"
    for _ in range(64 * 6):
        files.append(line)
    paths = sorted(tmp_path.iterdir())
    now = time.time()
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (now - age, now - age))

    assert len(paths) == 6
    assert files.expire(now) == 128
    assert sorted(tmp_path.iterdir()) == paths[2:]
    assert files.expire(now + 2000) == 192
    assert sorted(tmp_path.iterdir()) == paths[-1:]  # it grows
    files.close()
    assert files.expire(now + 2000) == 64


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """Where only a part fits nothing is kept of it, and the file goes on at a line's beginning."""
    script = f"""
import resource, signal
from pathlib import Path
from gateway.traffic.files import Files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
files = Files(Path({str(tmp_path)!r}), "one", most_bytes=1 << 30, seconds=60)
files.append(b"a" * 99 + b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (150, -1))
try:
    files.append(b"b" * 99 + b"\\n")
except OSError as wrong:
    print(wrong)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
files.append(b"c" * 99 + b"\\n")
"""
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert "no room for 100 bytes" in said
    assert [line[:1] for line in lines(tmp_path)] == [b"a", b"c"]


def test_kill_9_tears_one_line_at_most(tmp_path: Path) -> None:
    """After a kill in the middle of writing every line but perhaps the last is whole, and the lock is free."""
    script = f"""
from pathlib import Path
from gateway.traffic.files import Files
files = Files(Path({str(tmp_path)!r}), "one", most_bytes=1 << 30, seconds=60)
print("begun", flush=True)
while True:
    files.append((b'{{"id": "%d", "time": 1}}\\n' % files._size) * 50)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while not any(path.stat().st_size > 200_000 for path in tmp_path.iterdir()):
            time.sleep(0.005)
        writer.send_signal(signal.SIGKILL)

    told = Told()
    assert [*chosen(tmp_path, SCORER, ALWAYS, "text", told)] == []
    assert told.left_out["torn"] <= 1
    assert told.left_out["without text"] > 5000
    with stored(tmp_path)[0].open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def kept_by_hand(directory: Path) -> None:
    """Write a file as gateways of several releases and moods would have left it."""
    directory.mkdir(exist_ok=True)
    request = {"model": "demo", "messages": [{"role": "user", "content": "secret words"}]}
    features = SCORER.features(View.of(request))
    shared = {"endpoint": "chat", "acceptance": 2.0}
    rows: list[dict[str, Any]] = [
        {"id": "text", "time": NOON, "request": request, **shared},
        {"id": "features", "time": NOON, "features": features, **shared},
        {"id": "old", "time": NOON, "features": {**features, "digest": "another"}, **shared},
        {"id": "early", "time": NOON - 90 * 86_400, "features": features, **shared},
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    (directory / "a-000001.jsonl").write_text(f'{text}\n{{"id": "torn", "ti')
    (directory / "b-000001.jsonl").write_text(json.dumps(rows[0] | {"id": "other"}) + "\n")
    (directory / "notes.txt").write_text("no observation")


@pytest.mark.parametrize(
    ("privacy", "ids", "without"),
    [(None, ["text", "features", "early", "other"], 0), ("text", ["text", "other"], 3), ("features", None, 0)],
)
def test_giving_out_keeps_to_the_form_that_is_wanted(
    tmp_path: Path, privacy: Any, ids: list[str] | None, without: int
) -> None:
    """As kept, text only, or features of everything: torn lines and other releases' features are counted and left out."""
    kept_by_hand(tmp_path)
    told = Told()
    out = list(chosen(tmp_path, SCORER, ALWAYS, privacy, told))

    assert sorted(seen["id"] for seen in out) == sorted(ids or ["text", "features", "early", "other"])
    assert told.left_out["torn"] == 1
    assert told.left_out["without text"] == without
    assert told.left_out["with features of another release"] == (0 if privacy == "text" else 1)
    if privacy == "features":
        assert {seen["features"]["digest"] for seen in out} == {SCORER.features(View.of({}))["digest"]}
        assert "secret" not in json.dumps(out)


def test_the_command_writes_a_file_for_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`draftlane observations export --out` writes the days that were asked for, whole or not at all, and tells the rest."""
    kept_by_hand(tmp_path / "kept")
    settings = Path(__file__).parent.parent.joinpath("config.toml").read_text()
    path, out = tmp_path / "config.toml", tmp_path / "out.jsonl"
    path.write_text(f'{settings}\nobservations_path = "{tmp_path / "kept"}"\n')
    asked = ["observations", "export", "--config", str(path), "--out", str(out), "--json"]

    assert main([*asked, "--from", "2026-09-01", "--to", "2026-12-31"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["exported"] == 3 == len(out.read_text().splitlines())
    assert told["left_out"] == {"of other days": 1, "torn": 1, "with features of another release": 1}
    assert "3 observations; left out: 1 of other days" in said.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "kept", "out.jsonl"]
    assert main([*asked[:-3], "--from", "2026-12-01", "--to", "2026-12-31"]) == 1
    assert "are [classifier] observations on" not in capsys.readouterr().err
    assert main([*asked, "--from", "2026-12-01", "--to", "2026-11-01"]) == 2
