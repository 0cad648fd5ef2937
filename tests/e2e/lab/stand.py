"""What the tests of the lab stand on: the addresses of engines and gateway, and ways to ask what they have done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from gateway.measure.lab.front import ADMIN_KEY, KEY
from gateway.measure.lab.pace import Pace
from gateway.measure.lab.place import SERVED

# As an idle machine has it with one core for each engine; the gateway learns the truth from the calls.
PACE = Pace(step_seconds=0.04, growth=0.06, ttft_seconds=0.1)
EXPLORES_NOT = {"routing": {"explore_near": 0.0, "explore_far": 0.0, "seed": 1}}
SECONDS = 420  # for a test that has to wait until engines are up
COUNTING = "Write all numbers from 100 to 160, separated by commas: 100, 101, 102, 103,"
COPYING = "Copy this row again and again: | 0 | 0 | 1 | 0 |\n| 0 | 0 | 1 | 0 |\n| 0 | 0 | 1 | 0 |\n| 0 | 0 | 1 | 0 |\n"
STORY = "Tell a story about a lighthouse keeper who finds a letter in a bottle."


def chat(prompt: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a greedy chat call."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": SERVED, "messages": messages, "temperature": 0, "max_tokens": 48, **fields}


def begun(prompt: str, answer: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a call whose answer has begun already and goes on."""
    body = chat(prompt, add_generation_prompt=False, continue_final_message=True, **fields)
    body["messages"].append({"role": "assistant", "content": answer})
    return body


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the condition's first true value; fails when there is none in time."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return value


@dataclass(frozen=True, slots=True)
class Engine:
    """A real engine."""

    url: str
    http: httpx.Client

    def ask(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
        """Make a call without the gateway."""
        return self.http.post(self.url + path, json=body)

    def told(self, name: str, **labels: str) -> float:
        """Return a figure of its metrics, summed over the labels that are not named."""
        text = self.http.get(self.url + "/metrics").text
        return sum(sample.value for sample in _samples(text, name) if labels.items() <= sample.labels.items())


@dataclass(frozen=True, slots=True)
class Front:
    """A gateway's process before real engines."""

    url: str
    log: Path
    http: httpx.Client
    ending: ExitStack  # closes what clients were made

    @property
    def openai(self) -> OpenAI:
        """The official client, pointed here; it neither waits long nor tries again."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=60)
        self.ending.callback(client.close)
        return client

    def ask(self, body: dict[str, Any], route: str = "auto", path: str = "/v1/chat/completions") -> httpx.Response:
        """Make a call; `route` is what the client wants."""
        headers = {"authorization": f"Bearer {KEY}", "x-draftlane-route": route}
        return self.http.post(self.url + path, json=body, headers=headers)

    def settled(self, answer: httpx.Response) -> dict[str, Any]:
        """Return the gateway's own line about a call, once it is written."""
        wanted = answer.headers["x-request-id"]

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines() if line.get("request_id") == wanted), None)

        line: dict[str, Any] = until(found, 10, f"a line about call {wanted}")
        return line

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the gateway's lines about calls."""
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def state(self) -> dict[str, Any]:
        """Return the gateway's state, as operators see it."""
        answer = self.http.get(f"{self.url}/draftlane/state", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        return answer.json()  # type: ignore[no-any-return]

    def pool(self, name: str) -> dict[str, Any]:
        """Return a pool's state."""
        return next(pool for pool in self.state()["pools"] if pool["name"] == name)

    def told(self, name: str, **labels: str) -> float:
        """Return a figure of its metrics, summed over the labels that are not named."""
        text = self.http.get(f"{self.url}/metrics", headers={"authorization": f"Bearer {ADMIN_KEY}"}).text
        return sum(sample.value for sample in _samples(text, name) if labels.items() <= sample.labels.items())


def _samples(text: str, name: str) -> Iterator[Any]:
    for family in text_string_to_metric_families(text):
        yield from (sample for sample in family.samples if sample.name == name)
