"""Other load generators' files: what they hold becomes samples, samples become what they hold, and what is wrong is told."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.measure.load.sample import Sample
from gateway.measure.paired import formats

# One request of 11 tokens: the first after 0.2 s, the last after 1.2 s, in five chunks after the first one.
TTFT, E2E, TOKENS, GAPS = 0.2, 1.2, 11, [0.2] * 5


def vllm(**changes: Any) -> dict[str, Any]:
    """Return what `vllm bench serve --save-result --save-detailed` writes for two requests, the second of which failed."""
    return {
        "date": "20261101-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": "demo",
        "num_prompts": 2,
        "request_rate": "inf",
        "max_concurrency": 4,
        "duration": 2.0,
        "completed": 1,
        "total_input_tokens": 7,
        "total_output_tokens": TOKENS,
        "output_throughput": 5.5,
        "input_lens": [7, 9],
        "output_lens": [TOKENS, 0],
        "ttfts": [TTFT, 0.0],
        "itls": [GAPS, []],
        "start_times": [100.0, 100.5],
        "generated_texts": ["one two", ""],
        "errors": ["", "Traceback:\n  aiohttp.ClientError: gone\n"],
        **changes,
    }


def guidellm(**changes: Any) -> dict[str, Any]:
    """Return a report of guidellm with one request that succeeded and one that did not."""
    request = {
        "request_id": "a",
        "request_args": json.dumps({"body": {"model": "demo", "stream": True, "messages": ["hello"]}}),
        "output": "one two",
        "request_start_time": 100.0,
        "request_latency": E2E,
        "time_to_first_token_ms": 1000 * TTFT,
        "time_per_output_token_ms": 1000 * E2E / TOKENS,
        "inter_token_latency_ms": 100.0,
        "prompt_tokens": 7,
        "output_tokens": TOKENS,
        "info": {"timings": {"token_iterations": 6}},
        **changes,
    }
    failed = {
        "request_id": "b",
        "request_args": json.dumps({"body": {"messages": ["bye"]}}),
        "request_start_time": 101.0,
        "info": {"error": "gone", "timings": {}},
    }
    requests = {"successful": [request], "errored": [failed], "incomplete": [], "total": None}
    config = {"strategy": {"type_": "concurrent", "streams": 4}}
    return {"metadata": {"version": 2}, "benchmarks": [{"config": config, "requests": requests}]}


def aiperf(**changes: Any) -> list[dict[str, Any]]:
    """Return aiperf's records of a warm-up, a request that succeeded and one that failed."""

    def about(conversation: str, phase: str = "profiling") -> dict[str, Any]:
        return {
            "session_num": 0,
            "conversation_id": conversation,
            "turn_index": 0,
            "request_start_ns": 100_000_000_000,
            "request_end_ns": 101_300_000_000,
            "worker_id": "w",
            "record_processor_id": "p",
            "benchmark_phase": phase,
            "was_cancelled": False,
        }

    metrics = {
        "request_latency": {"value": 1000 * E2E, "unit": "ms"},
        "time_to_first_token": {"value": 1000 * TTFT, "unit": "ms"},
        "output_sequence_length": {"value": TOKENS, "unit": "tokens"},
        "input_sequence_length": {"value": 7, "unit": "tokens"},
        **changes,
    }
    accepted = {"engine": "vllm", "num_accepted_draft_tokens": 6, "num_draft_tokens": 20, "num_spec_steps": 4}
    return [
        {"metadata": about("warm", "warmup"), "metrics": metrics, "error": None},
        {"metadata": about("c1"), "metrics": metrics, "spec_decode_acceptance": accepted, "error": None},
        {"metadata": about("c2"), "metrics": {}, "error": {"code": 503, "type": "E", "message": "gone"}},
    ]


def llmperf(**changes: Any) -> list[dict[str, Any]]:
    """Return llmperf's individual responses: one that succeeded, one that did not."""
    whole = {
        "error_code": None,
        "error_msg": "",
        "inter_token_latency_s": E2E / TOKENS,
        "ttft_s": TTFT,
        "end_to_end_latency_s": E2E,
        "request_output_throughput_token_per_s": TOKENS / E2E,
        "number_total_tokens": 7 + TOKENS,
        "number_output_tokens": TOKENS,
        "number_input_tokens": 7,
        **changes,
    }
    failed = {**whole, "error_code": 503, "error_msg": "gone", "number_output_tokens": 0, "ttft_s": 0}
    return [whole, failed]


