"""Result files that can be shown: of `compare` (see `paired.result`), of `sweep`, and the samples that `compare --out` keeps.

A sweep's result is one JSON object; all but `windows[].window` may be missing or null:

| field | is |
|---|---|
| `kind` | "sweep" |
| `windows[]` | a row per window, category and draft |
| `.window` | drafted tokens per step; 0 is baseline |
| `.category` | "" or missing: all together |
| `.draft` | name of the draft model, where several are tried |
| `.n` | calls, or steps where `.source` says so |
| `.acceptance_length`, `.step_seconds`, `.tpot_seconds`, `.ttft_seconds`, `.e2e_seconds` | tokens per step, and seconds |
| `.goodput_tokens_per_s` | output tokens per second at the stated load |
| `.interval` | [low, high] of the goodput, or {figure: [low, high]} by the names above |
| `best` | the best window by category, "" being all together: {category: window}, or {category: {"window", …}} |
| `flat` | categories whose optimum is flat |
| `load` | in words |
| `warnings[]` | in words |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.measure.paired.result import Comparison, ResultError, read_comparison

Interval = tuple[float, float]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One window's figures for one category and draft; what is None is not known."""

    window: int
    category: str | None = None
    draft: str | None = None
    n: int | None = None
    acceptance_length: float | None = None
    step_seconds: float | None = None
    tpot_seconds: float | None = None
    ttft_seconds: float | None = None
    e2e_seconds: float | None = None
    goodput_tokens_per_s: float | None = None
    interval: Interval | dict[str, Interval | None] | None = None

    def ends(self, figure: str) -> Interval | None:
        """Return the interval of a figure, where it has one."""
        if isinstance(self.interval, dict):
            return self.interval.get(figure)
        return self.interval if figure == "goodput_tokens_per_s" else None


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep over windows."""

    windows: tuple[Row, ...]
    best: dict[str, Any] = {}
    flat: tuple[str, ...] | None = None
    load: str | None = None
    warnings: tuple[str, ...] | None = None

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Category and draft of each line that charts draw, all together first."""
        return sorted({(row.category or "", row.draft or "") for row in self.windows})

    def line(self, name: tuple[str, str]) -> list[Row]:
        """Return a line's rows by window."""
        return sorted(
            (row for row in self.windows if (row.category or "", row.draft or "") == name), key=lambda row: row.window
        )

    def best_of(self, category: str) -> int | None:
        """Return the best window of a category."""
        found = self.best.get(category, self.best.get("all") if not category else None)
        window = found.get("window") if isinstance(found, dict) else found
        return window if isinstance(window, int) else None


def read(path: Path) -> Comparison | Sweep:
    """Read a result that can be shown.

    Raises:
        ResultError: the file cannot be read or holds no such result.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}; name a result of compare or sweep") from error
    try:
        kind = msgspec.json.decode(content, type=dict[str, Any]).get("kind")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return _kept(path, content)
    if kind == "sweep":
        return read_sweep(path, content)
    return read_comparison(path, content)


def read_sweep(path: Path, content: bytes) -> Sweep:
    """Read a sweep's JSON.

    Raises:
        ResultError: it is none.
    """
    try:
        return msgspec.json.decode(content, type=Sweep)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ResultError(f"{path}: no result of draftlane sweep ({error}); write it with --json") from None


def _kept(path: Path, content: bytes) -> Comparison:
    """Compare the calls of a results file anew."""
    from gateway.measure.load.sample import ResultsError
    from gateway.measure.paired.files import own
    from gateway.measure.paired.formats import FormatError

    first = content.split(b"\n", 1)[0]
    if b'"draftlane"' not in first:
        raise ResultError(f"{path}: neither JSON of compare or sweep (--json) nor a results file (--out)")
    try:
        return own(path)[0]
    except (ResultsError, FormatError) as error:
        raise ResultError(str(error)) from None


def sweep_of(value: Mapping[str, Any]) -> Sweep:
    """Return a sweep from its JSON's value.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return msgspec.convert(value, Sweep)
