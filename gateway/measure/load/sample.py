"""Samples: what each measured call gave, and the files that keep them. A file survives kill -9, full disks and torn lines.

A results file is JSON, one value per line: first a header with the settings of the run, then one sample per call, written
by one write each as soon as the call has ended. When a write fails, what it left of a line is taken back, so that a file
always holds whole lines and a run can go on from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

VERSION: Final = 1
UNANSWERED: Final = ("connect", "timeout", "broken")  # kinds of errors after which the same call is worth another try


class ResultsError(Exception):
    """A results file that cannot be read, written or gone on with; the message names it and says what to do."""


class WrongResults(ResultsError):
    """The file is there and is not what this run may write to."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one measured call gave. Times are seconds, `started` is a Unix time, money is US dollars.

    Attributes:
        line: of the trace, from 1.
        target: the label of the endpoint that was measured.
        pool: the gateway's pool that answered, where a gateway did.
        repeat: 0, 1, … for repetitions of the same line.
        status: the HTTP status, 0 when there was none.
        error: None for a whole answer; else a kind and a detail. `connect: …`: no answer began. `broken: …`: the connection
            ended inside the answer. `timeout: …`, `http 503: …`, `stream: …` (the endpoint's own error event), `malformed: …`.
        ttft_seconds: from sending to the first token; None for answers in one piece.
        e2e_seconds: from sending to the last byte.
        events: events that carried tokens; 0 for answers in one piece.
        acceptance_length: tokens per verification step, from the engine's own metrics or from the events.
        output_sha256: of what was answered, see `answer.Answer.digest`; "" where nothing was.
        late_seconds: how long after its time the call was sent; None where calls have no times.
        reason: why the gateway chose the pool.
        finish: why the answer ended, as the engine says.
    """

    line: int
    id: str
    category: str = ""
    tenant: str = ""
    target: str
    pool: str | None = None
    repeat: int = 0
    started: float
    status: int
    error: str | None = None
    ttft_seconds: float | None = None
    e2e_seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    events: int = 0
    acceptance_length: float | None = None
    acceptance_source: Literal["engine", "events"] | None = None
    cost_usd: float | None = None
    output_sha256: str = ""
    late_seconds: float | None = None
    request_id: str | None = None
    reason: str | None = None
    finish: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there was a whole answer."""
        return self.error is None

    @property
    def answered(self) -> bool:
        """Whether the endpoint had its say, be it a refusal; calls that it had not are sent again on --resume."""
        return self.error is None or not self.error.startswith(UNANSWERED)

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds per output token after the first: (E2E − TTFT)/(tokens − 1); None where there is no such thing."""
        if self.ttft_seconds is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.e2e_seconds - self.ttft_seconds) / (self.completion_tokens - 1)

    @property
    def key(self) -> tuple[str, int, int]:
        """What the sample is of: target, line, repeat. A later sample of the same replaces an earlier one."""
        return self.target, self.line, self.repeat


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a results file; `settings` are those that make samples comparable."""

    draftlane: Literal["samples"]
    version: int
    settings: dict[str, Any]


_encode = msgspec.json.Encoder().encode
_sample = msgspec.json.Decoder(Sample).decode
_header = msgspec.json.Decoder(Header).decode


def read(path: Path) -> tuple[Header, list[Sample]]:
    """Read a results file: of samples of the same call, the last. A last line without an end is passed over.

    Raises:
        ResultsError: the file cannot be read, or a line of it is no sample.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise ResultsError(f"{path}: empty; expected the results of draftlane replay or compare")
    header = _header_of(path, lines[0])
    found: dict[tuple[str, int, int], Sample] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            sample = _sample(line)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise ResultsError(f"{path}: line {number}: no sample ({error}); delete the line and try again") from None
        found.pop(sample.key, None)
        found[sample.key] = sample
    return header, list(found.values())


def _header_of(path: Path, line: bytes) -> Header:
    try:
        header = _header(line)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        raise ResultsError(
            f"{path}: line 1: not the header of a results file of Draftlane; name another file"
        ) from None
    if header.version != VERSION:
        raise WrongResults(f"{path}: written by another version ({header.version}, here {VERSION}); measure anew")
    return header


class Results:
    """A results file that is being written, held by one process; `kept` are the samples that it had before.

    Raises:
        ResultsError: the file exists and `resume` is false, has other settings, is in use, or cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.kept: list[Sample] = []
        self.written = 0
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = os.fstat(self._file).st_size
            self._begin(dict(settings), resume=resume)
        except BlockingIOError:
            self.close()
            raise WrongResults(f"{path}: another process is writing to it; wait for it, or name another file") from None
        except OSError as error:
            self.close()
            raise ResultsError(f"{path}: {error.strerror or error}; nothing was written") from error
        except ResultsError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Results {self.path} {len(self.kept)} kept, {self.written} written>"

    def append(self, sample: Sample) -> None:
        """Write one sample.

        Raises:
            ResultsError: it could not be written; everything before it is in the file, and the file is whole.
        """
        try:
            self._write(sample)
        except OSError as error:
            kept = len(self.kept) + self.written
            raise ResultsError(
                f"{self.path}: {error.strerror or error}; the {kept} samples measured before are kept: "
                "make room and go on with --resume"
            ) from error
        self.written += 1

    def close(self) -> None:
        """Close the file, on the disk as far as the system can tell."""
        if self._file >= 0:
            with contextlib.suppress(OSError):  # pipes and devices have no disk
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _begin(self, settings: dict[str, Any], *, resume: bool) -> None:
        """Write the header, or check the one that is there and mend what a kill has torn."""
        if not self._end:
            self._write(Header(draftlane="samples", version=VERSION, settings=settings))
            return
        if not resume:
            raise WrongResults(f"{self.path}: exists already; go on with --resume, or name another file")
        self._mend()
        if not self._end:
            self._write(Header(draftlane="samples", version=VERSION, settings=settings))
            return
        header, self.kept = read(self.path)
        if differences := sorted(_differences(header.settings, msgspec.to_builtins(settings))):
            raise WrongResults(
                f"{self.path}: holds results of another run ({'; '.join(differences)}); use its settings, or name another file"
            )

    def _mend(self) -> None:
        """Take back a last line without an end."""
        self._end = self.path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, self._end)

    def _write(self, value: Header | Sample) -> None:
        """Write one line, or leave the file as it was."""
        line = memoryview(_encode(value) + b"\n")
        total = len(line)
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += total


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name in there.keys() | here.keys():
        if there.get(name) != here.get(name):
            yield f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"


def weighted_acceptance(samples: Iterable[Sample]) -> float | None:
    """Return tokens per verification step over all samples that tell: the sum of tokens over the sum of steps."""
    told = [(one.completion_tokens, one.acceptance_length) for one in samples if one.completion_tokens]
    pairs = [(tokens, length) for tokens, length in told if tokens and length]
    steps = sum(tokens / length for tokens, length in pairs)
    return sum(tokens for tokens, _ in pairs) / steps if steps else None
