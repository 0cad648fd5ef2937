"""Traces, samples and the measured call: every line read or named, every failure told, every figure the engine's own."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    CLOSE,
    DONE,
    END,
    RESET,
    ROLE,
    SILENCE,
    SSE_HEAD,
    USAGE,
    chunk,
    delta,
    event,
    refusal,
    reply,
    scripted,
    sse,
)
from harness import KEY, config_for, serving
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine import EngineSettings, serve
from gateway.measure.load.answer import Answer
from gateway.measure.load.sample import Results, ResultsError, Sample, read, weighted_acceptance
from gateway.measure.load.sending import Endpoint, Timeouts, measure, open_client
from gateway.measure.load.trace import Request, TraceError
from gateway.measure.load.trace import parse as parse_trace
from gateway.measure.load.trace import read as read_trace

COUNTING = {"messages": [{"role": "user", "content": "Count from 1 to 100."}], "max_tokens": 60, "temperature": 0}


def request(body: Mapping[str, Any] = COUNTING, path: str = "/v1/chat/completions", **fields: Any) -> Request:
    """Return a request of model "demo"."""
    return Request(**{"line": 1, "id": "one", "path": path, "body": {"model": "demo", **body}, **fields})


async def measured(url: str, *, stream: bool = True, body: Mapping[str, Any] = COUNTING, **fields: Any) -> Sample:
    """Return what one call to an endpoint gave."""
    path = fields.pop("path", "/v1/chat/completions")
    async with open_client() as client:
        endpoint = Endpoint(name="here", url=url, **fields)
        return await measure(client, endpoint, request(body, path), stream=stream)


def lines(*values: Any) -> list[bytes]:
    """Return values as the lines of a trace; bytes are taken as they are."""
    return [(value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n" for value in values]


# --- traces ---


def test_every_shape_of_line_becomes_a_request() -> None:
    """Strings and prompts become a user's message; OpenAI bodies and batch lines stay what they are."""
    batch = {"custom_id": "b7", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
    found = list(
        parse_trace(
            lines(
                "Hello",
                {"prompt": "Hi", "max_tokens": 5, "category": "chat"},
                {"model": "m", "messages": [{"role": "user", "content": "a"}], "id": 7},
                {"model": "m", "prompt": ["a", "b"]},
                {"model": "m", "input": "a", "tenant": "acme"},
                batch,
                {"body": {"messages": [{"role": "user", "content": "a"}]}},
            )
        )
    )

    assert [one.path.removeprefix("/v1/") for one in found] == [
        *["chat/completions"] * 3,
        *["completions", "responses", "completions", "chat/completions"],
    ]
    assert found[0].body == {"messages": [{"role": "user", "content": "Hello"}]}
    assert found[1].body == {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    assert [one.id for one in found] == ["line-1", "line-2", "7", "line-4", "line-5", "b7", "line-7"]
    assert (found[1].category, found[4].tenant, found[5].body) == ("chat", "acme", {"model": "m", "prompt": "x"})
    assert "id" not in found[2].body


def test_times_count_from_the_first() -> None:
    """ISO 8601, seconds and milliseconds are read, whatever the field's name; lines without one have none."""
    stamps = [
        {"timestamp": "2026-11-01T10:00:00Z"},
        {"at": "2026-11-01T11:00:01.5+01:00"},
        {"created": 1793527202},
        {"timestamp": 1793527203000},
        {},
    ]
    found = parse_trace(lines(*({"prompt": "x", **stamp} for stamp in stamps)))

    assert [one.at for one in found] == [0, 1.5, 2, 3, None]


def test_a_model_overrides_and_defaults_fill() -> None:
    """The model given is everybody's, and a default yields to what a line says."""
    found = list(
        parse_trace(lines({"prompt": "x", "max_tokens": 3}, "y"), model="mine", defaults={"max_tokens": 9, "seed": 1})
    )

    assert [(one.body["model"], one.body["max_tokens"], one.body["seed"]) for one in found] == [
        ("mine", 3, 1),
        ("mine", 9, 1),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "x"', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ([1], "a JSON list"),
        ({}, "no messages, prompt, input or body"),
        ({"messages": []}, "messages: expected a list of at least one"),
        ({"prompt": 3}, "prompt: expected a text"),
        ({"prompt": ""}, "prompt: expected a text"),
        ({"body": []}, "body: a JSON list"),
        ({"body": {}, "method": "GET"}, "method: expected POST"),
        ({"body": {}, "url": "https://elsewhere/v1"}, "url: expected a path"),
        ({"prompt": "x", "category": ["a"]}, "category: expected a name, got a JSON list"),
        ({"prompt": "x", "timestamp": "yesterday"}, "timestamp: expected ISO 8601"),
        ({"prompt": "x", "at": True}, "at: expected ISO 8601"),
    ],
)
def test_a_bad_line_is_named(line: Any, said: str) -> None:
    """The message begins with the line's number, says what is wrong and what was expected."""
    with pytest.raises(TraceError, match=f"^line 1731: .*{said}") as caught:
        list(parse_trace(lines(*["x"] * 1730, line, "y")))

    assert caught.value.line == 1731
    bad: list[TraceError] = []
    assert len(list(parse_trace(lines("x", line, "y"), on_bad=bad.append))) == 2
    assert [one.line for one in bad] == [2]


@given(st.binary(max_size=80))
def test_no_line_breaks_the_reader(line: bytes) -> None:
    """Whatever bytes a line holds, it is read or reported."""
    bad: list[TraceError] = []
    found = list(parse_trace([line], on_bad=bad.append))

    assert len(found) + len(bad) <= 1


def test_files_may_be_packed_marked_and_spaced(tmp_path: Path) -> None:
    """gzip, a byte order mark, CRLF and blank lines change nothing but line numbers; a missing file is named."""
    text = b'\xef\xbb\xbf"a"\r\n\r\n"b"'
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text))
    (tmp_path / "torn").write_bytes(gzip.compress(b'"a"\n' * 99_999)[:-20])

    assert [one.line for one in read_trace(tmp_path / "plain")] == [1, 3]
    assert list(read_trace(tmp_path / "packed")) == list(read_trace(tmp_path / "plain"))
    for name in ("torn", "missing"):
        with pytest.raises(TraceError, match=f"{name}: .*; name a file that can be read"):
            list(read_trace(tmp_path / name))


