"""The artefact file: the same bytes every time, refused when anything is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classifier.artifact import SHIPPED, ArtefactError, digest_of, dump, load, save
from classifier.artifact import _seal as seal
from classifier.features import NAMES
from classifier.weights import ARRAYS


def changed(path: Path, **parts: Any) -> Path:
    """A copy of the shipped artefact with other content and a checksum that fits."""
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))
    content.pop("sha256")
    content |= parts
    path.write_text(json.dumps({"sha256": seal(content), **content}), encoding="utf-8")
    return path


def test_the_shipped_artefact_is_small_and_readable():
    """Under five megabytes of JSON, with what it was trained on, how it was judged and for which draft."""
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))

    assert SHIPPED.stat().st_size < 5_000_000
    assert content["features"]["names"] == list(NAMES)
    assert content["about"]["drafter"]["window"] == 7
    assert len(content["about"]["data"]["sha256"]) == 64
    assert content["about"]["metrics"]["cross_validated_by_prompt"]["spearman"] > 0.6
    assert content["about"]["metrics"]["cross_validated_by_prompt"]["calibration_error"] <= 0.03


def test_what_is_saved_is_loaded(tmp_path: Path):
    """Arrays, description and version come back as they were, and the same weights give the same bytes."""
    weights, about, version = load()
    path = tmp_path / "deeper" / "a.json"

    assert save(path, weights, about) == version
    again, told, same = load(path)
    assert (told, same) == (about, version)
    assert all(np.array_equal(getattr(weights, name), getattr(again, name)) for name in ARRAYS)
    assert dump(weights, about) == dump(again, told) == path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"sha256": 1}', b"\xff\xfe", b"PK\x03\x04", b"[" * 100_000]
)
def test_what_is_no_artefact_is_refused(tmp_path: Path, raw: bytes):
    """Other files are refused in words that say what to do."""
    path = tmp_path / "x.json"
    path.write_bytes(raw)

    with pytest.raises(ArtefactError, match="classifier train"):
        load(path)


def test_an_absent_file_is_refused(tmp_path: Path):
    """A path that leads nowhere is named."""
    with pytest.raises(ArtefactError, match=r"nowhere\.json cannot be read"):
        load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_changed_byte_is_noticed(tmp_path: Path, position: float):
    """One digit of a number or one letter of a name changed breaks the checksum."""
    raw = bytearray(SHIPPED.read_bytes())
    at = int(len(raw) * position)
    while not chr(raw[at]).isalnum():
        at += 1
    raw[at] = ord("B") if raw[at] == ord("A") else ord("A")
    path = tmp_path / "x.json"
    path.write_bytes(raw)

    with pytest.raises(ArtefactError):
        load(path)


def test_a_truncated_file_is_noticed(tmp_path: Path):
    """Half an artefact is none."""
    path = tmp_path / "x.json"
    path.write_bytes(SHIPPED.read_bytes()[:-50_000])

    with pytest.raises(ArtefactError):
        load(path)


def test_another_format_is_refused(tmp_path: Path):
    """A format of the future is named."""
    with pytest.raises(ArtefactError, match="format 2"):
        load(changed(tmp_path / "x.json", format=2))


def test_other_features_are_refused(tmp_path: Path):
    """An artefact trained on other features would be wrong without a sign, so it does not load."""
    with pytest.raises(ArtefactError, match="other features"):
        load(changed(tmp_path / "x.json", features={"digest": "0" * 16, "names": []}))


@pytest.mark.parametrize(
    "arrays", [{}, {"bias": 5}, {"bias": {"shape": [3], "values": "AAAA"}}, {"bias": {"shape": [-1], "values": "!"}}]
)
def test_broken_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any]):
    """Missing, mistyped and mis-sized arrays are errors of the file."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))["arrays"]

    with pytest.raises(ArtefactError):
        load(changed(tmp_path / "x.json", arrays=(shipped | arrays) if arrays else {}))


@pytest.mark.parametrize("name", ["bias", "cues", "likeness", "noise"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, name: str):
    """Not a number and infinity never reach a prediction."""
    weights, about, _ = load()
    broken = getattr(weights, name).copy()
    broken.flat[0] = np.nan
    save(tmp_path / "x.json", replace(weights, **{name: broken}), about)

    with pytest.raises(ArtefactError, match=f"{name} holds numbers that are not finite"):
        load(tmp_path / "x.json")


def test_a_calibration_that_falls_is_refused(tmp_path: Path):
    """Scores must rise with the prediction."""
    weights, about, _ = load()
    save(tmp_path / "x.json", replace(weights, knots=weights.knots[::-1].copy()), about)

    with pytest.raises(ArtefactError, match="not monotone"):
        load(tmp_path / "x.json")


def test_the_digest_names_the_features():
    """Sixteen hex digits, the same on every call."""
    assert len(digest_of()) == 16
    assert digest_of() == digest_of()


@pytest.mark.parametrize("about", [None, 5, ["x"]])
def test_an_artefact_without_a_description_is_refused(tmp_path: Path, about: object):
    """What it was trained on is a part of it: another type there is an error of the file."""
    with pytest.raises(ArtefactError, match="lacks what a scorer needs"):
        load(changed(tmp_path / "x.json", about=about))


@pytest.mark.parametrize("shape", [[1 << 60], [1 << 80], [-5]])
def test_an_array_of_an_absurd_size_is_refused(tmp_path: Path, shape: list[int]):
    """A mostly empty table that claims more memory than there is is an error of the file, not of the machine."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))["arrays"]
    broken = {"words": {"shape": shape, "rows": "", "values": ""}}

    with pytest.raises(ArtefactError, match="lacks what a scorer needs"):
        load(changed(tmp_path / "x.json", arrays=shipped | broken))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("knots", 1.5, r"leaves \[0, 1\]"), ("curve", 0.5, "below one"), ("width", -1.0, "grows with distance")],
)
def test_numbers_out_of_their_range_are_refused(tmp_path: Path, name: str, value: float, said: str):
    """A score lies in [0, 1], a step yields a token, and likeness falls with distance, whoever wrote the file."""
    weights, about, _ = load()
    broken = getattr(weights, name).copy()
    broken.flat[-1] = value
    save(tmp_path / "x.json", replace(weights, **{name: broken}), about)

    with pytest.raises(ArtefactError, match=said):
        load(tmp_path / "x.json")
