"""Other load generators' result files, read and written; whoever has measured with one of them keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from gateway.measure import writing
from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats import aiperf, guidellm, guidellm_write, llmperf, own, vllm
from gateway.measure.paired.formats.fields import FormatError, Loaded, decode, in_pairs
from gateway.measure.paired.pairs import level_of


class Write(Protocol):
    """Writes one pool's samples at one level."""

    def __call__(self, path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:
        """Write the file, or raise OSError."""


class Format(NamedTuple):
    """How a format is told from others, read and written."""

    recognised: Callable[[object], bool]
    read: Callable[[Path, bytes, str], Loaded]
    write: Write


FORMATS: Final[Mapping[str, Format]] = {
    "vllm": Format(vllm.recognised, vllm.read, vllm.write),
    "guidellm": Format(guidellm.recognised, guidellm.read, guidellm_write.write),
    "aiperf": Format(aiperf.recognised, aiperf.read, aiperf.write),
    "llmperf": Format(llmperf.recognised, llmperf.read, llmperf.write),
    "draftlane": Format(own.recognised, own.read, own.write),
}


def named(text: str) -> tuple[str | None, Path]:
    """Take a file's name apart: "vllm:base.json" names its format, "base.json" leaves that to its content."""
    name, mark, rest = text.partition(":")
    return (name, Path(rest)) if mark and name in FORMATS else (None, Path(text))


def read(text: str, target: str) -> Loaded:
    """Read one file that was named on the command line.

    Raises:
        FormatError: it cannot be read, is of no known format, or a field is missing or wrong.
    """
    name, path = named(text)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}; name a result file") from error
    return FORMATS[name or _told_by(path, content)].read(path, content, target)


def _told_by(path: Path, content: bytes) -> str:
    value = _first(path, content)
    if aiperf.summary(value):
        raise FormatError(f"{path}: aiperf's summary has no single requests; name its profile_export.jsonl")
    found = next((name for name, each in FORMATS.items() if each.recognised(value)), None)
    if found is None:
        raise FormatError(f"{path}: of no known format; say which: {', '.join(f'{name}:{path}' for name in FORMATS)}")
    return found


def _first(path: Path, content: bytes) -> Any:
    """Return the file's value, or its first line's where it has one per line."""
    try:
        return decode(path, content)
    except FormatError:
        first = next((line for line in content.splitlines() if line.strip()), b"")
        return decode(path, first, "line 1")


def write(text: str, samples: Sequence[Sample], model: str) -> list[Path]:
    """Write samples in the format that is named, a file for each pool and level; returns the files.

    "vllm:out.json" becomes out.baseline.json and out.speculative.json, or out.baseline.c16.json where there are several levels.

    Raises:
        FormatError: no format is named, or a file cannot be written.
    """
    name, path = named(text)
    if name is None:
        raise FormatError(f"{text}: name the format before the file: {', '.join(f'{each}:{text}' for each in FORMATS)}")
    targets = sorted({sample.target for sample in samples})
    several = len({level_of(target)[1] for target in targets}) > 1
    written = []
    for target in targets:
        pool, level = level_of(target)
        mark = f".c{level}" if several else ""
        place = path.with_name(f"{path.stem}.{pool}{mark}{path.suffix}")
        try:
            calls = [one for one in samples if one.target == target]
            with writing.whole(place) as part:
                FORMATS[name].write(part, calls, concurrency=level, model=model)
        except OSError as error:
            raise FormatError(f"{place}: {error.strerror or error}; nothing else is lost") from error
        written.append(place)
    return written


__all__ = ["FORMATS", "FormatError", "Loaded", "in_pairs", "named", "read", "write"]
