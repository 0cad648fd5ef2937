"""The classifier's command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured import rows, write

from classifier.__main__ import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of measured requests."""
    return write(tmp_path_factory.mktemp("data"), rows(25))


@pytest.fixture(scope="module")
def artefact(data: Path) -> Path:
    """An artefact trained on them alone."""
    path = data.parent / "artefact.json"
    assert main(["train", "--data", str(data), "--out", str(path), "--no-seed", "--json"]) == 0
    return path


def test_training_writes_an_artefact_and_tells(
    data: Path, tmp_path: Path, artefact: Path, capsys: pytest.CaptureFixture[str]
):
    """One JSON object on stdout, progress on stderr, and the same bytes as before."""
    assert main(["train", "--data", str(data), "--out", str(tmp_path / "b.json"), "--no-seed", "--json"]) == 0

    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["data"]["rows"] == len(rows(25))
    assert told["artefact"] == json.loads(artefact.read_bytes())["sha256"][:12]
    assert "fitting" in err
    assert (tmp_path / "b.json").read_bytes() == artefact.read_bytes()


def test_evaluating_an_artefact_tells(data: Path, artefact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An artefact is judged as it is, with a plot, as JSON and for people."""
    asked = ["evaluate", "--data", str(data), "--artefact", str(artefact)]
    assert main([*asked, "--json", "--plot", str(tmp_path / "p.png")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(asked) == 0

    assert told["trained_on_these_sources"] == ["chat", "edits", "facts", "lists", "stories"]
    assert told["pooled"]["spearman"] > 0.8
    assert (tmp_path / "p.png").exists()
    assert "Spearman" in capsys.readouterr().out


def test_cross_validating_tells(data: Path, capsys: pytest.CaptureFixture[str]):
    """Without an artefact the method itself is judged."""
    assert main(["evaluate", "--data", str(data), "--no-seed", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["by_prompt"]["calibration"]["error"] < 0.2
    assert "leave_one_source_out" in told


def test_other_requests_are_held_back(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`--held-back` learns from one directory and judges on another; it cannot be asked of a finished artefact."""
    unseen = write(tmp_path / "unseen", rows(40, seed=9))
    assert main(["evaluate", "--data", str(data), "--held-back", str(unseen), "--no-seed", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["held_back"]["pooled"]["rows"] == len(rows(40, seed=9))
    assert told["data"]["rows"] == len(rows(25))
    assert main(["evaluate", "--data", str(data), "--held-back", str(unseen), "--shipped"]) == 2
    assert "name that directory by --data" in capsys.readouterr().err


def test_rows_are_scored_one_per_line(data: Path, artefact: Path, capsys: pytest.CaptureFixture[str]):
    """Every row gives one JSON object with its id and four numbers, in the order of the files."""
    assert main(["score", "--data", str(data), "--artefact", str(artefact)]) == 0

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["id"] for item in told] == [row["id"] for row in sorted(rows(25), key=lambda row: row["source"])]
    assert all(set(item) == {"id", "score", "acceptance_length", "spread", "output_tokens"} for item in told)


def test_rows_without_labels_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Scoring needs a request and nothing else."""
    (tmp_path / "a.jsonl").write_text(
        '{"id": "x", "messages": [{"role": "user", "content": "hi"}]}\n5\n', encoding="utf-8"
    )

    assert main(["score", "--data", str(tmp_path)]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["x", None]


def test_lines_end_at_newlines_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Unicode's own separators, which JSON allows inside of strings, part no row."""
    row = {"id": "x", "messages": [{"role": "user", "content": "one\u2028two\u2029three\x85four"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")

    assert main(["score", "--data", str(tmp_path)]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["x"]


@pytest.mark.parametrize("line", ['{"id": ', "[" * 100_000])
def test_a_row_that_cannot_be_scored_is_named(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]):
    """A line that is no JSON ends the scoring with its file and number."""
    (tmp_path / "a.jsonl").write_text('{"id": "x"}\n' + line, encoding="utf-8")

    assert main(["score", "--data", str(tmp_path)]) == 2
    assert "a.jsonl:2: " in capsys.readouterr().err


def test_one_prompt_is_explained(capsys: pytest.CaptureFixture[str]):
    """A prompt's score comes with the features that moved it, as JSON and for people."""
    assert main(["score", "Count from 1 to 50", "--json", "--top", "4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["score", "Count from 1 to 50", "--system", "Be brief"]) == 0

    assert len(told["explanation"]) == 4
    assert told["acceptance_length"] > 1
    assert "tokens per step" in capsys.readouterr().out


def test_traffic_corrects_or_is_refused(artefact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Own traffic yields a new artefact, or exit code 1, the reason, and no file."""
    lines = [
        json.dumps(
            {
                "request": {"messages": row["messages"]},
                "acceptance": max(1.0, 0.5 * row["acceptance_length"]["draft"]["7"]),
            }
        )
        for row in rows(200, seed=7)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "few.jsonl").write_text("\n".join(lines[:20]), encoding="utf-8")
    base = ["train", "--artefact", str(artefact), "--json", "--traffic"]

    assert main([*base, str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "new.json")]) == 0
    assert json.loads(capsys.readouterr().out)["published"] is True
    assert main([*base, str(tmp_path / "few.jsonl"), "--out", str(tmp_path / "none.json")]) == 1
    assert "held out" in json.loads(capsys.readouterr().out)["reason"]
    assert not (tmp_path / "none.json").exists()
    assert main(["score", "hello", "--artefact", str(tmp_path / "new.json")]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--out", "x"], "--data DIR"),
        (["train", "--out", "x", "--data", "absent"], "not a directory"),
        (["train", "--out", "x", "--data", ".", "--artefact", "y"], "--traffic corrects"),
        (["evaluate", "--data", "absent"], "not a directory"),
        (["evaluate", "--data", "absent", "--plot", "x.gif"], ".png or .html"),
        (["score"], "one prompt"),
        (["score", "x", "--data", "y"], "one prompt"),
        (["score", "x", "--artefact", "absent.json"], "cannot be read"),
        (["score", "--data", "absent"], "holds no"),
    ],
)
def test_wrong_use_ends_with_two(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    """Misuse is told on stderr in a sentence, without a traceback, and exits 2."""
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["train"], ["score", "--nonsense"], ["train", "--out", "x", "--seed", "-1"]]
)
def test_unknown_arguments_end_with_two(arguments: list[str]):
    """The parser's own errors exit 2 as well."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 2
