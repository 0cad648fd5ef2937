"""Labelled requests for the fleet simulation: read from JSON lines, checked, scored once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from classifier.scorer import Score, Scorer, View

TEMPLATE_ROWS = 5  # a (source, category) group of at least so many rows is a template


class DataError(Exception):
    """The labelled data cannot be used; the message says which file and line, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled request: `acceptance` is tokens per step by (drafter, window); `words` is what keywords are sought in."""

    id: str
    group: tuple[str, str]
    words: str
    tokens: int
    acceptance: dict[tuple[str, int], float]
    score: Score


def read(directory: Path, scorer: Scorer) -> list[Row]:
    """Return the rows of every `*.jsonl` in a directory, in the order of file name and line.

    Raises:
        DataError: no such directory, no rows, or a line that is not a labelled request.
    """
    files = sorted(directory.glob("*.jsonl"))
    if not files:
        raise DataError(f"{directory} holds no .jsonl file")
    rows = [row for file in files for row in _rows(file, scorer)]
    if not rows:
        raise DataError(f"the files of {directory} hold no rows")
    return rows


def _rows(file: Path, scorer: Scorer) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield _row(json.loads(line), scorer)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(f"{file.name}, line {number}: {type(error).__name__}: {error}") from error


def _row(content: dict[str, Any], scorer: Scorer) -> Row:
    acceptance = {
        (drafter, int(window)): float(length)
        for drafter, lengths in content["acceptance_length"].items()
        for window, length in lengths.items()
    }
    if any(not 1.0 <= length <= window + 1.0 for (_, window), length in acceptance.items()):
        raise ValueError("an acceptance length is outside 1 … window + 1")
    tokens = int(content["output_tokens"])
    if tokens < 1:
        raise ValueError("output_tokens must be positive")
    body = {name: content[name] for name in ("messages", "tools", "temperature") if content.get(name) is not None}
    words = " ".join(str(message.get("content") or "") for message in content["messages"])
    return Row(
        id=str(content["id"]),
        group=(str(content["source"]), str(content["category"])),
        words=words[:2000].lower(),
        tokens=tokens,
        acceptance=acceptance,
        score=scorer.score(View.of(body)),
    )


def templates(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the templates among the rows, by fingerprint: each group of at least five rows is one.

    The fingerprint stands for the system prompt that the requests of a group would share.
    """
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return {_fingerprint(group): found for group, found in sorted(groups.items()) if len(found) >= TEMPLATE_ROWS}


def _fingerprint(group: tuple[str, str]) -> str:
    return blake2b("\n".join(group).encode(), digest_size=8).hexdigest()
