"""Traces of finished calls for OpenTelemetry: spans by its conventions for generative AI, sent as OTLP over HTTP in JSON.

A sink: spans are made from the record of a call after it has ended, so that a call pays for an append only. What cannot be
sent is dropped and counted, for a collector that is away must cost no memory and no call.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx

from gateway.loop import Loop
from gateway.record import Finished
from gateway.trace import Trace
from gateway.version import version

FLUSH_SECONDS: Final = 2.0
KEPT: Final = 2048  # calls that wait to be sent
TIMEOUT_SECONDS: Final = 5.0
_OPERATIONS: Final[Mapping[str, str]] = {"completions": "text_completion"}  # the others are chat
_SERVER, _CLIENT, _INTERNAL = 2, 3, 1  # SpanKind of OTLP
_ERROR: Final = {"code": 2}
_log = logging.getLogger(__name__)


class Traces(Loop):
    """Sends the spans of sampled calls to a collector's address, such as http://127.0.0.1:4318."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(self._again, pause_seconds=FLUSH_SECONDS)
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._client = httpx.AsyncClient(timeout=TIMEOUT_SECONDS)
        self._waiting: deque[Finished] = deque(maxlen=KEPT)
        self.dropped = 0

    def __call__(self, finished: Finished) -> None:
        """Take a finished call."""
        if finished.trace is not None and finished.trace.sampled:
            self.dropped += len(self._waiting) == KEPT
            self._waiting.append(finished)

    async def stop(self) -> None:
        """Send what waits, once, and end."""
        await super().stop()
        await self.flush()
        await self._client.aclose()

    async def flush(self) -> None:
        """Send what waits; a collector that does not take it gets it no second time."""
        calls = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not calls:
            return
        try:
            answer = await self._client.post(self._url, json=request(calls))
            answer.raise_for_status()
        except httpx.HTTPError as error:
            if not self.dropped:
                _log.warning("traces cannot be sent to %s and are dropped: %r", self._url, error)
            self.dropped += len(calls)
        else:
            self.dropped = 0

    async def _again(self) -> float:
        await self.flush()
        return FLUSH_SECONDS


def request(calls: list[Finished]) -> dict[str, Any]:
    """Return an OTLP ExportTraceServiceRequest in its JSON form."""
    resource = {"service.name": "draftlane", "service.version": version()}
    spans = [span for call in calls if call.trace is not None for span in _spans(call, call.trace)]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": "draftlane", "version": version()}, "spans": spans}],
            }
        ]
    }


def _spans(call: Finished, trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the call's own span and its parts: score, plan, and the engine's answer with its first token."""
    begin, end = call.time, call.time + call.duration
    operation = _OPERATIONS.get(call.endpoint, "chat")
    name = f"{operation} {call.model}" if call.model else operation
    own = {"spanId": trace.span_id, "parentSpanId": trace.parent_id}
    yield _span(trace, name, _SERVER, (begin, end), _of_call(call, operation), call) | own
    at = begin + call.overhead.get("parse", 0.0)
    for phase in ("score", "plan"):
        if (seconds := call.overhead.get(phase)) is not None:
            told = {"draftlane.score": call.score} if phase == "score" else _of_plan(call)
            yield _span(trace, phase, _INTERNAL, (at, at + seconds), told)
            at += seconds
    if call.pool:
        sent = min(end, begin + call.overhead.get("total", at - begin))
        span = _span(trace, "upstream", _CLIENT, (sent, end), _of_engine(call), call)
        if call.ttft is not None:
            span["events"] = [{"timeUnixNano": _nanoseconds(begin + call.ttft), "name": "first byte"}]
        yield span


def _span(
    trace: Trace,
    name: str,
    kind: int,
    times: tuple[float, float],
    told: Mapping[str, object],
    call: Finished | None = None,
) -> dict[str, Any]:
    """Return a span under the call's own; with a `call` it fails as that does."""
    span: dict[str, Any] = {
        "traceId": trace.trace_id,
        "spanId": f"{random.getrandbits(64) or 1:016x}",
        "parentSpanId": trace.span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(times[0]),
        "endTimeUnixNano": _nanoseconds(times[1]),
        "attributes": _attributes(told),
    }
    if call is not None and call.outcome != "ok":
        span["status"] = _ERROR
    return span


def _of_call(call: Finished, operation: str) -> dict[str, object]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": call.model,
        "gen_ai.request.temperature": call.temperature,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.completion_tokens,
        "http.response.status_code": call.status,
        "error.type": None if call.outcome == "ok" else call.error or call.outcome,
        "draftlane.request_id": call.request_id,
        "draftlane.tenant": call.tenant,
        "draftlane.cost_usd": call.cost_usd,
        "draftlane.acceptance_length": call.acceptance,
    }


def _of_plan(call: Finished) -> dict[str, object]:
    return {
        "draftlane.reason": call.reason,
        "draftlane.threshold": call.threshold,
        "draftlane.break_even": call.break_even,
        "draftlane.expected_acceptance_length": call.expected,
        "draftlane.explored": call.explored,
    }


def _of_engine(call: Finished) -> dict[str, object]:
    return {
        "draftlane.pool": call.pool,
        "draftlane.replica": call.replica,
        "draftlane.attempts": call.attempts,
        "gen_ai.response.model": call.model,
    }


def _attributes(told: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's form; what is unknown or empty is left out."""
    found = []
    for key, value in told.items():
        if isinstance(value, bool):
            found.append({"key": key, "value": {"boolValue": value}})
        elif isinstance(value, int):
            found.append({"key": key, "value": {"intValue": str(value)}})
        elif isinstance(value, float):
            found.append({"key": key, "value": {"doubleValue": value}})
        elif value:
            found.append({"key": key, "value": {"stringValue": str(value)}})
    return found


def _nanoseconds(time: float) -> str:
    return str(round(time * 1e9))
