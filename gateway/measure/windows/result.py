"""What a sweep found, as it is printed, written as JSON and drawn. The JSON is these structs, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

ALL: Final = ""  # the category of all prompts together, as in comparisons
ALL_WORDS: Final = "all together"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, and the ends of its interval where prompts were enough for one."""

    value: float
    interval: tuple[float, float] | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval as a share of the figure."""
        if self.interval is None or not self.value:
            return None
        return (self.interval[1] - self.interval[0]) / (2 * self.value)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One window in one category, window 0 being no speculation; times are seconds.

    `n` counts prompts, `goodput_tokens_per_s` tokens of calls that met what was asked of them. `steps_range`, offline, holds
    the fewest and the most steps that the data allow.
    """

    window: int
    draft: str | None
    category: str
    n: int
    calls: int
    met_share: float
    acceptance_length: Figure | None
    step_seconds: Figure | None
    tpot_seconds: Figure | None
    goodput_tokens_per_s: Figure | None
    steps_range: tuple[int, int] | None = None


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best window of a category, those that may be as good, and its gain over no speculation where that was measured."""

    window: int
    draft: str | None
    by: Literal["goodput", "tpot"]
    flat_with: tuple[str, ...] = ()
    gain_over_baseline: Figure | None = None


class StepModel(msgspec.Struct, frozen=True, kw_only=True):
    """Step time by the window: base + per token · window; `source` says where it is from."""

    base_seconds: float
    per_token_seconds: float
    source: str

    def seconds(self, window: int) -> float:
        """Return a step's time."""
        return self.base_seconds + self.per_token_seconds * window


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A whole sweep. `best` is by category; `step_model` by draft ("" where it has no name)."""

    kind: Literal["sweep"] = "sweep"
    version: int = 1
    settings: dict[str, Any]
    load: str  # that goodput is told at, in words
    windows: tuple[Row, ...]
    best: dict[str, Best]
    step_model: dict[str, StepModel]
    warnings: tuple[str, ...] = ()
    ended: str | None = None  # why it ended before its end


class SweepError(Exception):
    """A file that holds no sweep; the message names it and says what to do."""


def as_json(found: Sweep) -> str:
    """Return a sweep as one line of JSON."""
    return msgspec.json.encode(found).decode()


def read(path: Path) -> Sweep:
    """Read a sweep's JSON.

    Raises:
        SweepError: it cannot be read or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Sweep)
    except OSError as error:
        raise SweepError(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise SweepError(f"{path}: no result of draftlane sweep ({error}); write it with --json") from None
