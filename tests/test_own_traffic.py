"""Own traffic that is broken, empty or very long: what is refused says where and why, and what is read is read in pieces."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured import rows
from test_traffic import call, config, finished

from classifier.__main__ import main
from classifier.dataset import DataError
from classifier.features import NAMES
from classifier.scorer import Scorer, View
from classifier.traffic import BATCH, observations
from gateway.__main__ import main as draftlane
from gateway.pools import Pools
from gateway.traffic.files import Files
from gateway.traffic.lines import line_of, observed

ASKED = {"messages": [{"role": "user", "content": "Count to nine"}]}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def features() -> dict[str, Any]:
    """What the gateway keeps of a request whose text it must not keep."""
    return Scorer.load().features(View.of(ASKED))


def kept(path: Path, *contents: object) -> Path:
    """A file of observations, one a line; strings are written as they are."""
    lines = [content if isinstance(content, str) else json.dumps(content) for content in contents]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def served(directory: Path, privacy: str) -> Path:
    """What a gateway keeps of calls whose draft reaches six tenths of what is usual; returns its configuration."""
    pool, scorer = Pools(config(directory), {})["spec"], Scorer.load()
    files = Files(directory, "one", most_bytes=1 << 26, seconds=1e9)
    for i, row in enumerate(rows(60)):
        asked, length = call(row["messages"][0]["content"]), 0.6 * row["acceptance_length"]["draft"]["7"]
        seen = observed(finished(request_id=f"r{i}", acceptance=max(1.0, length), template=f"t{i}"), pool)
        assert seen is not None
        files.append(line_of(seen, asked.body if privacy == "text" else b"", asked.view, scorer))
    files.close()
    settings = Path(__file__).parent.parent.joinpath("config.toml").read_text(encoding="utf-8")
    path = directory.parent / "config.toml"
    path.write_text(f'{settings}\nobservations_path = "{directory}"\n', encoding="utf-8")
    return path


@pytest.mark.parametrize("privacy", ["features", "text"])
def test_what_a_gateway_keeps_makes_an_artefact(tmp_path: Path, privacy: str, capsys: pytest.CaptureFixture[str]):
    """From kept calls by `draftlane observations export` and `train --traffic` to an artefact that expects less."""
    settings, out, made = served(tmp_path / "kept", privacy), tmp_path / "out.jsonl", tmp_path / "new.json"

    assert draftlane(["observations", "export", "--config", str(settings), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["train", "--traffic", str(out), "--out", str(made), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["published"] is True
    assert told["traffic"]["observations"] + told["traffic"]["held_out"] == len(rows(60))
    view = View.of(rows(1)[0])
    assert Scorer.load(made).score(view).acceptance_length < Scorer.load().score(view).acceptance_length


@pytest.mark.parametrize("line", ['{"request":', '{"request": ' + DEEP + ', "acceptance": 2}', "5", '"text"'])
def test_a_line_that_is_no_observation_is_named(tmp_path: Path, line: str):
    """Broken, bottomless and other JSON is an error of its line, by file and number."""
    with pytest.raises(DataError, match=r"t\.jsonl, observation 2: "):
        list(observations(kept(tmp_path / "t.jsonl", {"request": ASKED, "acceptance": 2}, line)))


@pytest.mark.parametrize(
    "change",
    [
        {"cues": [math.nan] * len(NAMES)},
        {"cues": [math.inf] * len(NAMES)},
        {"cues": [0.0]},
        {"words": [-1]},
        {"words": [10**30]},
    ],
)
def test_features_that_would_spoil_the_sums_are_refused(
    tmp_path: Path, features: dict[str, Any], change: dict[str, Any]
):
    """One number that is none would make every sum none, so it ends the training, and is named."""
    with pytest.raises(DataError, match="observation 1: "):
        list(observations(kept(tmp_path / "t.jsonl", {"features": features | change, "acceptance": 2})))


@pytest.mark.parametrize("given", [{"request": DEEP, "acceptance": 2}, {"request": ASKED, "acceptance": 10**400}])
def test_no_number_and_no_depth_is_too_much(tmp_path: Path, given: dict[str, Any]):
    """A body nested without end, kept as text, and an acceptance that no float holds are errors of their line."""
    with pytest.raises(DataError, match="observation 1: "):
        list(observations(kept(tmp_path / "t.jsonl", given)))


@pytest.mark.parametrize("request_kept", [None, 5, "null", "[]", True])
def test_an_observation_of_no_request_is_refused(tmp_path: Path, request_kept: object):
    """What holds neither features nor a body would teach of empty requests, so it is named instead."""
    with pytest.raises(DataError, match="observation 1: neither features nor a request"):
        list(observations(kept(tmp_path / "t.jsonl", {"request": request_kept, "features": None, "acceptance": 2})))


@pytest.mark.parametrize("steps", [0, -3, math.nan])
def test_calls_without_a_step_teach_nothing(tmp_path: Path, steps: float, capsys: pytest.CaptureFixture[str]):
    """An observation without weight is passed over, so that a file of such decides nothing instead of dividing by zero."""
    seen = [{"request": {"messages": row["messages"]}, "acceptance": 2, "steps": steps} for row in rows(100)]
    path = kept(tmp_path / "t.jsonl", *seen)

    assert list(observations(path)) == []
    assert main(["train", "--traffic", str(path), "--out", str(tmp_path / "out.json")]) == 1
    assert "only 0 observations are held out" in capsys.readouterr().out
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(("name", "raw"), [("t.parquet", b"no Parquet"), ("t.jsonl", b"\xff\xfe{}")])
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, raw: bytes, capsys: pytest.CaptureFixture[str]):
    """What is no Parquet and what is no UTF-8 ends with exit code 2 and a sentence, not a traceback."""
    (tmp_path / name).write_bytes(raw)

    assert main(["train", "--traffic", str(tmp_path / name), "--out", str(tmp_path / "out.json")]) == 2
    assert f"{name} cannot be read" in capsys.readouterr().err


def test_parquet_is_read_in_pieces(tmp_path: Path, features: dict[str, Any]):
    """Of a row group as large as a whole file only pages and one batch are held, not its columns."""
    import pyarrow as pa
    from pyarrow import parquet

    count = 12 * BATCH
    numbers = np.random.default_rng(1).random(count * len(NAMES))  # no two alike: no dictionary makes the file small
    cues = pa.ListArray.from_arrays(np.arange(count + 1) * len(NAMES), numbers)
    words = pa.array([features["words"]] * count)
    digest = pa.array([features["digest"]] * count)
    given = pa.StructArray.from_arrays([digest, cues, words], ["digest", "cues", "words"])
    table = pa.table({"acceptance": np.full(count, 2.0), "features": given})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=count)
    del table, given, cues, numbers
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in observations(tmp_path / "t.parquet"))

    assert parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 1
    assert most < (tmp_path / "t.parquet").stat().st_size / 2