def test_standard_input_is_a_trace() -> None:
    """A dash reads what is piped in."""
    program = "from gateway.measure.load.trace import read; print([one.line for one in read('-')])"
    done = subprocess.run([sys.executable, "-c", program], input=b'"a"\n"b"\n', capture_output=True, check=True)

    assert done.stdout == b"[1, 2]\n"


# --- measured calls ---


@pytest.mark.parametrize("kind", ["baseline", "speculative"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_a_stream_is_measured(kind: Any, path: str) -> None:
    """Tokens, TTFT, TPOT, acceptance and the answer's digest, on every endpoint and both kinds of engine."""
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "Count from 1 to 100.", "max_tokens": 60, "temperature": 0},
        "responses": {"input": "Count from 1 to 100.", "max_output_tokens": 60, "temperature": 0},
    }
    body = bodies.get(path, COUNTING)
    async with serve(EngineSettings(kind=kind, speed=200)) as engine:
        sample = await measured(engine.url, body=body, path=f"/v1/{path}")
        whole = await measured(engine.url, body=body, path=f"/v1/{path}", stream=False)
        twice = await measured(engine.url, body=body, path=f"/v1/{path}")

    assert (sample.status, sample.error, sample.completion_tokens) == (200, None, 60)
    assert sample.ttft_seconds is not None
    assert 0 < sample.ttft_seconds < sample.e2e_seconds
    assert sample.tpot_seconds == pytest.approx((sample.e2e_seconds - sample.ttft_seconds) / 59)
    assert sample.acceptance_source == "events"
    assert sample.acceptance_length is not None
    assert sample.acceptance_length > 2 if kind == "speculative" else sample.acceptance_length == 1
    assert sample.output_sha256 == twice.output_sha256 == whole.output_sha256 != sha256(b"").hexdigest()
    assert (whole.ttft_seconds, whole.tpot_seconds, whole.events, whole.acceptance_length) == (None, None, 0, None)
    assert whole.completion_tokens == 60


