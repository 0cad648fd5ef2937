"""A careful client of chat completions: what it makes of an answer, to the last event."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from bench.stand import HEADERS

PROMPT = "Count from 1 to 24, one number per line."


@dataclass(slots=True)
class Result:
    """What the caller has in the end; `seconds` from the request to its last byte, `pool` as the gateway tells it."""

    outcome: Literal["success", "error", "hang"] = "error"
    text: str = ""
    status: int = 0
    code: str | None = None
    message: str = ""
    pool: str = ""
    request_id: str = ""
    usage: dict[str, Any] | None = None
    seconds: float = 0.0
    sent_at: float = field(default_factory=time.monotonic)


async def call(client: httpx.AsyncClient, url: str, model: str, *, stream: bool, limit: float, **fields: Any) -> Result:
    """Ask once, for at most `limit` seconds; nothing that goes wrong is raised."""
    result = Result()
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "max_tokens": 400,
        **fields,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with asyncio.timeout(limit):
            await _ask(client, f"{url}/v1/chat/completions", body, result)
    except TimeoutError:
        result.outcome, result.message = "hang", f"no end within {limit:g} s"
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        result.outcome, result.message = "error", f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - result.sent_at
    return result


async def _ask(client: httpx.AsyncClient, url: str, body: dict[str, Any], result: Result) -> None:
    async with client.stream("POST", url, json=body, headers=HEADERS, timeout=None) as response:
        result.status = response.status_code
        result.pool = response.headers.get("x-draftlane-pool", "")
        result.request_id = response.headers.get("x-request-id", "")
        if response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"):
            await _read_events(response, result)
            return
        answer = json.loads(await response.aread())
        if response.status_code != 200:
            _fail(result, answer["error"])
            return
        result.text, result.usage = answer["choices"][0]["message"]["content"], answer.get("usage")
        result.outcome = "success"


async def _read_events(response: httpx.Response, result: Result) -> None:
    """Read to the end: an error event is an error, what is no JSON is passed over, an end is what finishes the answer."""
    finished = False
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            break
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if "error" in event:
            _fail(result, event["error"])
            return
        result.usage = event.get("usage") or result.usage
        for choice in event["choices"]:
            result.text += choice["delta"].get("content") or ""
            finished = finished or choice["finish_reason"] is not None
    # A stream that just ends is taken for a success: most clients do, and so a truncated answer shows as what it is.
    result.outcome = "success" if finished or result.text else "error"


def _fail(result: Result, error: dict[str, Any]) -> None:
    result.outcome, result.code, result.message = "error", error.get("code"), str(error.get("message"))
