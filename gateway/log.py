"""One structured JSON line per call on standard output, written in batches so that no call waits for a pipe.

No prompt text, unless the operator has switched it on. Control characters cannot break a line: JSON escapes them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.record import Finished

FLUSH_SECONDS = 0.1
_FIELDS = (
    "request_id endpoint tenant model stream status outcome error pool replica attempts reason detail score threshold"
    " break_even expected propensity explored shadow template prompt_tokens completion_tokens usage_source duration"
    " ttft acceptance steps step_seconds source biased slot_seconds cost_usd"
).split()
_DIGITS = 6
_log = logging.getLogger(__name__)


class CallLog:
    """A sink that writes each finished call as one line; `write` gets bytes that hold whole lines."""

    def __init__(self, write: Callable[[bytes], object] | None = None) -> None:
        self._write = write or _to_stdout
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, finished: Finished) -> None:
        """Take one call; it is written within FLUSH_SECONDS."""
        self._lines.append(msgspec.json.encode(_line(finished)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            try:
                self._write(b"\n".join(lines) + b"\n")
            except OSError:  # a closed pipe or a full disk must not stop the gateway
                _log.exception("could not write %d log lines", len(lines))


def _line(finished: Finished) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(finished.time, UTC).isoformat(timespec="milliseconds"),
        "event": "call",
    }
    for name in _FIELDS:
        value = getattr(finished, name)
        if value is not None and value != "":
            line[name] = round(value, _DIGITS) if type(value) is float else value
    if finished.overhead:
        line["overhead"] = {phase: round(seconds, _DIGITS) for phase, seconds in finished.overhead.items()}
    if finished.prompt:
        line["prompt"] = finished.prompt
    return line


def _to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
