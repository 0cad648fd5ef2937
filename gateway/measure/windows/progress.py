"""How far a sweep is, on standard error: one line drawn again on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

from gateway.measure.load.progress import clock_time
from gateway.measure.load.sample import Sample

_REDRAW: Final = 0.25  # seconds, on a terminal
_LINE: Final = 10.0  # seconds, elsewhere
_CLEAR: Final = "\r\x1b[2K"


class Progress:
    """Hears of each sample and tells of the whole; `total` is the number of calls to be made."""

    def __init__(self, stream: TextIO, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._total, self._clock = stream, total, clock
        self._terminal = stream.isatty()
        self._every = _REDRAW if self._terminal else _LINE
        self._told = clock()
        self._last: float | None = self._told
        self._busy = 0.0  # seconds in which calls were made: engines that start are no part of the rate
        self._ended = self._errors = 0

    def saw(self, sample: Sample) -> None:
        """Count a sample, and tell when it is time."""
        self._ended += 1
        self._errors += not sample.ok
        now = self._clock()
        self._busy += now - self._last if self._last is not None else 0.0
        self._last = now
        if now - self._told >= self._every:
            self._told = now
            self._write(_CLEAR + self.text(sample.target) if self._terminal else self.text(sample.target) + "\n")

    def note(self, text: str) -> None:
        """Say that something else is done before the next call."""
        self._last = None
        self._write(f"{_CLEAR}{text}\n" if self._terminal else f"{text}\n")

    def text(self, target: str) -> str:
        """Return the line as it is now."""
        rate = self._ended / self._busy if self._busy > 0 else 0.0
        parts = [f"{self._ended:,}/{self._total:,}", f"{rate:.1f}/s"]
        if rate:
            parts.append(f"ETA {clock_time(max(0, self._total - self._ended) / rate)}")
        return "  ".join([*parts, f"{self._errors:,} error{'s' * (self._errors != 1)}", target])

    def done(self) -> None:
        """Clear the line."""
        if self._terminal:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody looks any more, which is no reason to measure no more
            self._terminal = False
