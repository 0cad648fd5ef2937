"""Reads measured requests: JSON lines as the data's own description defines them, and the project's seed.

A row holds a request in OpenAI shape (`messages`, perhaps `tools` and parameters), where it comes from (`source`, `target`),
and `acceptance_length.draft["7"]`, `acceptance_length.ngram["7"]`, `output_tokens`. Rows are checked one by one: a broken one
is an error that names its file and line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from classifier.artifact import digest_of
from classifier.features import Measured, measure
from classifier.model import Sample
from classifier.view import View

SEED = Path(__file__).parent / "seed" / "measured.jsonl"
WINDOW = "7"


class DataError(Exception):
    """Data that cannot be trained or judged on; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured request."""

    id: str
    source: str
    category: str
    writer: str
    view: View
    measured: Measured
    length: float
    ngram: float
    output: float
    prompt: str  # digest of the request, the same for all answers to it
    text: str  # the last user turn, for rivals that read text
    own: bool = False


def read(directory: Path) -> list[Row]:
    """All rows of the `*.jsonl` files of a directory, in the order of file names; raises DataError."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory; name one that holds *.jsonl files of measured requests")
    rows = [row for file in sorted(directory.glob("*.jsonl")) for row in read_file(file)]
    if not rows:
        raise DataError(f"{directory} holds no rows in *.jsonl files")
    return rows


def read_file(file: Path) -> Iterator[Row]:
    """The rows of one file."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield row_of(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise DataError(f"{file.name}:{number}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


def row_of(content: Mapping[str, Any], *, own: bool = False) -> Row:
    """One row; raises ValueError, KeyError or TypeError saying what is wrong."""
    if not isinstance(content, Mapping):
        raise TypeError("a row must be a JSON object")
    if not isinstance(content["messages"], list):
        raise TypeError("messages must be a list")
    return _labelled(content, View.of(content), own=own)


def _labelled(content: Mapping[str, Any], view: View, *, own: bool) -> Row:
    labels = content["acceptance_length"]
    asked = json.dumps([content["messages"], content.get("tools")], sort_keys=True)
    return Row(
        id=str(content.get("id", "")),
        source=str(content["source"]),
        category=str(content.get("category", "")),
        writer=f"{content['source']}|{content.get('target', '')}",
        view=view,
        measured=measure(view),
        length=_length(labels["draft"][WINDOW]),
        ngram=_length(labels["ngram"][WINDOW]),
        output=_positive(content["output_tokens"]),
        prompt=hashlib.sha256(asked.encode("utf-8", "replace")).hexdigest(),
        text=view.user,
        own=own,
    )


def _wordless(content: Mapping[str, Any]) -> Row:
    """A row of whose request only the features are kept, since its words are other people's."""
    features = content["features"]
    if features["digest"] != digest_of():
        raise DataError(
            f"{SEED.name} was measured with other features than this release computes; see {SEED.parent.name}/README.md"
        )
    labelled = _labelled({"messages": [content["id"]], **content}, View.of({}), own=True)
    measured = Measured(np.array(features["cues"], np.float64), np.array(features["words"], np.intp))
    return replace(labelled, measured=measured)


def _length(value: object) -> float:
    number = _positive(value)
    if not 1.0 <= number <= 8.0:
        raise ValueError(f"an acceptance length at window {WINDOW} lies between 1 and 8, not at {number}")
    return number


def _positive(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{value!r} is not a positive number")
    return number


def seed_rows(file: Path = SEED) -> list[Row]:
    """The project's own measured requests; every category is a source of its own, since each is another kind of request."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        contents = [json.loads(line) for line in lines]
    for content in contents:
        content["source"] = f"{content['source']}:{content['category']}"
    return [_wordless(content) if "features" in content else row_of(content, own=True) for content in contents]


def sample_of(rows: Iterable[Row]) -> Sample:
    """Rows as arrays."""
    rows = list(rows)
    return Sample(
        cues=np.array([row.measured.cues for row in rows]),
        words=[row.measured.words for row in rows],
        targets=np.log([[row.length, row.ngram, row.output] for row in rows]),
        sources=np.array([row.source for row in rows]),
        writers=np.array([row.writer for row in rows]),
        prompts=np.array([row.prompt for row in rows]),
        own=np.array([row.own for row in rows]),
    )


def digest(rows: Iterable[Row]) -> str:
    """A digest of what was trained on: requests and labels, in order."""
    seen = hashlib.sha256()
    for row in rows:
        seen.update(f"{row.source}\t{row.prompt}\t{row.length}\t{row.ngram}\t{row.output}\n".encode("utf-8", "replace"))
    return seen.hexdigest()
