"""What a sweep compares: windows of one or several drafts, and no speculation at all; and how options name them. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LARGEST: Final = 64
_NONE: Final = "none"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A window of a draft; window 0 is no speculation. An engine has one draft unless several are named."""

    window: int
    draft: str = ""

    @property
    def label(self) -> str:
        """Its name in results files."""
        if not self.window:
            return "baseline"
        return f"{self.draft}:window-{self.window}" if self.draft else f"window-{self.window}"

    def __str__(self) -> str:
        if not self.window:
            return _NONE
        return f"{self.draft}:{self.window}" if self.draft else str(self.window)


NOTHING: Final = Candidate(0)


def windows(text: str) -> tuple[int, ...]:
    """Read windows as an option has them: "5-15", "3,5,7", or both; raises ArgumentTypeError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = _window(first, text), _window(last if dash else first, text)
        if low > high:
            raise argparse.ArgumentTypeError(f"{text!r}: {low} lies above {high}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def endpoint(text: str) -> tuple[Candidate, str]:
    """Read a running engine as an option has it: "7=http://…", or "draft:7=http://…"; raises ArgumentTypeError."""
    name, mark, rest = text.partition("=http")
    draft, _, window = name.rpartition(":")
    if not mark or not rest.startswith(("://", "s://")):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected WINDOW=URL or DRAFT:WINDOW=URL, such as 7=http://127.0.0.1:8001"
        )
    return Candidate(_window(window, text), draft.strip()), "http" + rest


def drafts(text: str) -> tuple[str, ...]:
    """Read names of drafts with commas between; raises ArgumentTypeError."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between")
    return found


def all_of(chosen: Iterable[int], named: Sequence[str]) -> list[Candidate]:
    """Return every window of every draft."""
    return [Candidate(window, draft) for draft in named or ("",) for window in chosen]


def _window(text: str, whole: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{whole!r}: expected windows from 1 to {LARGEST}, such as 5-15 or 3,5,7")
    return int(text)
