"""Publishing to CloudWatch: what boto3 really sends to a server on a socket, how it is cut, tried again, and told."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.engine import EngineSettings, serve
from gateway.measure.load.sample import Results, Sample
from gateway.measure.publish import cloudwatch, sending
from gateway.measure.publish.results import read_sweep

NOW = time.time()
ROOT = Path(__file__).parent.parent


class CloudWatch(ThreadingHTTPServer):
    """Takes PutMetricData as the service does over JSON; `answers` are statuses and error codes to give before accepting."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.answers: list[tuple[int, str]] = []
        self.tried = 0
        self.bodies: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.strange: list[str] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def data(self) -> list[dict[str, Any]]:
        """All data that were accepted."""
        return [datum for body in self.bodies for datum in body["MetricData"]]


class _Call(BaseHTTPRequestHandler):
    server: CloudWatch

    def do_POST(self) -> None:
        """Accept a batch, or give the next of the prepared answers."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.tried += 1
        if not re.search(r"Credential=test-id/\d{8}/eu-west-1/monitoring/aws4_request", self.headers["authorization"]):
            self.server.strange.append(self.headers["authorization"])
        if not self.headers["x-amz-target"].endswith(".PutMetricData"):
            self.server.strange.append(self.headers["x-amz-target"])
        status, code = self.server.answers.pop(0) if self.server.answers else (200, "")
        if status == 200:
            self.server.bodies.append(json.loads(body))
            self.server.sizes.append(len(body))
        answer = json.dumps({"__type": code, "message": "slower"} if code else {}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that is overridden
        """Keep quiet."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudWatch]:
    """Return a CloudWatch that listens, with an environment that leads boto3 to it alone."""
    server = CloudWatch()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test-id"),
        ("AWS_SECRET_ACCESS_KEY", "test-secret"),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ENDPOINT_URL_CLOUDWATCH", server.url),
        ("AWS_CONFIG_FILE", "/dev/null"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(name, value)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    assert server.strange == []


def metric(values: tuple[float, ...], *, name: str = "TTFT", case: str = "json", at: float = NOW) -> cloudwatch.Metric:
    """Return a metric of the variant "base"."""
    return cloudwatch.Metric(name=name, variant="base", case=case, values=values, at=at)


def sample(target: str, line: int, **changes: Any) -> Sample:
    """Return a call of 11 tokens: the first after 0.2 s, the last after 1.2 s."""
    fields: dict[str, Any] = {
        "line": line,
        "id": f"p{line}",
        "category": "json",
        "target": target,
        "started": NOW - 100 + 2 * line,
        "status": 200,
        "ttft_seconds": 0.2,
        "e2e_seconds": 1.2,
        "completion_tokens": 11,
        "prompt_tokens": 5,
    }
    return Sample(**{**fields, **changes})


def test_names_units_and_dimensions_are_the_studys(service: CloudWatch) -> None:
    """TTFT, InterTokenLatency, E2E in milliseconds and Throughput arrive with Variant and TestCase; failures do not."""
    calls = [sample("base@4", 1), sample("base@4", 2), sample("spec@4", 1), sample("spec@4", 2, error="http 500: no")]
    sent = sending.publish(cloudwatch.of_samples(calls), "Qwen/LLMPerf", sending.connect())
    found = {(datum["MetricName"], *(each["Value"] for each in datum["Dimensions"])): datum for datum in service.data}

    assert sent == len(found) == 16
    assert {body["Namespace"] for body in service.bodies} == {"Qwen/LLMPerf"}
    assert {tuple(each["Name"] for each in datum["Dimensions"]) for datum in service.data} == {("Variant", "TestCase")}
    assert {key[1:] for key in found} == {("base", "all"), ("base", "json"), ("spec", "all"), ("spec", "json")}
    expected = {"TTFT": 200.0, "InterTokenLatency": 100.0, "E2E": 1200.0, "Throughput": pytest.approx(9.167)}
    assert {name: found[name, "base", "json"]["Values"][0] for name in expected} == expected
    assert found["TTFT", "base", "json"]["Counts"] == [2.0]
    assert found["TTFT", "spec", "json"]["Counts"] == [1.0]
    assert {found[name, "base", "all"]["Unit"] for name in ("TTFT", "InterTokenLatency", "E2E")} == {"Milliseconds"}
    assert found["Throughput", "base", "all"]["Unit"] == "Count/Second"
    assert found["TTFT", "base", "all"]["Timestamp"] == pytest.approx(NOW - 100 + 4 + 1.2, abs=0.01)


def test_concurrencies_are_test_cases_of_their_own() -> None:
    """Calls at several levels are not mixed: the level is part of the test case."""
    found = cloudwatch.of_samples([sample("base@1", 1), sample("base@16", 1)])

    assert {each.case for each in found} == {"all at 1", "json at 1", "all at 16", "json at 16"}
    assert {each.variant for each in found} == {"base"}


def test_batches_keep_to_the_services_limits(service: CloudWatch) -> None:
    """No datum has more than 150 values, no request more than 1,000 data or 1 MB, and no value is lost."""
    many = [metric(tuple(float(n) for n in range(1000)), case=f"case {case}") for case in range(40)]
    few = [metric((1.0, 1.0, 2.0), case=f"small {case}") for case in range(1500)]
    sent = sending.publish([*many, *few], "N", sending.connect())

    assert sent == 40 * 7 + 1500
    assert sum(sum(datum["Counts"]) for datum in service.data) == 40 * 1000 + 1500 * 3
    assert max(len(datum["Values"]) for datum in service.data) == 150
    assert max(len(body["MetricData"]) for body in service.bodies) <= 1000
    assert max(service.sizes) <= 1_000_000
    assert len(service.bodies) > 2


@pytest.mark.parametrize("answer", [(400, "ThrottlingException"), (503, "InternalServiceFault")])
def test_throttling_is_waited_out(answer: tuple[int, str], service: CloudWatch) -> None:
    """A batch that is refused for the moment is sent again until it is taken, once."""
    service.answers = [answer, answer]
    sent = sending.publish([metric((1.0,))], "N", sending.connect())

    assert (sent, service.tried, len(service.data)) == (1, 3, 1)


def test_a_refusal_says_why_and_what_is_published(service: CloudWatch) -> None:
    """No right to publish is told with the permission that is missing; batches before it are counted."""
    service.answers = [(200, ""), (400, "AccessDeniedException")]
    big = [metric((1.0,), case=f"case {case}") for case in range(1001)]
    with pytest.raises(sending.PublishError, match="PutMetricData for this namespace; 1000 data are published") as told:
        sending.publish(big, "N", sending.connect())

    assert "AccessDeniedException: slower" in str(told.value)


def test_throttling_without_end_gives_up(service: CloudWatch) -> None:
    """After its tries the error is told."""
    service.answers = [(400, "ThrottlingException")] * 2
    with pytest.raises(sending.PublishError, match="ThrottlingException: slower; 0 data are published"):
        sending.publish([metric((1.0,))], "N", sending.connect(tries=2))

    assert service.tried == 2


def test_nothing_is_sent_that_is_too_old(service: CloudWatch) -> None:
    """CloudWatch takes nothing from more than two weeks ago, and drops it without a word: told before sending."""
    with pytest.raises(sending.PublishError, match="1 metrics were measured more than two weeks ago"):
        sending.publish([metric((1.0,), at=NOW - 15 * 86400), metric((1.0,))], "N", sending.connect())

    assert service.tried == 0


def test_a_missing_region_and_missing_keys_are_told(service: CloudWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to set."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(sending.PublishError, match="name a region with --region"):
        sending.connect()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(sending.PublishError, match="credentials"):
        sending.publish([metric((1.0,))], "N", sending.connect(region="eu-west-1"))

    assert service.tried == 0


def test_publishing_without_boto3_says_what_to_install() -> None:
    """Only publishing needs the extra."""
    program = (
        "import sys; sys.modules['boto3'] = None\n"
        "from gateway.measure.publish import sending\n"
        "try: sending.connect()\n"
        "except sending.PublishError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT).stdout

    assert "pip install 'draftlane[cloudwatch]'" in said


def test_a_dry_run_is_the_embedded_metric_format() -> None:
    """Each line is one object with its metadata, its dimensions and at most 100 values of a metric."""
    calls = [sample("base@1", line) for line in range(1, 151)]
    lines = [json.loads(line) for line in cloudwatch.embedded(cloudwatch.of_samples(calls), "N")]

    assert [(line["Variant"], line["TestCase"]) for line in lines] == [("base", "all")] * 2 + [("base", "json")] * 2
    (told,) = lines[0]["_aws"]["CloudWatchMetrics"]
    assert (told["Namespace"], told["Dimensions"]) == ("N", [["Variant", "TestCase"]])
    assert {each["Name"]: each["Unit"] for each in told["Metrics"]} == dict(cloudwatch.UNITS)
    assert [len(line["TTFT"]) for line in lines] == [100, 50, 100, 50]
    assert lines[0]["Throughput"] == pytest.approx(9.167)
    assert "Throughput" not in lines[1]
    assert lines[0]["_aws"]["Timestamp"] == pytest.approx(1000 * (NOW - 100 + 300 + 1.2), abs=2)
    for line in lines:
        assert all(each["Name"] in line for each in line["_aws"]["CloudWatchMetrics"][0]["Metrics"])


def test_a_sweeps_windows_are_variants() -> None:
    """What a sweep knows of a window is published; what it does not know is not."""
    rows = [
        {
            "window": 7,
            "category": "json",
            "tpot_seconds": 0.02,
            "goodput_tokens_per_s": {"value": 50, "interval": None},
        },
        {"window": 5, "draft": "small", "acceptance_length": 3.0},
        {"window": 3, "draft": "small", "tpot_seconds": 0.03},
        {"window": 0, "tpot_seconds": 0.045},
    ]
    content = json.dumps({"kind": "sweep", "windows": rows}).encode()
    found = cloudwatch.of_sweep(read_sweep(Path("s.json"), content), NOW)

    assert [(one.name, one.variant, one.case, one.values) for one in found] == [
        ("InterTokenLatency", "window-7", "json", (20.0,)),
        ("Throughput", "window-7", "json", (50.0,)),
        ("InterTokenLatency", "small:window-3", "all", (30.0,)),
        ("InterTokenLatency", "baseline", "all", (45.0,)),
    ]


def results(path: Path) -> Path:
    """Return a results file of compare with six prompts on two pools."""
    settings = {"command": "compare", "names": ["base", "spec"], "temperature": 0.0}
    with Results(path, settings) as kept:
        for line in range(1, 7):
            kept.append(sample("base@1", line))
            kept.append(sample("spec@1", line, e2e_seconds=0.6 + line / 100))
    return path


def test_the_command_publishes(service: CloudWatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`compare --cloudwatch` sends what was measured and still prints its report."""
    code = main(["compare", "--from", str(results(tmp_path / "r.jsonl")), "--cloudwatch", "Own/Space"])
    said = capsys.readouterr()

    assert code == 0
    assert "Adopt spec" in said.out
    assert f"published {len(service.data)} metric data to Own/Space" in said.err
    assert len(service.data) == 16


def test_the_commands_dry_run_prints_and_sends_nothing(
    service: CloudWatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of the embedded format alone are on standard output, the report beside it."""
    file = str(results(tmp_path / "r.jsonl"))
    code = main(["compare", "--from", file, "--cloudwatch", "N", "--dry-run"])
    said = capsys.readouterr()

    assert (code, service.tried) == (0, 0)
    assert all("_aws" in json.loads(line) for line in said.out.splitlines())
    assert "Adopt spec" in said.err
    assert main(["compare", "--from", file, "--dry-run"]) == 2
    assert "--cloudwatch" in capsys.readouterr().err


def test_a_failure_to_publish_fails_the_command(
    service: CloudWatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is printed all the same, and exit is 1."""
    service.answers = [(400, "AccessDeniedException")]
    code = main(["compare", "--from", str(results(tmp_path / "r.jsonl")), "--cloudwatch", "N"])
    said = capsys.readouterr()

    assert code == 1
    assert "Adopt spec" in said.out
    assert "cloudwatch:PutMetricData" in said.err


def records(path: Path) -> str:
    """Return a file of recorded acceptance: thirty answers of ten steps."""
    path.write_text("".join(json.dumps({"accepted": [n % 8, 3] * 5, "window": 7}) + "\n" for n in range(30)))
    return str(path)


async def test_replay_and_sweep_publish_too(
    service: CloudWatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What replay measured and what a sweep found go the same way, and print the same lines in a dry run."""
    trace = tmp_path / "t"
    trace.write_text('{"prompt": "Count to ten.", "category": "json", "max_tokens": 8}\n' * 3)
    async with serve(EngineSettings(speed=200)) as engine:
        replay = ["replay", str(trace), "--to", engine.url, "--target-name", "base", "--cloudwatch", "N"]
        assert await asyncio.to_thread(main, replay) == 0
        assert await asyncio.to_thread(main, [*replay, "--dry-run"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"_aws"')]
    replayed = {(datum["MetricName"], datum["Dimensions"][1]["Value"]) for datum in service.data}
    service.bodies.clear()

    assert replayed == {(name, case) for name in cloudwatch.UNITS for case in ("all", "json")}
    assert [(line["Variant"], line["TestCase"], len(line["TTFT"])) for line in lines] == [
        ("base", "all", 3),
        ("base", "json", 3),
    ]
    assert await asyncio.to_thread(main, ["sweep", "--from", records(tmp_path / "r"), "--cloudwatch", "N"]) == 0
    assert {datum["Dimensions"][0]["Value"] for datum in service.data} >= {"window-1", "window-7"}
    assert {datum["MetricName"] for datum in service.data} == {"InterTokenLatency", "Throughput"}


async def test_a_sweep_on_engines_publishes_its_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All four metrics of every window, a value per call; windows that only the resumed file knows are not of this sweep."""
    trace, out = tmp_path / "t", str(tmp_path / "out")
    trace.write_text('{"prompt": "Count to ten.", "category": "json", "max_tokens": 8}\n' * 3)
    async with serve(EngineSettings(speed=200)) as plain, serve(EngineSettings(kind="speculative", speed=200)) as spec:
        words = ["sweep", str(trace), "--endpoint", f"7={spec.url}", "--baseline", plain.url, "--out", out]
        assert await asyncio.to_thread(main, [*words, "--endpoint", f"3={spec.url}"]) == 0
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*words, "--resume", "--cloudwatch", "N", "--dry-run"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    variants = [("baseline", "all"), ("baseline", "json"), ("window-7", "all"), ("window-7", "json")]
    assert [(line["Variant"], line["TestCase"]) for line in lines] == variants
    assert all(len(line[name]) == 3 for line in lines for name in ("TTFT", "InterTokenLatency", "E2E"))
    assert all(line["Throughput"] > 0 for line in lines)


@pytest.mark.parametrize(
    "words", [("--json",), (), ("--cloudwatch", "N", "--dry-run")], ids=["json", "text", "dry run"]
)
@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_report_that_standard_output_does_not_take_is_not_lost(
    command: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """On a full disk the reason and the whole report are on standard error, and exit is 1."""
    file = records(tmp_path / "r") if command == "sweep" else str(results(tmp_path / "r"))
    line = [sys.executable, "-m", "gateway", command, "--from", file, *words]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(line, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    taken = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (ran.returncode, taken.returncode) == (1, 0)
    assert "standard output: No space left on device; what it did not take:" in ran.stderr
    assert "Traceback" not in ran.stderr
    if "--dry-run" not in words:  # its lines tell when they were made
        assert taken.stdout in ran.stderr
    else:
        assert ran.stderr.count('{"_aws"') == taken.stdout.count('{"_aws"') > 0
        assert taken.stderr in ran.stderr


@pytest.mark.parametrize("command", ["replay", "sweep", "compare"])
def test_what_cannot_be_published_is_told_before_measuring(
    command: str,
    service: CloudWatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No region, or a dry run of nothing, ends with 2 before any call is sent."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    words = {
        "replay": [str(tmp_path / "t"), "--to", "http://127.0.0.1:9"],
        "sweep": ["--from", records(tmp_path / "r")],
        "compare": ["--from", str(results(tmp_path / "c"))],
    }[command]

    assert main([command, *words, "--cloudwatch", "N"]) == 2
    assert f"draftlane {command}: You must specify a region.; name a region with --region" in capsys.readouterr().err
    assert main([command, *words, "--dry-run"]) == 2
    assert "name a namespace with --cloudwatch" in capsys.readouterr().err
    assert service.tried == 0
