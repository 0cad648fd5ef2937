"""From a running gateway to a retrained classifier: calls, `draftlane observations export`, `python -m classifier train`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.stack import chat, stack
from gateway.config import key_digest

TASKS = (
    "Count from {a} to {b}.",
    "Write a table of the squares from {a} to {b}.",
    "Tell a story of {a} foxes and {b} crows.",
)
SHOPS = "Ash Birch Cedar Dogwood Elm Fir Gorse Hazel Ivy Juniper".split()
TEMPLATES = 90
CALLS = 6  # of each template
SPEED = 2000.0


def prompts() -> list[dict[str, Any]]:
    """Return calls of many templates, each with a system prompt and a task of its own."""
    return [
        chat(
            stream=True,
            max_tokens=30,
            messages=[
                {"role": "system", "content": f"You keep the books of {SHOPS[template % 9]} {SHOPS[template // 9]}."},
                {"role": "user", "content": TASKS[template % len(TASKS)].format(a=number, b=number + 40)},
            ],
        )
        for template in range(TEMPLATES)
        for number in range(1, CALLS + 1)
    ]


async def ask(client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]]) -> None:
    """Make calls, a few at a time."""
    waiting = iter(bodies)

    async def some() -> None:
        for body in waiting:
            answer = await client.post("/v1/chat/completions", json=body, headers={"x-draftlane-route": "speculative"})
            assert answer.status_code == 200, answer.text

    await asyncio.gather(*(some() for _ in range(8)))


def run(command: Sequence[str]) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, capture_output=True)


def train(traffic: Path, out: Path) -> tuple[int, dict[str, Any]]:
    """Run the training on a file of observations; return its exit code and what it says."""
    command = [sys.executable, "-m", "classifier", "train", "--traffic", str(traffic), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def held_out(row: dict[str, Any]) -> bool:
    """Whether training keeps an observation for judging: a tenth of the templates."""
    return int(hashlib.sha256(row["template"].encode()).hexdigest()[:8], 16) % 10 == 0


def counted(page: str) -> dict[tuple[str, str], float]:
    """Return what a metrics page says of observations kept and dropped, by reason."""
    return {
        (family.name.removeprefix("draftlane_observations_"), sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(page)
        if family.name in ("draftlane_observations_kept", "draftlane_observations_dropped")
        for sample in family.samples
    }


@pytest.mark.timeout(300)
async def test_what_a_gateway_saw_trains_a_better_classifier_and_never_a_worse_one(tmp_path: Path) -> None:
    """Exported observations are accepted as they are; a file whose lesson is false is refused, and the reason is told."""
    kept = {"observations": "features", "observations_path": str(tmp_path / "kept")}
    bodies = prompts()
    async with stack(speed=SPEED, classifier=kept, pools={"spec": {"slots": 64}}) as serving:
        await ask(serving.client, bodies)
        await serving.gateway.settled(len(bodies))
        shown = sum(one.acceptance is not None for one in serving.gateway.finished)
        keeper = serving.gateway.gateway.pipeline.live.observer
        await keeper.flush()  # type: ignore[union-attr]
        page = serving.gateway.gateway.render_metrics("")[0].decode()
    config, out = tmp_path / "config.toml", tmp_path / "traffic.jsonl"
    committed = Path(__file__).parent.parent.parent.joinpath("config.toml").read_text()
    config.write_text(f'{committed}\nobservations_path = "{tmp_path / "kept"}"\n')
    export = [sys.executable, "-m", "gateway", "observations", "export", "--config", str(config), "--out", str(out)]
    run(export)
    rows = [json.loads(line) for line in out.read_text().splitlines()]

    assert len(rows) == shown > len(bodies) * 0.9
    assert counted(page) == {("kept", ""): shown, ("dropped", "buffer"): 0, ("dropped", "expired"): 0}
    assert len({row["template"] for row in rows}) == TEMPLATES
    assert b"squares" not in out.read_bytes()
    code, told = train(out, tmp_path / "new.json")
    assert (code, told["published"]) == (0, True), told
    assert told["traffic"]["observations"] + told["traffic"]["held_out"] == sum(not row["biased"] for row in rows)
    assert (tmp_path / "new.json").exists()
    # the same calls, with the opposite of what they showed, but for those that judge
    false = [row if held_out(row) else row | {"acceptance": 9.0 - row["acceptance"]} for row in rows]
    out.write_text("".join(json.dumps(row) + "\n" for row in false))
    code, told = train(out, tmp_path / "worse.json")
    assert (code, told["published"]) == (1, False)
    assert "held-out traffic" in told["reason"]
    assert not (tmp_path / "worse.json").exists()


WORKERS = """
[server]
port = 0
workers = 2
log = "off"
drain_seconds = 2
[[model]]
name = "demo"
[[pool]]
name = "spec"
model = "demo"
kind = "speculative"
window = 7
price_per_hour = 1.0
slots = 64
[pool.embedded]
speed = 500.0
[[tenant]]
name = "tester"
key_sha256 = ["{key}"]
[classifier]
observations = "text"
observations_path = "{kept}"
"""


@contextmanager
def workers(config: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `draftlane serve` with two workers; yield the supervisor and its address."""
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as supervisor:
        assert supervisor.stderr is not None
        try:
            line = next(line for line in supervisor.stderr if "serving demo on" in line)
            yield supervisor, line.split()[-1]
        finally:
            supervisor.terminate()
            try:
                supervisor.wait(30)
            except subprocess.TimeoutExpired:  # workers that have just been killed may still be starting again
                os.killpg(supervisor.pid, signal.SIGKILL)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fails when it does not in time."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_workers_keep_files_of_their_own_and_a_killed_one_loses_no_line(tmp_path: Path) -> None:
    """Two workers write side by side; kill -9 of both leaves all that was written, and those who follow go on."""
    kept, config = tmp_path / "kept", tmp_path / "config.toml"
    config.write_text(WORKERS.format(key=key_digest("sk-test"), kept=kept))
    headers = {"authorization": "Bearer sk-test"}

    def call(url: str) -> bool:
        with suppress(httpx.HTTPError):  # a connection of its own for each: they spread over the workers
            return (
                httpx.post(
                    f"{url}/v1/chat/completions", json=chat(stream=True), headers=headers, timeout=60
                ).status_code
                == 200
            )
        return False

    def lines() -> int:
        return sum(path.read_bytes().count(b"\n") for path in kept.glob("*.jsonl"))

    with workers(config) as (supervisor, url):
        until(lambda: call(url))
        answered = 1 + sum(call(url) for _ in range(30))
        until(lambda: lines() == answered)
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        for pid in children:
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        files = {*kept.iterdir()}
        until(lambda: call(url))
        answered += 1
    out = subprocess.run(
        [sys.executable, "-m", "gateway", "observations", "export", "--config", str(config)],
        capture_output=True,
        check=True,
    )

    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert len(files) == 2
    assert len({*kept.iterdir()} - files) >= 1
    assert len(rows) == answered == len({row["id"] for row in rows})
    assert {row["request"]["max_tokens"] for row in rows} == {40}
    assert f"{answered} observations" in out.stderr.decode()
