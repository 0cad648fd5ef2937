"""Faults on demand: what can go wrong with an engine, chosen by an admin call or by a suffix of the model's name.

| fault | what happens |
|---|---|
| `429`, `500`, `503`, … | that status with vLLM's error object; `retry_after` adds the header |
| `context_length` | 400, the prompt is too long |
| `content_filter` | 400, the prompt is refused by a content filter |
| `prefill` | 400 when the last message is the assistant's own, as some engines refuse to go on from one |
| `reset` | TCP reset before the headers, or after `after_events` events |
| `silent` | the request is read and never answered |
| `slow` | the first token comes `seconds` later |
| `cut` | the connection closes in the middle of the answer, after `after_events` events or half of a JSON body |
| `stall` | the answer stops in the middle and the connection stays open; the sequence keeps its slot |
| `malformed` | an event, or the JSON body, that is no JSON |
| `no_done` | the stream ends, properly framed, without its last event |
| `flap` | down for `seconds`, up for `seconds`, and so on; while down everything is answered with 503, health too |

`count` limits a fault to so many requests. `seconds` limits how long a status fault, `reset`, `silent`, `cut`, … is in force.
As a suffix: `demo@fault=cut,after_events=3` is served as `demo`; with a suffix `count` counts requests of that very name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from gateway.engine.api.refusal import Refusal

_STATUSES = range(400, 600)
NAMED = frozenset(
    "context_length content_filter prefill reset silent slow cut stall malformed no_done flap".split(),
)
_SUFFIX = "@fault="
_OPTIONS = ("count", "seconds", "retry_after", "after_events")
_KINDS = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; raises ValueError when there is no such kind."""

    kind: str
    count: int | None = None
    seconds: float | None = None
    retry_after: float | None = None
    after_events: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in NAMED and not (self.kind.isdigit() and int(self.kind) in _STATUSES):
            raise ValueError(f"fault: expected a status or one of {', '.join(sorted(NAMED))}, got {self.kind!r}")

    @property
    def refusal(self) -> Refusal | None:
        """The error answer that this fault consists in, if it does."""
        if self.kind == "context_length":
            message = "This model's maximum context length was exceeded. Please reduce the length of the input prompt."
            return Refusal(message, param="input_tokens", code="context_length_exceeded")
        if self.kind == "content_filter":
            message = "The prompt was refused by the content filter."
            return Refusal(message, param="prompt", code="content_filter")
        if not self.kind.isdigit():
            return None
        status = int(self.kind)
        headers = [] if self.retry_after is None else [(b"retry-after", f"{self.retry_after:g}".encode())]
        return Refusal(
            f"Injected fault {status}.", status=status, kind=_KINDS.get(status, "InternalServerError"), headers=headers
        )


@dataclass(slots=True)
class _Set:
    fault: Fault
    since: float
    left: int | None


class Faults:
    """The faults in force; the first that is still in force is taken."""

    def __init__(self) -> None:
        self._set: list[_Set] = []
        self._suffixes: dict[str, int] = {}

    def set(self, fault: Fault, now: float) -> None:
        """Put a fault in force, after those that already are."""
        self._set.append(_Set(fault, now, fault.count))

    def clear(self) -> None:
        """Lift all faults."""
        self._set.clear()
        self._suffixes.clear()

    def shown(self) -> list[dict[str, object]]:
        """Return the faults set by admin calls, with what is left of their counts."""
        return [
            {**{one.name: getattr(entry.fault, one.name) for one in fields(Fault)}, "left": entry.left}
            for entry in self._set
        ]

    def down(self, now: float) -> bool:
        """Return whether a flapping engine is in a down period."""
        for entry in self._set:
            if entry.fault.kind == "flap" and int((now - entry.since) / (entry.fault.seconds or 1.0)) % 2 == 0:
                return True
        return False

    def take(self, model: str | None, now: float) -> Fault | None:
        """Return the fault that this request runs into, and count it; raises ValueError for a suffix that is none."""
        if model is not None and _SUFFIX in model:
            fault = parse(model.partition(_SUFFIX)[2])
            used = self._suffixes[model] = self._suffixes.get(model, 0) + 1
            return fault if fault.count is None or used <= fault.count else None
        for entry in self._set:
            fault = entry.fault
            lasting = fault.seconds is None or fault.kind in ("slow", "flap") or now - entry.since < fault.seconds
            if fault.kind != "flap" and lasting and entry.left != 0:
                if entry.left is not None:
                    entry.left -= 1
                return fault
        return None


def parse(text: str) -> Fault:
    """Return the fault written as `kind,name=value,…`; raises ValueError naming what is wrong."""
    kind, *options = text.split(",")
    values: dict[str, float] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _OPTIONS:
            raise ValueError(f"fault: no option {name!r}")
        values[name] = float(value)
    return of({"fault": kind, **values})


def of(body: Mapping[str, object]) -> Fault:
    """Return the fault that a JSON object names; raises ValueError naming what is wrong."""
    unknown = body.keys() - {"fault", *_OPTIONS}
    if unknown:
        raise ValueError(f"fault: no option {min(unknown)!r}")
    count, seconds, retry_after, after = (_number(body, name) for name in _OPTIONS)
    return Fault(
        kind=str(body.get("fault")),
        count=None if count is None else int(count),
        seconds=seconds,
        retry_after=retry_after,
        after_events=None if after is None else int(after),
    )


def _number(body: Mapping[str, object], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError(f"{name}: expected a number that is not negative, got {value!r}")
    return value
