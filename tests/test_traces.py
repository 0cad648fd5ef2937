"""Traces: whose trace a call belongs to, what the engine is told, and spans as OpenTelemetry's own schema wants them."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fakes import ANSWER, reply, scripted
from google.protobuf import json_format
from harness import KEY, config_for, serving, until
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from test_metrics import CALL

from gateway.trace import Trace, begin, onto
from gateway.traces import KEPT, Traces, request

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HERE = Trace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000aa", "00f067aa0ba902b7", sampled=True)
ENDED = replace(
    CALL, trace=HERE, overhead={"parse": 0.001, "score": 0.002, "plan": 0.003, "total": 0.01}, temperature=0.5
)


def begun(*headers: tuple[bytes, bytes], share: float = 1.0) -> Trace:
    """Return where a call with these headers stands, with ids that are not drawn by chance."""
    return begin(headers, share=share, bits=lambda _: 0xAA, chance=lambda: 0.5)


def test_a_callers_trace_goes_on() -> None:
    """The trace's id and the caller's decision about it are kept, and the caller's span is the parent."""
    assert begun((b"traceparent", PARENT)) == HERE
    assert begun((b"traceparent", PARENT[:-1] + b"0"), share=1.0) == dataclasses.replace(HERE, sampled=False)
    assert begun((b"traceparent", PARENT), share=0.0).sampled


def test_without_one_a_trace_begins() -> None:
    """A call without a trace begins one, and a share of those is sampled."""
    assert begun() == Trace("000000000000000000000000000000aa", "00000000000000aa", "", sampled=True)
    assert not begun(share=0.5).sampled


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"00-0-0-0",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT.replace(b"4bf92f3577b34da6a3ce929d0e0e4736", b"0" * 32),
        PARENT.replace(b"00f067aa0ba902b7", b"0" * 16),
        PARENT + b"x",
    ],
)
def test_a_wrong_parent_is_none(wrong: bytes) -> None:
    """What is not as W3C writes it begins a new trace, as do two parents at once."""
    assert begun((b"traceparent", wrong)).parent_id == ""
    assert begun((b"traceparent", PARENT), (b"traceparent", PARENT)).parent_id == ""


def test_a_later_version_may_say_more() -> None:
    """Of a version to come the known part is read."""
    assert begun((b"traceparent", b"01" + PARENT[2:] + b"-more")) == HERE


