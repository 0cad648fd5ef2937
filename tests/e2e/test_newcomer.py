"""The newcomer's two minutes: the committed configuration, served as `make run` does, and what can be seen of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from harness import until

from e2e.stack import COUNTING, STORY, TLS

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
KEY, ADMIN_KEY = "dl-demo", "dl-admin"  # as config.toml says
STARTED = "draftlane: serving demo on "


@dataclass(slots=True)
class Served:
    """A running `draftlane serve`: its address, what it has written so far, and where its temporary files are."""

    process: asyncio.subprocess.Process
    scratch: Path
    url: str = ""
    log: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def take(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        """Collect what the process writes."""
        async for line in stream:
            lines.append(line.decode().rstrip("\n"))  # noqa: PERF401 - read while it grows


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The gateway as a newcomer starts it, but for the port and the place of temporary files."""
    scratch = tmp_path_factory.mktemp("served")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", "config.toml", "--port", "0"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    it = Served(process, scratch)
    readers = [
        asyncio.create_task(it.take(process.stdout, it.log)),
        asyncio.create_task(it.take(process.stderr, it.complaints)),
    ]
    try:
        await until(
            lambda: any(line.startswith(STARTED) for line in it.complaints) or process.returncode is not None, 60
        )
        it.url = next(line.removeprefix(STARTED) for line in it.complaints if line.startswith(STARTED))
        await ready(it.url)
        yield it
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(*readers)


async def ready(url: str) -> None:
    """Wait until the gateway is ready."""
    async with httpx.AsyncClient(base_url=url, verify=TLS) as client, asyncio.timeout(30):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


async def ask(client: openai.AsyncOpenAI, prompt: str) -> tuple[Any, httpx.Headers]:
    """Ask for a short answer until a call is decided by its score: now and then one explores the other pool."""
    while True:
        raw = await client.chat.completions.with_raw_response.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=24,
        )
        if raw.headers["x-draftlane-reason"] != "explore":
            return raw.parse(), httpx.Headers(dict(raw.headers))


async def test_a_counting_prompt_speculates_and_a_story_does_not(served: Served) -> None:
    """With the committed configuration the two prompts part ways, and the headers say where, by which numbers and why."""
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        count, fast = await ask(client, COUNTING)
        story, slow = await ask(client, STORY)

    assert "1, 2, 3, 4, 5" in count.choices[0].message.content
    assert story.choices[0].message.content
    assert (fast["x-draftlane-pool"], fast["x-draftlane-reason"]) == ("speculative", "predictable")
    assert (slow["x-draftlane-pool"], slow["x-draftlane-reason"]) == ("baseline", "unpredictable")
    assert float(fast["x-draftlane-score"]) > float(fast["x-draftlane-threshold"])
    assert float(slow["x-draftlane-score"]) < float(slow["x-draftlane-threshold"])


async def test_each_call_is_one_line_of_the_log(served: Served) -> None:
    """A call's line is JSON, holds its decision, tokens and times, and no word of what was asked."""
    async with httpx.AsyncClient(base_url=served.url, verify=TLS) as client:
        answer = await client.post(
            "/v1/chat/completions",
            headers={"authorization": f"Bearer {KEY}", "x-request-id": "newcomer-1"},
            json={"model": "demo", "messages": [{"role": "user", "content": "Xylophones, please."}], "max_tokens": 3},
        )
    assert answer.status_code == 200

    line = await until(lambda: next((one for one in served.log if '"newcomer-1"' in one), None))
    found = json.loads(line)
    assert (found["event"], found["tenant"], found["outcome"], found["status"]) == ("call", "demo", "ok", 200)
    assert (found["pool"], found["completion_tokens"]) == (answer.headers["x-draftlane-pool"], 3)
    assert found["reason"] == answer.headers["x-draftlane-reason"]
    assert {"score", "threshold", "break_even", "duration", "cost_usd", "overhead"} <= found.keys()
    assert "ylophone" not in "".join(served.log + served.complaints)


async def test_the_metrics_show_the_calls(served: Served) -> None:
    """/metrics counts requests and tokens by pool, and publishes threshold and break-even."""
    async with httpx.AsyncClient(base_url=served.url, verify=TLS) as client:
        page = (await client.get("/metrics")).text
    samples = [line for line in page.splitlines() if not line.startswith("#")]

    for pool in ("speculative", "baseline"):
        counted = [line for line in samples if line.startswith("draftlane_requests_total") and f'pool="{pool}"' in line]
        assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) >= 1
    for name in (
        "tokens_total",
        "request_duration_seconds",
        "overhead_seconds",
        "threshold",
        "break_even_acceptance_length",
    ):
        assert any(line.startswith(f"draftlane_{name}") for line in samples), name


async def test_a_stranger_is_told_what_is_missing(served: Served) -> None:
    """Without the demo key there is a 401; the operators' page wants its own."""
    async with httpx.AsyncClient(base_url=served.url, verify=TLS) as client:
        call = await client.post("/v1/chat/completions", json={})
        state = await client.get("/draftlane/state", headers={"authorization": f"Bearer {KEY}"})

    assert [call.status_code, state.status_code] == [401, 401]


async def test_sigterm_lets_a_stream_end_and_takes_the_engines_along(served: Served) -> None:
    """After SIGTERM the gateway is not ready, a running stream comes to its end, then process and engines are gone."""
    async with httpx.AsyncClient(base_url=served.url, verify=TLS, timeout=30) as client:
        state = (await client.get("/draftlane/state", headers={"authorization": f"Bearer {ADMIN_KEY}"})).json()
        engines = [replica["url"] for pool in state["pools"] for replica in pool["replicas"]]
        body = {"model": "demo", "messages": [{"role": "user", "content": STORY}], "max_tokens": 40, "stream": True}
        headers = {"authorization": f"Bearer {KEY}", "x-draftlane-route": "baseline"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            served.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while (await client.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.02)
            rest = [line async for line in lines]
        async with asyncio.timeout(20):
            await served.process.wait()

    assert "data: [DONE]" in rest
    assert served.process.returncode == 0
    assert not list(served.scratch.iterdir())
    assert len(engines) == 2
    async with httpx.AsyncClient(verify=TLS) as client:
        for url in (served.url, *engines):
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{url}/health")
    assert not [line for line in served.complaints if "rror" in line]
