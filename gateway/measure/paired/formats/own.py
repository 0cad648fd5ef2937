"""Results files of `draftlane replay --out`: two of them, of the same trace, are pairs by its lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.measure.load.sample import Results, ResultsError, Sample
from gateway.measure.load.sample import read as read_results
from gateway.measure.paired.formats.fields import FormatError, Loaded


def recognised(value: object) -> bool:
    """Whether the first line's JSON value is the header of such a file."""
    return isinstance(value, dict) and value.get("draftlane") == "samples"


def read(path: Path, content: bytes, target: str) -> Loaded:  # noqa: ARG001 - one form for all formats
    """Read a file of one endpoint.

    Raises:
        FormatError: it is none, or has calls of several endpoints.
    """
    try:
        header, samples = read_results(path)
    except ResultsError as error:
        raise FormatError(str(error)) from None
    targets = sorted({sample.target for sample in samples})
    if len(targets) != 1:
        raise FormatError(f"{path}: calls of {', '.join(targets) or 'nothing'}; a file of one endpoint is needed here")
    settings: dict[str, Any] = header.settings
    return Loaded(
        path=path,
        format="draftlane",
        samples=tuple(msgspec.structs.replace(sample, target=target) for sample in samples),
        keyed="id" if settings.get("trace_sha256") else "",
        trace=settings.get("trace_sha256"),
    )


def write(path: Path, samples: Sequence[Sample], *, concurrency: int | None, model: str) -> None:
    """Write one pool's samples.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with Results(path, {"command": "compare", "concurrency": concurrency, "model": model}) as results:
            for sample in samples:
                results.append(sample)
    except ResultsError as error:
        raise OSError(str(error)) from error