async def test_the_engines_own_metrics_come_first() -> None:
    """M = tokens/(tokens − accepted) where the engine tells, in both modes, and it agrees with the events."""
    async with serve(EngineSettings(kind="speculative", speed=200, per_request_metrics=True)) as engine:
        streamed = await measured(engine.url)
        whole = await measured(engine.url, stream=False)

    assert streamed.acceptance_source == whole.acceptance_source == "engine"
    assert streamed.acceptance_length == whole.acceptance_length
    assert streamed.acceptance_length == pytest.approx(59 / (streamed.events - 1), rel=0.1)


async def test_a_gateway_tells_its_pool() -> None:
    """Pool, reason and request id are read from a gateway's headers, its key is sent, and the price is by slot-second."""
    async with (
        serve(EngineSettings(speed=200)) as engine,
        serving(config_for({"base": [engine.url]})) as gateway,
    ):
        sample = await measured(gateway.url + "/v1/", key=KEY, price_per_hour=36.0, slots=4)

    assert (sample.pool, sample.error) == ("base", None)
    assert sample.reason
    assert sample.request_id
    assert sample.cost_usd == pytest.approx(36 / 4 / 3600 * sample.e2e_seconds)
    assert "sk-" not in repr(Endpoint(name="a", url="b", key=KEY))


async def test_what_is_sent() -> None:
    """A stream asks for its usage beside the client's own options; an answer in one piece asks for neither."""
    async with scripted([reply({"choices": []})]) as engine:
        await measured(engine.url, body={"stream_options": {"continuous_usage_stats": True}, "top_k": 3}, model="mine")
        await measured(engine.url, body={"stream": True, "stream_options": {}}, stream=False, headers=(("x-a", "b"),))
        await measured(engine.url, body={"input": "a"}, path="/v1/responses")
        first, second, third = engine.seen

    assert first.json == {
        "model": "mine",
        "top_k": 3,
        "stream": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    }
    assert (second.json, second.header("x-a")) == ({"model": "demo"}, "b")
    assert third.json == {"model": "demo", "input": "a", "stream": True}


BEGUN = (SSE_HEAD, chunk(ROLE), chunk(delta("a")))
ERROR_EVENT = event(error={"message": "out of memory", "type": "x", "param": None, "code": 500})


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ([refusal("no such model", 404)], 404, "http 404: no such model"),
        ([reply(b"<html>busy</html>", 503)], 503, "http 503: <html>busy</html>"),
        ([reply(b"", 302, {"location": "/elsewhere"})], 302, "http 302: "),
        ([CLOSE], 0, "connect: Server disconnected"),
        ([RESET], 0, "connect: "),
        ([b"SSH-2.0-OpenSSH\r\n", CLOSE], 0, "connect: "),
        ([*BEGUN, CLOSE], 200, "broken: "),
        ([*BEGUN, RESET], 200, "broken: "),
        ([*BEGUN, END], 200, "broken: the stream ended before the answer did"),
        ([reply(b'{"choices": [', 200, {"content-length": "99"}), CLOSE], 200, "broken: "),
        ([*sse(ROLE, delta("a"), ERROR_EVENT, DONE)], 200, "stream: out of memory"),
        ([*sse(ROLE, b'data: {"choices": [{\n\n', DONE)], 200, "malformed: "),
        ([*sse(ROLE, event(choices=3), DONE)], 200, "malformed: "),
        ([reply(b'{"choices": [')], 200, "malformed: "),
        ([reply(b"[]")], 200, "malformed: "),
    ],
)
async def test_what_fails_is_told(script: list[Any], status: int, said: str) -> None:
    """An endpoint's failure is a sample that says what happened; nothing is raised and no answer is claimed."""
    async with scripted(script) as engine:
        sample = await measured(engine.url)

    assert (sample.status, sample.output_sha256, sample.acceptance_length) == (status, "", None)
    assert sample.error is not None
    assert sample.error.startswith(said)
    assert sample.answered == said.startswith(("http", "stream", "malformed"))
    assert sample.e2e_seconds > 0


