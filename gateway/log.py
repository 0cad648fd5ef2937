"""One structured JSON line per call on standard output, written in batches so that no call waits for a pipe.

No prompt text, unless the operator has switched it on. Control characters cannot break a line: JSON escapes them, and of a
prompt also those beyond ASCII, that terminals obey and other readers take for the end of a line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.record import Finished

FLUSH_SECONDS = 0.1
_FACTS = (
    "request_id endpoint tenant model stream status outcome error pool replica resumed_from attempts reason detail"
    " explored shadow template prompt_tokens completion_tokens usage_source source biased"
).split()
_NUMBERS = (
    "score threshold break_even expected propensity duration ttft acceptance steps step_seconds slot_seconds cost_usd"
).split()
_UNKNOWN = {name: None if name == "error" else "" for name in _FACTS}
_Line = msgspec.defstruct(  # encoding a struct takes a third of what filling and encoding a dict does
    "_Line",
    [
        ("time", datetime),
        ("event", str),
        *((name, Any, unknown) for name, unknown in _UNKNOWN.items()),
        *((name, Any, None) for name in (*_NUMBERS, "overhead", "prompt")),
    ],
    omit_defaults=True,
)
_encode = msgspec.json.Encoder().encode
# C1 controls, line and paragraph separators, marks of writing direction
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_log = logging.getLogger(__name__)


class CallLog:
    """A sink that writes each finished call as one line; `write` gets bytes that hold whole lines."""

    __slots__ = ("_calls", "_timer", "_write")

    def __init__(self, write: Callable[[bytes], object] | None = None) -> None:
        self._write = write or _to_stdout
        self._calls: list[Finished] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, finished: Finished) -> None:
        """Take one call; it is written within FLUSH_SECONDS, with others, as code that is at hand costs half."""
        self._calls.append(finished)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, []
        if calls:
            lines = [_encoded(call) for call in calls]
            try:
                self._write(b"\n".join(lines) + b"\n")
            except OSError:  # a closed pipe or a full disk must not stop the gateway
                _log.exception("could not write %d log lines", len(lines))


def _encoded(call: Finished) -> bytes:
    line = _encode(_line(call))
    return _told(line) if call.prompt and not line.isascii() else line


def _told(line: bytes) -> bytes:
    """Return a line with its unseen characters escaped."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def _line(call: Finished) -> msgspec.Struct:
    """Return the call as it is logged: what is unknown or empty is left out, numbers have six decimals.

    Each attribute is named in the order of `_FACTS` and `_NUMBERS`, as what is named in compiled code is found at once.
    """
    facts = (
        call.request_id, call.endpoint, call.tenant, call.model, call.stream, call.status, call.outcome, call.error,
        call.pool, call.replica, call.resumed_from, call.attempts, call.reason, call.detail, call.explored, call.shadow,
        call.template, call.prompt_tokens, call.completion_tokens, call.usage_source, call.source, call.biased,
    )  # fmt: skip
    numbers = (
        call.score, call.threshold, call.break_even, call.expected, call.propensity, call.duration, call.ttft,
        call.acceptance, call.steps, call.step_seconds, call.slot_seconds, call.cost_usd,
    )  # fmt: skip
    return _Line(
        datetime.fromtimestamp(call.time, UTC),
        "call",
        *facts,
        *micros(numbers),
        {phase: micros((seconds,))[0] for phase, seconds in call.overhead.items()} or None,
        call.prompt or None,
    )


def _to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def plain_micros(numbers: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Return numbers with six decimals; None and nought as they are. `round` takes three times as long."""
    return tuple([number and (number * 1e6 + 0.5) // 1 / 1e6 for number in numbers])


try:
    from gateway._native import micros
except ImportError:  # no C compiler where the package was installed
    micros = plain_micros
