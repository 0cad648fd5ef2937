"""Foreign JSON, read field by field: whatever is not as it should be is told by file, place and field. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.measure.load.sample import Sample

Keyed = Literal["id", "place", ""]
_MANY: Final = 0.8  # of the calls must be on both sides, for keys to be taken for pairs


class FormatError(Exception):
    """A file that is not what it should be; the message names file, place, field and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a file held.

    Attributes:
        samples: its calls, their target the pool's name alone.
        concurrency: calls under way at once, where the file says it.
        keyed: by what calls can be paired with those of another file: "id", by its own names for prompts; "place", by their
            order, where prompts' lengths agree; "" not at all.
        notes: what a reader must know about its figures.
    """

    path: Path
    format: str
    samples: tuple[Sample, ...]
    concurrency: int | None = None
    keyed: Keyed = ""
    notes: tuple[str, ...] = ()
    trace: str | None = (
        None  # digest of the requests, where the file tells it: names mean the same within one trace alone
    )
    texts: Mapping[tuple[int, str, int], str] | None = (
        None  # answers by line, id and repetition, where the file has them
    )


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object of a file at a place, such as "line 3" or "benchmarks[0].requests.successful[7]"."""

    path: Path
    place: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, place: str, value: object) -> Fields:
        """Return the fields of a value that must be an object."""
        if not isinstance(value, dict):
            raise FormatError(f"{path}: {place or 'the file'}: expected an object, got {value!r:.40}")
        return cls(path, place, value)

    def fail(self, field: str, problem: str) -> FormatError:
        """Return the error that names a field."""
        return FormatError(f"{self.path}: {self.place + ': ' if self.place else ''}{field}: {problem}")

    def number(self, *names: str, least: float = 0.0) -> float:
        """Return the first of these fields that is there: a finite number."""
        found = self.maybe(*names, least=least)
        if found is None:
            raise self.fail(" or ".join(names), "missing; expected a number")
        return found

    def maybe(self, *names: str, least: float = 0.0) -> float | None:
        """Return the same, None where there is none or it is null."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
                raise self.fail(name, f"expected a number from {least:g} on, got {value!r:.40}")
            return float(value)
        return None

    def count(self, *names: str) -> int | None:
        """Return a whole number, None where there is none."""
        found = self.maybe(*names)
        if found is None:
            return None
        if found != int(found):
            raise self.fail(" or ".join(names), f"expected a whole number, got {found!r}")
        return int(found)

    def text(self, name: str) -> str | None:
        """Return a text, None where there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.fail(name, f"expected a text, got {value!r:.40}")
        return value

    def under(self, name: str) -> Fields | None:
        """Return the object in a field, None where there is none."""
        value = self.values.get(name)
        return None if value is None else Fields.of(self.path, f"{self.place}.{name}".strip("."), value)

    def items(self, name: str, advice: str = "") -> list[Any]:
        """Return a list that must be there."""
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.fail(
                name, f"{'missing' if value is None else 'expected a list'}{'; ' + advice if advice else ''}"
            )
        return value

    def objects(self, name: str) -> Iterator[Fields]:
        """Return the objects of a list that must be there."""
        for index, value in enumerate(self.items(name)):
            yield Fields.of(self.path, f"{self.place}.{name}[{index}]".strip("."), value)


def decode(path: Path, content: bytes, place: str = "") -> Any:
    """Decode JSON.

    Raises:
        FormatError: it is none.
    """
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: {place + ': ' if place else ''}no JSON ({error})") from None


def lines_of(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    """Decode JSON line by line, with each line's place; blank lines are passed over."""
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"line {number}", decode(path, line, f"line {number}")


def in_pairs(first: Loaded, second: Loaded) -> str:
    """Return, in words, by what two files' calls are pairs; "" when they are none."""
    if not first.keyed or first.keyed != second.keyed or first.trace != second.trace:
        return ""
    here, there = ({(one.line, one.id, one.repeat): one for one in loaded.samples} for loaded in (first, second))
    common = here.keys() & there.keys()
    if not common or len(common) < _MANY * max(len(here), len(there)):
        return ""
    if first.keyed == "id":
        return "calls are paired by the files' own names of prompts"
    if any(here[key].prompt_tokens != there[key].prompt_tokens for key in common):
        return ""
    return "calls are paired by their order: both files have prompts of the same lengths in it"