async def test_endpoints_that_are_not_there_or_say_nothing() -> None:
    """A refused connection, a name without an address, an impossible URL and silence are told too."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = await measured(f"http://127.0.0.1:{unused.getsockname()[1]}")
    nonsense = [
        await measured(url) for url in ("http://no-such-host.invalid", "ftp://x", "http://[", "", "http://\x00")
    ]
    async with scripted([SILENCE]) as engine, open_client() as client:
        here = Endpoint(name="here", url=engine.url)
        silent = await measure(client, here, request(), timeouts=Timeouts(silence=0.05))
        endless = await measure(client, here, request(), timeouts=Timeouts(total=0.05))

    assert [one.status for one in (refused, *nonsense, silent, endless)] == [0] * 8
    assert all(one.error and one.error.startswith("connect: ") for one in (refused, *nonsense))
    assert (silent.error, endless.error) == ("timeout: silent for 0.05 s", "timeout: no end after 0.05 s")


async def test_a_cancelled_call_is_cancelled() -> None:
    """Ctrl-C is nobody's failure: it passes, and the engine sees the client leave."""
    async with scripted([SILENCE]) as engine:
        task = asyncio.create_task(measured(engine.url))
        while not engine.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not engine.seen[0].left:
            await asyncio.sleep(0.01)


async def test_calls_are_sent_in_turn() -> None:
    """A call's clock begins when it is its turn to be sent, and its turn ends before the answer comes."""
    async with scripted([SILENCE], sse(ROLE, delta("a", finish="stop"), DONE)) as engine, open_client() as client:
        here = Endpoint(name="here", url=engine.url)
        await client.turn.acquire()
        silent = asyncio.create_task(measure(client, here, request(), timeouts=Timeouts(silence=5.0)))
        await asyncio.sleep(0.05)
        assert engine.seen == []
        released = time.time()
        client.turn.release()
        while not engine.seen:
            await asyncio.sleep(0.01)
        answered = await measure(client, here, request())
        await engine.stop()
        first = await silent

    assert first.started >= released
    assert first.error is not None
    assert answered.error is None
    assert not client.turn.locked()


async def test_the_first_token_is_not_the_role() -> None:
    """A role that is sent at once, before there is a token, is not the first token; a comment neither."""
    slow = [SSE_HEAD, chunk(b": alive\n\n"), chunk(ROLE), 0.3, chunk(delta("a")), chunk(USAGE), chunk(DONE), END]
    async with scripted(slow) as engine:
        sample = await measured(engine.url)

    assert sample.ttft_seconds is not None
    assert sample.ttft_seconds > 0.2
    assert (sample.events, sample.completion_tokens) == (1, 6)


async def test_swallowed_events_teach_no_acceptance() -> None:
    """Where a parser merges events, or several choices share a stream, nothing is said about steps."""
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
    called = event(choices=[{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}])
    async with scripted(sse(ROLE, called, USAGE, DONE), sse(ROLE, *[delta("a")] * 4, USAGE, DONE)) as engine:
        swallowed = await measured(engine.url)
        several = await measured(engine.url, body={**COUNTING, "n": 2})

    assert (swallowed.error, swallowed.acceptance_length, swallowed.finish) == (None, None, "tool_calls")
    assert (several.error, several.acceptance_length) == (None, None)


def test_tool_calls_count_by_value() -> None:
    """The digest of a call is the same streamed in pieces or whole, whatever the spaces and the order of its keys."""
    streamed, whole, other = (Answer("chat") for _ in range(3))
    for call in ({"name": "f", "arguments": '{"a": 1,'}, {"arguments": ' "b": [2]}'}):
        piece = {"index": 0, "function": call}
        streamed.events(event(choices=[{"index": 0, "delta": {"tool_calls": [piece]}}]))
    for answer, arguments in ((whole, '{"b":[2],"a":1}'), (other, '{"b":[2],"a":2}')):
        calls = [{"function": {"name": "f", "arguments": arguments}}]
        answer.body(json.dumps({"choices": [{"index": 0, "message": {"content": None, "tool_calls": calls}}]}).encode())

    assert streamed.digest == whole.digest != other.digest


def test_the_digest_of_text_is_the_texts() -> None:
    """Anybody can check it: it is the SHA-256 of the text; reasoning and further choices change it."""
    plain, thinking = Answer("chat"), Answer("chat")
    plain.events(delta("Grü") + delta("ße") + DONE)
    thinking.events(event(choices=[{"delta": {"reasoning_content": "Hm"}}]) + delta("Grüße"))

    assert plain.digest == sha256("Grüße".encode()).hexdigest() != thinking.digest


