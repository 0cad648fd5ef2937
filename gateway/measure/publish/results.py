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
| `best` | by category, "" being all together: the window, or {"window", "draft", "flat_with": [what may be as good]} |
| `settings` | what was measured and how |
| `load` | the same in words |
| `warnings[]` | in words |

A figure is a number, or {"value": number, "interval": [low, high] or null}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gateway.measure.paired.result import Comparison, ResultError, read_comparison

Interval = tuple[float, float]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its interval."""

    value: float
    interval: Interval | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One window's figures for one category and draft; what is None is not known."""

    window: int
    category: str | None = None
    draft: str | None = None
    n: int | None = None
    acceptance_length: float | Figure | None = None
    step_seconds: float | Figure | None = None
    tpot_seconds: float | Figure | None = None
    ttft_seconds: float | Figure | None = None
    e2e_seconds: float | Figure | None = None
    goodput_tokens_per_s: float | Figure | None = None
    interval: Interval | dict[str, Interval | None] | None = None

    @property
    def line(self) -> tuple[str, str]:
        """Category and draft, "" for all together and for no name."""
        return self.category or "", self.draft or ""

    def figure(self, name: str) -> Figure | None:
        """Return a figure with its interval, wherever that stands."""
        found = getattr(self, name)
        if found is None or isinstance(found, Figure):
            return found
        if isinstance(self.interval, dict):
            return Figure(value=found, interval=self.interval.get(name))
        return Figure(value=found, interval=self.interval if name == "goodput_tokens_per_s" else None)

    def value(self, name: str, scale: float = 1.0) -> float | None:
        """Return a figure alone, times `scale`."""
        found = self.figure(name)
        return None if found is None else scale * found.value


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best window, its draft where there are several, and which others may be as good."""

    window: int
    draft: str | None = None
    flat_with: tuple[str, ...] = ()


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep over windows."""

    windows: tuple[Row, ...]
    best: dict[str, int | Best | None] = {}
    settings: dict[str, Any] = {}
    load: str | None = None
    warnings: tuple[str, ...] | None = None

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Category and draft of each line that charts draw, all together first."""
        return sorted({row.line for row in self.windows if row.window})

    def rows(self, line: tuple[str, str]) -> list[Row]:
        """Return a line's rows by window; those of baseline belong to every draft."""
        mine = (row for row in self.windows if row.line == line or (not row.window and row.line[0] == line[0]))
        return sorted(mine, key=lambda row: row.window)

    def best_of(self, category: str) -> Best | None:
        """Return the best window of a category."""
        found = self.best.get(category, None if category else self.best.get("all"))
        return Best(window=found) if isinstance(found, int) else found


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
        value = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return _kept(path, content)
    if "draftlane" in value:  # a results file that no call has come to yet
        return _kept(path, content)
    if value.get("kind") == "sweep":
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
    from gateway.measure.paired.files import own
    from gateway.measure.paired.formats import FormatError

    first = content.split(b"\n", 1)[0]
    if b'"draftlane"' not in first:
        raise ResultError(f"{path}: neither JSON of compare or sweep (--json) nor a results file (--out)")
    try:
        return own(path)[0]
    except FormatError as error:
        raise ResultError(str(error)) from None


def sweep_of(found: object) -> Sweep:
    """Return a sweep from whatever has its fields: JSON's value, or the sweeping command's own structs.

    Raises:
        msgspec.ValidationError: it has others.
    """
    return msgspec.convert(msgspec.to_builtins(found), Sweep)