@given(
    st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate", b"accept"]), st.binary(max_size=60)), max_size=4)
)
def test_reading_is_total(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever a client sends, there is one valid parent for the engine, and other headers stay."""
    place = begun(*headers)
    sent = onto(headers, place)

    assert [value for name, value in sent if name == b"traceparent"] == [place.parent]
    assert begun((b"traceparent", place.parent)).trace_id == place.trace_id
    assert [header for header in sent if header[0] == b"accept"] == [
        header for header in headers if header[0] == b"accept"
    ]


def test_the_engine_is_asked_by_this_span() -> None:
    """The engine's parent is the gateway's span; the caller's tracestate goes along with its own trace only."""
    state = (b"tracestate", b"vendor=1")
    assert onto([(b"traceparent", PARENT), state], HERE) == [state, (b"traceparent", HERE.parent)]
    assert onto([state], dataclasses.replace(HERE, parent_id="")) == [(b"traceparent", HERE.parent)]
    assert HERE.parent == b"00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000aa-01"


def spans_of(told: dict[str, Any]) -> dict[str, Any]:
    """Check a request by OpenTelemetry's own schema and return its spans by name; ids are hex in OTLP's JSON."""

    def rebased(value: Any) -> Any:
        if isinstance(value, list):
            return [rebased(one) for one in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            key: base64.urlsafe_b64encode(bytes.fromhex(one)).decode() if key in ids else rebased(one)
            for key, one in value.items()
        }

    json_format.ParseDict(rebased(told), ExportTraceServiceRequest())
    return {span["name"]: span for span in told["resourceSpans"][0]["scopeSpans"][0]["spans"]}


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def test_a_call_becomes_spans_of_the_convention() -> None:
    """The call's span has the ids that were passed on and GenAI's attributes; score, plan and upstream lie under and in it."""
    spans = spans_of(request([ENDED]))
    own = spans["chat demo"]
    told = attributes(own)

    assert (own["spanId"], own["parentSpanId"], own["kind"]) == (HERE.span_id, HERE.parent_id, 2)
    assert list(spans) == ["chat demo", "score", "plan", "upstream"]
    for name in ("score", "plan", "upstream"):
        assert spans[name]["parentSpanId"] == HERE.span_id
        assert int(own["startTimeUnixNano"]) <= int(spans[name]["startTimeUnixNano"])
        assert (
            int(spans[name]["startTimeUnixNano"]) <= int(spans[name]["endTimeUnixNano"]) <= int(own["endTimeUnixNano"])
        )
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "demo"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == ("40", "101")
    assert told["gen_ai.request.temperature"] == 0.5
    assert "error.type" not in told
    assert attributes(spans["plan"])["draftlane.reason"] == "predictable"
    assert spans["upstream"]["events"][0]["name"] == "first byte"
    assert attributes(spans_of(request([replace(ENDED, endpoint="completions")]))["text_completion demo"])


def test_a_failed_call_is_a_failed_span() -> None:
    """Errors have their type and status; a call that reached no pool has no upstream."""
    refused = replace(
        ENDED, outcome="rejected", error="rate_limit_exceeded", status=429, pool="", overhead={}, model=""
    )
    spans = spans_of(request([refused]))

    assert list(spans) == ["chat"]
    assert spans["chat"]["status"] == {"code": 2}
    assert attributes(spans["chat"])["error.type"] == "rate_limit_exceeded"


@asynccontextmanager
async def collector(status: int = 200) -> AsyncIterator[tuple[str, list[Any]]]:
    """Listen as a collector would; yield its address and what was posted to /v1/traces."""
    posted: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert head.startswith(b"POST /v1/traces ")
        posted.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", posted


async def test_client_gateway_and_engine_share_one_trace() -> None:
    """The engine gets the gateway's span as parent, and the collector the gateway's span with the client's as parent."""
    async with collector() as (address, posted), scripted([reply(ANSWER)]) as engine:
        config = config_for({"base": [engine.url]}, server={"traces": address})
        async with serving(config) as gateway, httpx.AsyncClient() as client:
            body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
            headers = {"authorization": f"Bearer {KEY}", "traceparent": PARENT.decode()}
            await client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
            (finished,) = await gateway.settled(1)
        spans = spans_of(posted[0])

    assert finished.trace is not None
    sent = engine.seen[-1].header("traceparent")
    assert sent == finished.trace.parent.decode()
    assert sent.split("-")[1] == PARENT.decode().split("-")[1]
    assert sent.split("-")[2] == spans["chat demo"]["spanId"]
    assert spans["chat demo"]["parentSpanId"] == "00f067aa0ba902b7"


async def test_what_is_not_sampled_is_not_sent() -> None:
    """A caller that has decided against its trace is taken at its word, and so are calls without a trace."""
    async with collector() as (address, posted):
        traces = Traces(address)
        traces(replace(ENDED, trace=dataclasses.replace(HERE, sampled=False)))
        traces(replace(ENDED, trace=None))
        await traces.stop()

    assert posted == []


@pytest.mark.parametrize("status", [503, 0])
async def test_a_collector_that_is_away_costs_no_memory_and_no_call(status: int) -> None:
    """What cannot be sent, or waits beyond measure, is dropped and counted; later calls are sent again."""
    async with collector(503) as (refusing, _), collector() as (willing, posted):
        traces = Traces(refusing if status else "http://127.0.0.1:9")
        for _ in range(KEPT + 10):
            traces(ENDED)
        assert traces.dropped == 10
        await traces.flush()
        assert traces.dropped == KEPT + 10
        traces._url = f"{willing}/v1/traces"
        traces(ENDED)
        await traces.stop()

    assert len(posted) == 1
    assert traces.dropped == 0


async def test_spans_are_sent_while_the_gateway_runs() -> None:
    """Nobody has to wait for the end of the gateway."""
    async with collector() as (address, posted):
        traces = Traces(address)
        traces.start()
        traces(ENDED)
        await until(lambda: posted)
        await traces.stop()
