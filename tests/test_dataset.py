"""Measured requests are read row by row, and a broken row is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from measured import rows, write

from classifier.dataset import DataError, digest, read, row_of, sample_of, seed_rows


def test_rows_are_read_in_order(tmp_path: Path):
    """All rows of all files come back, files by name, lines by number."""
    given = rows(10)
    found = read(write(tmp_path, given))

    assert sorted(row.id for row in found) == sorted(row["id"] for row in given)
    assert [row.source for row in found] == sorted(row["source"] for row in given)


def test_a_sample_holds_logarithms(tmp_path: Path):
    """Targets are logs of acceptance length, n-gram acceptance length and output tokens."""
    found = read(write(tmp_path, rows(3)))
    sample = sample_of(found)

    assert np.exp(sample.targets[0]).tolist() == pytest.approx([found[0].length, found[0].ngram, found[0].output])
    assert len(sample) == len(found)
    assert not sample.own.any()


def test_two_answers_to_a_prompt_share_its_digest(tmp_path: Path):
    """Rows that must not part in cross-validation are known by their prompt."""
    found = read(write(tmp_path, rows(10, kinds=("chat",))))

    assert len({row.prompt for row in found}) == len(found) - 1
    assert found[0].prompt == found[1].prompt


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": None}, "messages must be a list"),
        ({"acceptance_length": {"draft": {"7": 9.5}, "ngram": {"7": 1}}}, "between 1 and 8"),
        ({"acceptance_length": {"draft": {"5": 2}, "ngram": {"7": 1}}}, "'7' is missing"),
        ({"acceptance_length": {"draft": {"7": "x"}, "ngram": {"7": 1}}}, "could not convert"),
        ({"output_tokens": 0}, "not a positive number"),
        ({"output_tokens": float("nan")}, "not a positive number"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, change: dict[str, object], said: str):
    """The error tells file, line and what is wrong."""
    good = rows(1, kinds=("chat",))[0]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(good)}\n\n{json.dumps(good | change)}\n", encoding="utf-8")

    with pytest.raises(DataError, match=rf"a\.jsonl:3: .*{said}"):
        read(tmp_path)


def test_a_missing_field_is_named(tmp_path: Path):
    """A row without its source says so."""
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n', encoding="utf-8")

    with pytest.raises(DataError, match="'acceptance_length' is missing"):
        read(tmp_path)


@pytest.mark.parametrize("line", ["{", "5", "[1]", "[" * 50_000])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str):
    """Broken JSON and other JSON are errors of their line."""
    (tmp_path / "a.jsonl").write_text(line + "\n", encoding="utf-8")

    with pytest.raises(DataError, match=r"a\.jsonl:1"):
        read(tmp_path)


def test_no_data_is_an_error(tmp_path: Path):
    """An absent and an empty directory are errors that say what is wanted."""
    with pytest.raises(DataError, match="not a directory"):
        read(tmp_path / "absent")
    with pytest.raises(DataError, match="no rows"):
        read(tmp_path)


def test_the_digest_changes_with_a_label():
    """What was trained on is named by requests and labels alike."""
    one = row_of(rows(1, kinds=("chat",))[0])
    other = row_of(rows(1, seed=2, kinds=("chat",))[0])

    assert digest([one]) == digest([one])
    assert len({digest([one]), digest([other]), digest([one, other]), digest([other, one])}) == 4


def test_the_seed_is_many_kinds():
    """The project's own rows are of at least forty kinds, each a source of its own, none without a label."""
    own = seed_rows()

    assert len({row.source for row in own}) >= 40
    assert all(row.own and 1.0 <= row.length <= 8.0 for row in own)
