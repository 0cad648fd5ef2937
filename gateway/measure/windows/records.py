"""Recorded acceptance: how many drafted tokens each step of each answer accepted, from files of several kinds.

A line of JSON is one of these:

| a line | is |
|---|---|
| `{"accepted": [2, 0, 5], "window": 7}` | the steps of one answer in their order |
| `{"acceptance_histogram": [9, 4, 1], "window": 2}` | how many steps accepted 0, 1, 2 …, in no order |
| an answer of vLLM with `metrics.speculative_decoding` | such a histogram, with `usage` |
| a line of OpenAI's batch output | the answer in its `response.body` |

Beside these a line may have `id`, `category`, `step_seconds`. A file of another kind is vLLM's /metrics page, whose counters by
position are a histogram of the whole pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from gateway import figures

_MOST_STEPS: Final = 20_000  # of a histogram, which is scaled down to that: its order is drawn anyway


class RecordError(Exception):
    """A line that is no record; the message names file and line and says what to do."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one answer; `ordered` is false where their order was drawn, as only a histogram was known."""

    line: int
    id: str
    category: str
    window: int
    accepted: tuple[int, ...]
    ordered: bool = True
    step_seconds: float | None = None


def read(path: Path, *, seed: int = 0) -> list[Record]:
    """Read a file.

    Raises:
        RecordError: it cannot be read, a line is no record, or there is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    chance = np.random.default_rng(seed)
    found = list(
        _page(text, path, chance) if "vllm:" in text[:4096] and text[:1] != "{" else _lines(text, path, chance)
    )
    if not found:
        raise RecordError(f"{path}: no record in it; expected lines with accepted or acceptance_histogram")
    return found


def _lines(text: str, path: Path, chance: np.random.Generator) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
            yield _record(number, value, chance)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RecordError(f"{path}: line {number}: no JSON ({error}); mend or delete it") from None
        except ValueError as error:
            raise RecordError(f"{path}: line {number}: {error}") from None


def _record(number: int, value: Any, chance: np.random.Generator) -> Record:
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004  # one kind of error for all that a line may be
    name = str(value.get("custom_id") or value.get("id") or f"line-{number}")
    category = str(value.get("category") or "")
    body = value.get("response")
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        value = {**value, **body["body"]}
    metrics = value.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if isinstance(told, dict):
        usage = value.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        value = {**told, "completion_tokens": tokens, "step_seconds": value.get("step_seconds")}
    window = value.get("window") or value.get("num_spec_tokens")
    ordered = "accepted" in value
    steps = _ordered(value) if ordered else _drawn(value, chance)
    if window is None and not ordered:
        window = len(value["acceptance_histogram"]) - 1
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"window: expected a whole number above 0, got {window!r}")
    if steps and max(steps) > window:
        raise ValueError(f"a step accepted {max(steps)} tokens of a window of {window}; one of both is wrong")
    return Record(
        line=number,
        id=name,
        category=category,
        window=window,
        accepted=tuple(steps),
        ordered=ordered,
        step_seconds=_seconds(value.get("step_seconds")),
    )


def _ordered(value: Mapping[str, Any]) -> list[int]:
    return _counts("accepted", value["accepted"])


def _counts(name: str, found: Any) -> list[int]:
    if not isinstance(found, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found
    ):
        raise ValueError(f"{name}: expected a list of whole numbers, none below 0")
    return found


def _drawn(value: Mapping[str, Any], chance: np.random.Generator) -> list[int]:
    """Return the steps of a histogram in some order; those that had no draft emitted one token each."""
    if "acceptance_histogram" not in value:
        raise ValueError("neither accepted nor acceptance_histogram nor metrics.speculative_decoding is in it")
    histogram = _counts("acceptance_histogram", value["acceptance_histogram"])
    tokens = value.get("completion_tokens")
    told = sum((accepted + 1) * steps for accepted, steps in enumerate(histogram))
    if isinstance(tokens, int) and tokens - 1 > told and histogram:
        histogram = [histogram[0] + tokens - 1 - told, *histogram[1:]]  # the first token is the prefill's
    return _shuffled(histogram, chance)


def _shuffled(histogram: Sequence[float], chance: np.random.Generator) -> list[int]:
    total = sum(histogram)
    scale = min(1.0, _MOST_STEPS / total) if total else 0.0
    steps = np.repeat(np.arange(len(histogram)), [round(count * scale) for count in histogram])
    chance.shuffle(steps)
    return [int(one) for one in steps]


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"step_seconds: expected a number above 0, got {value!r}")
    return float(value)


def _page(text: str, path: Path, chance: np.random.Generator) -> Iterator[Record]:
    """Read a /metrics page, which tells of all drafts how many accepted their first token, their second, and so on."""
    try:
        seen = figures.read(text, 0.0)
    except ValueError as error:
        raise RecordError(f"{path}: neither JSON lines nor a /metrics page ({error})") from None
    drafts = seen.values.get("drafts", 0.0)
    if not drafts or not seen.positions:
        raise RecordError(f"{path}: its speculation counters are absent or zero; take answers' own metrics instead")
    window = max(seen.positions) + 1
    reached = [drafts, *(seen.positions.get(place, 0.0) for place in range(window)), 0.0]
    histogram = [max(0.0, more - less) for more, less in pairwise(reached)]
    steps = seen.values.get("steps")
    if steps is not None and steps > drafts:
        histogram[0] += steps - drafts  # steps without a draft
    yield Record(
        line=1,
        id=path.name,
        category="",
        window=window,
        accepted=tuple(_shuffled(histogram, chance)),
        ordered=False,
        step_seconds=_mean(seen.values),
    )


def _mean(values: Mapping[str, float]) -> float | None:
    steps = values.get("steps")
    return values["step_seconds"] / steps if steps and values.get("step_seconds") else None
