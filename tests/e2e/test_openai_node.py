"""OpenAI's own client for Node, with nothing changed but `baseURL`: one script per scenario, run as a user would."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness import KEY, config_for, serving

from e2e.stack import SPEED, Stack
from gateway.engine import EngineSettings, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCENARIOS = Path(__file__).parents[1] / "node" / "scenarios"
SIXTY = ", ".join(map(str, range(1, 61)))


async def run(scenario: str, url: str) -> dict[str, Any]:
    """Run a scenario against a gateway and return what it found."""
    node = await asyncio.create_subprocess_exec(
        "node", SCENARIOS / f"{scenario}.mjs", url, KEY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaint = await node.communicate()

    assert (node.returncode, complaint.decode()) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


async def test_chat(quiet: Stack) -> None:
    """A completion, the headers of the raw response and the models reach a Node program."""
    found = await run("chat", quiet.url)
    settled = next(call for call in quiet.gateway.finished if call.endpoint == "chat")

    assert (found["text"], found["finish"]) == (SIXTY, "stop")
    assert found["tokens"] == settled.completion_tokens
    assert (found["pool"], found["reason"], found["id"]) == ("spec", "predictable", "node-1")
    assert found["models"] == ["demo", "gpt-4o-mini"]


async def test_stream(quiet: Stack) -> None:
    """Streams come whole, with usage where it was asked for, and a program that breaks out of one frees the engine."""
    found = await run("stream", quiet.url)
    await quiet.at_rest()

    assert found["plain"] == {"text": SIXTY, "usages": 0, "empty": 0}
    assert found["counted"] == {"text": SIXTY, "usages": 1, "empty": 1}
    assert found["types"] == ["response.created", "response.completed"]
    assert found["response"] == ", ".join(map(str, range(1, 10)))
    assert found["seen"] == 5
    assert sorted(call.outcome for call in quiet.gateway.finished) == ["client_gone", "ok", "ok", "ok"]
    assert {call.usage_source for call in quiet.gateway.finished if call.outcome == "ok"} == {"engine"}


async def test_tools(quiet: Stack) -> None:
    """A tool's call arrives whole and assembled from its pieces, chosen freely, required or by name."""
    call = ["get_weather", {"city": "Paris"}]

    assert await run("tools", quiet.url) == {"auto": [call, call], "required": [call, call], "function": [call, call]}


async def test_errors(quiet: Stack) -> None:
    """Refusals become the client's own exceptions, with status, code and field."""
    found = await run("errors", quiet.url)

    assert found["field"] == {"name": "BadRequestError", "status": 400, "code": "invalid_type", "param": "n"}
    assert found["model"] == {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"}
    assert found["key"] == {"name": "AuthenticationError", "status": 401, "code": "invalid_api_key", "param": None}
    assert (found["engine"]["name"], found["engine"]["status"]) == ("BadRequestError", 400)
    assert (found["path"]["name"], found["path"]["code"]) == ("NotFoundError", "model_not_found")


async def test_engines_that_fail() -> None:
    """A broken stream raises in the loop; engines that are down or busy raise what OpenAI's would."""
    names = {"cut": "cut,after_events=5", "down": "500", "busy": "429,retry_after=3"}
    async with (
        serve(EngineSettings(speed=SPEED)) as one,
        serve(EngineSettings(speed=SPEED)) as two,
        serve(EngineSettings(speed=SPEED)) as three,
    ):
        urls = {name: [engine.url] for name, engine in zip(names, (one, two, three), strict=True)}
        pools = {name: {"model": name, "served_model": f"demo@fault={fault}"} for name, fault in names.items()}
        async with serving(config_for(urls, pools=pools, model=[{"name": name} for name in names])) as gateway:
            found = await run("broken", f"{gateway.url}/v1")

    assert (found["cut"]["name"], found["cut"]["code"]) == ("APIError", "stream_truncated")
    assert SIXTY.startswith(found["cut"]["text"])
    assert found["cut"]["text"]
    assert (found["down"]["name"], found["down"]["status"]) == ("InternalServerError", 500)
    assert (found["busy"]["name"], found["busy"]["status"]) == ("RateLimitError", 429)
