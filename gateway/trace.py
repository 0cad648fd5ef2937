"""Where a call stands in a trace: W3C Trace Context read from a client and written to an engine. Pure.

Without tracing a client's `traceparent` passes through as it came. With it the engine's spans become children of the
gateway's, whose own span is made when the call has ended (see `traces`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.headers import Header, Headers, values, without

_PARENT: Final = b"traceparent"
# version, trace id, parent id, flags; a later version may have more behind a dash. ff is no version.
_FORM: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NOTHING: Final = re.compile(rb"0+")


@dataclass(frozen=True, slots=True)
class Trace:
    """The ids of one call's span, hex; `parent_id` is "" where the trace begins here."""

    trace_id: str
    span_id: str
    parent_id: str
    sampled: bool

    @property
    def parent(self) -> bytes:
        """The traceparent for whoever is asked next."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}".encode()


def begin(headers: Headers, *, share: float, bits: Callable[[int], int], chance: Callable[[], float]) -> Trace:
    """Go on with the caller's trace, sampled as it says, or begin one, of which `share` are sampled.

    `bits` draws a number of so many bits; `chance` draws from [0, 1).
    """
    span_id = f"{bits(64) or 1:016x}"
    found = [match for value in values(headers, _PARENT) if (match := _FORM.fullmatch(value))]
    if len(found) == 1 and not any(_NOTHING.fullmatch(found[0][group]) for group in (1, 2)):
        flags = int(found[0][3], 16)
        return Trace(found[0][1].decode(), span_id, found[0][2].decode(), bool(flags & 1))
    return Trace(f"{bits(128) or 1:032x}", span_id, "", chance() < share)


def onto(headers: Headers, trace: Trace) -> list[Header]:
    """Return headers with this span as parent; tracestate belongs to the caller's trace and goes with it only."""
    dropped = {_PARENT} if trace.parent_id else {_PARENT, b"tracestate"}
    return [*without(headers, dropped, ()), (_PARENT, trace.parent)]