def put(path: Path, value: Any) -> Path:
    """Write a value as JSON; a list of records of aiperf as lines."""
    lines = isinstance(value, list) and "metadata" in value[0]
    path.write_text("\n".join(map(json.dumps, value)) + "\n" if lines else json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("name", "content"), [("vllm", vllm()), ("guidellm", guidellm()), ("aiperf", aiperf()), ("llmperf", llmperf())]
)
def test_each_format_tells_the_same_call(name: str, content: Any, tmp_path: Path) -> None:
    """TTFT, TPOT, E2E, tokens and failures are those of the file, recognised by its content."""
    loaded = formats.read(str(put(tmp_path / "result.json", content)), "base")
    whole, failed = loaded.samples

    assert loaded.format == name
    assert (whole.ok, failed.ok) == (True, False)
    assert "gone" in (failed.error or "")
    assert whole.target == "base"
    assert whole.ttft_seconds == pytest.approx(TTFT)
    assert whole.e2e_seconds == pytest.approx(E2E)
    assert (whole.prompt_tokens, whole.completion_tokens) == (7, TOKENS)
    assert whole.tpot_seconds == pytest.approx(0.1)


def test_a_failure_of_aiperf_may_have_no_metrics(tmp_path: Path) -> None:
    """A record that tells an error and nothing else is a call that failed."""
    records = [*aiperf()[:2], {**aiperf()[2], "metrics": None}]
    _, failed = formats.read(str(put(tmp_path / "result.json", records)), "base").samples

    assert (failed.status, failed.error) == (503, "aiperf: gone")


def test_formats_tell_acceptance_and_load(tmp_path: Path) -> None:
    """Events give tokens per step for vllm and guidellm, the engine's own count for aiperf; two say the concurrency."""
    found = {
        name: formats.read(f"{name}:{put(tmp_path / name, content)}", "x")
        for name, content in (("vllm", vllm()), ("guidellm", guidellm()), ("aiperf", aiperf()), ("llmperf", llmperf()))
    }
    lengths = {name: loaded.samples[0].acceptance_length for name, loaded in found.items()}
    sources = {name: loaded.samples[0].acceptance_source for name, loaded in found.items()}

    assert lengths == {"vllm": 2.0, "guidellm": 2.0, "aiperf": pytest.approx(11 / 5), "llmperf": None}
    assert sources == {"vllm": "events", "guidellm": "events", "aiperf": "engine", "llmperf": None}
    assert [found[name].concurrency for name in found] == [4, 4, None, None]
    digest = sha256(b"one two").hexdigest()
    assert (found["vllm"].samples[0].output_sha256, found["guidellm"].samples[0].output_sha256) == (digest, digest)


def test_engines_own_acceptance_goes_before_events(tmp_path: Path) -> None:
    """Guidellm passes vLLM's metrics on, which tell more than its events; tokens over steps, bonus included."""
    metrics = {"speculative_decoding": {"num_accepted_draft_tokens": 1, "num_spec_steps": 2}}
    loaded = formats.read(str(put(tmp_path / "g.json", guidellm(response_metrics=metrics))), "x")

    assert loaded.samples[0].acceptance_length == pytest.approx(1.1)
    assert loaded.samples[0].acceptance_source == "engine"


def test_a_chats_first_chunk_is_no_token(tmp_path: Path) -> None:
    """On chat streams vLLM counts the chunk of the role as the first, so one event less carries tokens."""
    loaded = formats.read(str(put(tmp_path / "v.json", vllm(backend="openai-chat"))), "x")

    assert loaded.samples[0].events == 5
    assert loaded.samples[0].acceptance_length == pytest.approx(2.5)


def test_vllms_latencies_are_taken_where_they_are_told(tmp_path: Path) -> None:
    """Newer files tell E2E; of a file that was appended to, the last result counts."""
    old, new = vllm(), vllm(latencies=[2.2, 0.1], max_concurrency=8, spec_decode_acceptance_length=3.5)
    path = tmp_path / "v.json"
    path.write_text(json.dumps(old) + "\n" + json.dumps(new))
    loaded = formats.read(f"vllm:{path}", "x")

    assert loaded.samples[0].e2e_seconds == 2.2
    assert loaded.concurrency == 8
    assert any("3.50 tokens per step" in note for note in loaded.notes)