# --- results files ---


def sample(line: int = 1, **fields: Any) -> Sample:
    """Return a sample of one line."""
    found: dict[str, Any] = {"id": "a", "target": "here", "started": 1.0, "status": 200, "e2e_seconds": 1.0}
    return Sample(line=line, **{**found, **fields})


def test_results_come_back(tmp_path: Path) -> None:
    """What was written is read, of the same call the last; a run goes on only with its own settings."""
    path = tmp_path / "results.jsonl"
    with Results(path, {"rate": 4}) as results:
        for one in (sample(1, error="connect: x", status=0), sample(2), sample(1), sample(1, target="there")):
            results.append(one)
    header, found = read(path)

    assert header.settings == {"rate": 4}
    assert found == [sample(2), sample(1), sample(1, target="there")]
    with Results(path, {"rate": 4}, resume=True) as again:
        assert again.kept == found
        with pytest.raises(ResultsError, match="another process is writing"):
            Results(path, {"rate": 4}, resume=True)
    with pytest.raises(ResultsError, match="exists already; go on with --resume"):
        Results(path, {"rate": 4})
    with pytest.raises(ResultsError, match=r"another run \(rate: 4 there, 5 here\)"):
        Results(path, {"rate": 5}, resume=True)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_torn_line_is_mended(tmp_path: Path, kept: int) -> None:
    """Wherever a kill cuts the last line, readers pass it over and resuming takes it back."""
    path = tmp_path / "results.jsonl"
    with Results(path, {}) as results:
        for line in range(2):
            results.append(sample(line))
    whole = path.read_bytes().splitlines(keepends=True)
    for cut in (1, len(whole[kept]) - 1):
        path.write_bytes(b"".join(whole[:kept]) + whole[kept][:cut])
        if kept:
            assert len(read(path)[1]) == kept - 1
        with Results(path, {}, resume=True) as again:
            assert len(again.kept) == max(kept - 1, 0)
            again.append(sample(9))
        assert [one.line for one in read(path)[1]] == [*range(kept - 1), 9]


def test_bad_results_are_named(tmp_path: Path) -> None:
    """Files that are none of ours, of another version, with a broken line in their middle, or missing."""
    path = tmp_path / "r"
    header = b'{"draftlane":"samples","version":1,"settings":{}}\n'
    for content, said in (
        (b"", "empty"),
        (b'{"a": 1}\n', "line 1: not the header"),
        (header.replace(b":1,", b":9,"), r"written by another version \(9"),
        (header + b'{"line": "x"}\n' + header, "line 2: no sample"),
    ):
        path.write_bytes(content)
        with pytest.raises(ResultsError, match=f"{path}: {said}"):
            read(path)
    with pytest.raises(ResultsError, match="No such file"):
        read(tmp_path / "missing")
    with pytest.raises(ResultsError, match="Is a directory"):
        Results(tmp_path, {})


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A write that fails names the file and leaves it whole; with room again the run goes on from there."""
    with pytest.raises(ResultsError, match="/dev/full: No space left on device"):
        Results(Path("/dev/full"), {})
    path = tmp_path / "results.jsonl"
    program = f"""
import resource, sys
sys.path.insert(0, "tests")
from pathlib import Path
from gateway.measure.load.sample import Results, ResultsError
from test_load import sample
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
results = Results(Path({str(path)!r}), {{}})
try:
    for line in range(100):
        results.append(sample(line))
except ResultsError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True
    )
    kept = read(path)[1]

    assert f"{path}: File too large; the {len(kept)} samples measured before are kept" in done.stdout
    assert path.read_bytes().endswith(b"\n")
    assert len(kept) > 3
    with Results(path, {}, resume=True) as again:
        again.append(sample(99))
    assert [one.line for one in read(path)[1]] == [*range(len(kept)), 99]


def test_acceptance_is_weighed_by_steps() -> None:
    """Two answers with the same tokens at 1 and 3 tokens per step have 1.5 together, not 2."""
    assert weighted_acceptance([sample(completion_tokens=30, acceptance_length=m) for m in (1.0, 3.0)]) == 1.5
    assert weighted_acceptance([sample(), sample(completion_tokens=0, acceptance_length=2.0)]) is None
