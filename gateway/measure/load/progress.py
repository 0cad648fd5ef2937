"""How far a run is, on standard error: one line drawn again and again on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

REDRAW: Final = 0.25  # seconds, on a terminal
LINE: Final = 10.0  # seconds, elsewhere
_WINDOW: Final = 30.0  # seconds over which the rate is taken
_BAR: Final = 24  # characters
_CLEAR: Final = "\r\x1b[2K"


class Counts(Protocol):
    """What is told of a run: calls that have ended, those of them with errors, those under way, and why it ended early."""

    ended: int
    errors: int
    stopped: str | None

    @property
    def in_flight(self) -> int:
        """Calls under way."""


class Progress:
    """Tells of a run inside an `async with` block; `total` is the number of calls to be sent."""

    def __init__(
        self,
        stream: TextIO,
        run: Counts,
        total: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        line: float = LINE,
    ) -> None:
        self._stream, self._run, self._total, self._clock = stream, run, total, clock
        self._terminal = stream.isatty()
        self._every = REDRAW if self._terminal else line
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tell())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._terminal:
            self._write(_CLEAR)

    def note(self, text: str) -> None:
        """Say something above the line."""
        self._write(f"{_CLEAR}{text}\n" if self._terminal else f"{text}\n")

    def text(self) -> str:
        """Return the line as it is now."""
        run, now = self._run, self._clock()
        self._seen.append((now, run.ended))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW:
            self._seen.popleft()
        since, ended = self._seen[0]
        rate = (run.ended - ended) / (now - since) if now > since else 0.0
        share = run.ended / self._total if self._total else 1.0
        parts = [f"{run.ended:,}/{self._total:,} {share:4.0%}", f"{rate:.1f}/s"]
        if run.stopped is None and rate:
            parts.append(f"ETA {clock_time((self._total - run.ended) / rate)}")
        parts += [f"{run.in_flight} under way", f"{run.errors:,} error{'s' * (run.errors != 1)}"]
        full = round(share * _BAR)
        bar = "█" * full + "░" * (_BAR - full) + "  " if self._terminal else ""
        return bar + "  ".join(parts)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._write(_CLEAR + self.text() if self._terminal else self.text() + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody looks any more, which is no reason to measure no more
            self._terminal = False


def clock_time(seconds: float) -> str:
    """Return seconds as 1:05 or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