def test_llmperfs_latency_is_corrected_and_said_so(tmp_path: Path) -> None:
    """Its own inter-token latency includes the first token; the note tells both figures."""
    (note,) = formats.read(str(put(tmp_path / "l.json", llmperf())), "x").notes

    assert "109.1 ms" in note
    assert "corrected to (E2E − TTFT)/(tokens − 1): 100.0 ms" in note


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (vllm(ttfts=None), "ttfts: missing; run vllm bench serve with --save-result --save-detailed"),
        (vllm(ttfts=[0.2]), "ttfts: 1 entries, but output_lens has 2"),
        (vllm(ttfts=[-1, 0]), "request 1: ttfts: expected a number from 0 on, got -1"),
        (vllm(itls=[[0.1, None], []]), "request 1: itls: expected a list of numbers"),
        (vllm(output_lens=[1.5, 0]), "request 1: output_lens: expected a whole number, got 1.5"),
        (vllm(draftlane={"requests": [{}, {}]}), "draftlane: requests: Object missing required field `line`"),
        (guidellm(request_latency=None), "benchmarks[0].requests.successful[0]: request_latency: missing"),
        (guidellm(output_tokens="11"), "benchmarks[0].requests.successful[0]: output_tokens: expected a number"),
        (guidellm(request_args="{"), "successful[0]: request_args: no JSON"),
        ({"benchmarks": []}, "benchmarks: 0 of them; name a report of one"),
        ({"benchmarks": [{}]}, "benchmarks[0]: requests: missing"),
        (aiperf(request_latency={"value": 1, "unit": "h"}), "line 2.metrics.request_latency: unit: expected one of ms"),
        (aiperf(request_latency={"value": True, "unit": "ms"}), "request_latency: value: expected a number"),
        (llmperf(ttft_s=None), "request 1: ttft_s: missing; expected a number"),
        (llmperf(ttft_s=5.0), "request 1: ttft_s: 5 s, but end_to_end_latency_s is 1.2"),
        ({"aiperf_version": "1"}, "aiperf's summary has no single requests; name its profile_export.jsonl"),
        ({"input_config": {}, "request_latency": {"avg": 1}}, "aiperf's summary has no single requests"),
        ([{"metadata": {}, "metrics": None, "error": None}], "metadata or metrics: missing"),
        ({"x": 1}, "of no known format; say which: vllm:"),
    ],
)
def test_what_is_wrong_is_told_by_field(content: Any, told: str, tmp_path: Path) -> None:
    """The message names the file, the request or the line, the field, and what to do."""
    path = put(tmp_path / "bad.json", content)
    with pytest.raises(formats.FormatError) as error:
        formats.read(str(path), "x")

    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)


@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_what_is_no_json_is_told(name: str, tmp_path: Path) -> None:
    """A torn file is told by its name and, where it has lines, by its line."""
    path = tmp_path / "torn"
    path.write_bytes(b'{"metadata": {}, "metrics": {}}\n{"me\xff')
    with pytest.raises(formats.FormatError, match="torn"):
        formats.read(f"{name}:{path}", "x")
    with pytest.raises(formats.FormatError, match="No such file"):
        formats.read(f"{name}:{tmp_path / 'none'}", "x")


def samples() -> list[Sample]:
    """Return calls of two pools at one level: two prompts twice, and one that failed."""
    found = [
        Sample(
            line=line,
            id=f"p{line}",
            category="json" if line == 1 else "chat",
            target=f"{name}@4",
            repeat=repeat,
            started=1000.0 + 10 * line + repeat,
            status=200,
            ttft_seconds=0.25,
            e2e_seconds=1.25 + 0.5 * half,
            prompt_tokens=20 + line,
            completion_tokens=41,
            events=21,
            acceptance_length=2.0,
            acceptance_source="events",
            cost_usd=0.5,
            output_sha256="ab" * 32,
        )
        for half, name in enumerate(("base", "spec"))
        for repeat in (0, 1)
        for line in (1, 2)
    ]
    failed = Sample(
        line=3, id="p3", target="base@4", started=1050.0, status=503, error="http 503: no", e2e_seconds=0.125
    )
    return [*found, failed]


@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    """Each pool has its file, whose calls are the samples that were written, as far as the format holds them."""
    base, spec = formats.write(f"{name}:{tmp_path / 'out.json'}", samples(), "demo")
    found = formats.read(str(base), "base")

    assert (base.name, spec.name) == ("out.base.json", "out.spec.json")
    assert found.format == name
    assert [one.ok for one in found.samples] == [True] * 4 + [False]
    written = [one for one in samples() if one.target == "base@4"]
    for one, before in list(zip(found.samples, written, strict=True))[:4]:
        assert one.tpot_seconds == pytest.approx(before.tpot_seconds)
        assert one.e2e_seconds == pytest.approx(before.e2e_seconds)
        assert (one.prompt_tokens, one.completion_tokens, one.category) == (
            before.prompt_tokens,
            before.completion_tokens,
            before.category,
        )
        assert one.started == pytest.approx(before.started)
        if name != "llmperf":
            assert (one.line, one.id, one.repeat) == (before.line, before.id, before.repeat)
            assert (one.acceptance_length, one.cost_usd, one.output_sha256) == (2.0, 0.5, "ab" * 32)


def test_pairs_are_found_where_there_are_some(tmp_path: Path) -> None:
    """Own names make pairs, so do vLLM's prompts of equal lengths in equal order; llmperf's calls have none."""
    pairs = {}
    for name in formats.FORMATS:
        files = formats.write(f"{name}:{tmp_path / name}", samples(), "demo")
        pairs[name] = formats.in_pairs(*(formats.read(f"{name}:{path}", "x") for path in files))
    assert {name for name, said in pairs.items() if "own names" in said} == {"vllm", "guidellm", "aiperf"}
    assert pairs["llmperf"] == ""

    plain, other = put(tmp_path / "a", vllm()), put(tmp_path / "b", vllm(input_lens=[7, 10]))
    one = formats.read(str(plain), "x")
    assert "by their order" in formats.in_pairs(one, one)
    assert formats.in_pairs(one, formats.read(str(other), "x")) == ""


def test_levels_have_files_of_their_own(tmp_path: Path) -> None:
    """Where calls were measured at several concurrencies, each is a run of its own to other tools."""
    several = [*samples(), *(Sample(line=1, id="p1", target="base@1", started=1.0, status=200, e2e_seconds=1.0),)]
    names = [path.name for path in formats.write(f"vllm:{tmp_path / 'o.json'}", several, "demo")]

    assert names == ["o.base.c1.json", "o.base.c4.json", "o.spec.c4.json"]
    with pytest.raises(formats.FormatError, match="name the format before the file"):
        formats.write(str(tmp_path / "o.json"), several, "demo")
    with pytest.raises(formats.FormatError, match="No such file"):
        formats.write(f"vllm:{tmp_path / 'no' / 'o.json'}", several, "demo")


def test_what_vllm_shows_of_a_file_is_there(tmp_path: Path) -> None:
    """The fields of vLLM's own summary and of its timeline are written, and gaps add up to the decode time."""
    path, _ = formats.write(f"vllm:{tmp_path / 'o.json'}", samples(), "demo")
    told = json.loads(path.read_text())

    assert told["completed"] == 4
    assert told["failed"] == 1
    assert told["total_output_tokens"] == 164
    assert told["mean_tpot_ms"] == pytest.approx(25.0)
    assert told["mean_itl_ms"] == pytest.approx(50.0)
    assert [sum(gaps) for gaps in told["itls"]] == [pytest.approx(1.0)] * 4 + [0]
    assert all(len(told[name]) == 5 for name in ("start_times", "ttfts", "input_lens", "output_lens", "errors"))


def test_guidellms_report_is_whole(tmp_path: Path) -> None:
    """What guidellm's schema asks for is there: summaries by status with all percentiles, and nothing that is not finite."""
    path, _ = formats.write(f"guidellm:{tmp_path / 'o.json'}", samples(), "demo")
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    spread = benchmark["metrics"]["inter_token_latency_ms"]

    assert spread["successful"]["mean"] == pytest.approx(25.0)
    assert spread["successful"]["count"] == 4
    assert len(spread["total"]["percentiles"]) == 11
    assert benchmark["metrics"]["request_totals"] == {"successful": 4, "errored": 1, "incomplete": 0, "total": 5}
    assert "NaN" not in path.read_text()
    assert benchmark["metrics"]["output_tokens_per_second"]["total"]["mean"] > 0
