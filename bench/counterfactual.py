"""Check what the ledger says that calls would have cost elsewhere, by a replay of the same trace there, on embedded engines.

    python -m bench.counterfactual             # one JSON line each; exit 1 when an estimate is off by more than 5 %

A trace is served three times, each time by fresh engines and a fresh gateway: as routed, all baseline, all speculative. What
the routed calls were estimated to cost under a pure policy stands beside what that policy's replay did cost.

Before that the trace is served four times, by both pools in turns, and not counted: that teaches what exploration teaches in
some hours of traffic, about a hundred samples for each tenth of the score. With --lessons 0 estimates of what was never tried
rest on the shipped prior, which is optimistic by design.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final, Literal

import httpx

from gateway.app import Gateway
from gateway.config import Config, key_digest, parse
from gateway.engine import EngineSettings
from gateway.engine import serve as serve_engine
from gateway.record import Finished
from gateway.serve import server_of

Policy = Literal["auto", "baseline", "speculative"]
KEY: Final = "sk-bench"
BOTH: Final = ("speculative", "baseline")
TOLERANCE: Final = 0.05
PRICE: Final = 18.0
# What is predictable and what is not, so that routing sends calls both ways; each form speaks of each subject.
FORMS: Final = (
    "Count from 1 to 80, one line for each {}.",
    "Tell me a story about {}.",
    "Write a JSON array of objects about {} with the fields name, number and year.",
    "What do you think of {}?",
    "Make a markdown table of ten {} with three columns.",
    "Give me advice about {}.",
    "Repeat the words {} forty times.",
    "Write a poem about {}.",
    "Write a Python function that counts {} and a test for it.",
    "Why do people care about {}?",
)
SUBJECTS: Final = ("lanterns", "sea birds", "old letters", "night trains", "gardens", "harbours")
PROMPTS: Final = tuple(form.format(subject) for subject in SUBJECTS for form in FORMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a trace is served: calls at once, calls of a pass, tokens of an answer, and how much faster than real engines."""

    at_once: int
    calls: int
    tokens: int
    speed: float
    lessons: int


def main() -> int:
    """Replay, and print what was estimated and what was paid; 1 when they differ by more than 5 %."""
    parser = argparse.ArgumentParser(prog="python -m bench.counterfactual", description=__doc__)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--speed", type=float, default=6.0)
    parser.add_argument("--lessons", type=int, default=4, help="passes that teach and do not count")
    args = parser.parse_args()
    setting = Setting(
        at_once=args.at_once, calls=args.calls, tokens=args.tokens, speed=args.speed, lessons=args.lessons
    )
    errors = asyncio.run(_compare(setting))
    return 1 if max(map(abs, errors)) > TOLERANCE else 0


async def _compare(setting: Setting) -> list[float]:
    routed = await replay("auto", setting)
    paid = sum(call.cost_usd for call in routed)
    pools = sorted({call.pool for call in routed})
    share = {pool: sum(call.pool == pool for call in routed) / len(routed) for pool in pools}
    _tell(policy="as routed", paid_usd=paid, calls=len(routed), share=share)
    errors = []
    for policy in ("baseline", "speculative"):
        estimated = sum(call.counterfactual[policy] for call in routed)
        actual = sum(call.cost_usd for call in await replay(policy, setting))
        errors.append(estimated / actual - 1)
        _tell(policy=f"all {policy}", estimated_usd=estimated, paid_usd=actual, error=errors[-1])
    return errors


def _tell(**figures: object) -> None:
    print(json.dumps({"bench": "counterfactual", **figures}))
    sys.stdout.flush()


async def replay(policy: Policy, setting: Setting) -> list[Finished]:
    """Serve the trace under a policy, after the lessons where calls are routed, and return its calls.

    Raises:
        RuntimeError: a call did not end well.
    """
    async with _served(policy, setting.speed) as (url, finished), httpx.AsyncClient(timeout=120) as client:
        for lesson in range(setting.lessons if policy == "auto" else 0):
            await _pass(client, url, setting, [BOTH[(n + lesson) % 2] for n in range(setting.calls)])
            finished.clear()
        await _pass(client, url, setting, ["auto"] * setting.calls)
        unwell = [call.outcome for call in finished if call.outcome != "ok"]
        if unwell or len(finished) != setting.calls:
            raise RuntimeError(
                f"{len(finished)} of {setting.calls} calls ended, {len(unwell)} of them unwell: {unwell[:3]}"
            )
        return list(finished)


async def _pass(client: httpx.AsyncClient, url: str, setting: Setting, routes: Sequence[str]) -> None:
    """Send the trace; `routes` says where each of its calls is to go."""
    turns = asyncio.Semaphore(setting.at_once)

    async def call(prompt: str, route: str) -> None:
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": setting.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with turns:
            headers = {"authorization": f"Bearer {KEY}", "x-draftlane-route": route}
            await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)

    trace = islice(cycle(PROMPTS), setting.calls)
    await asyncio.gather(*(call(prompt, route) for prompt, route in zip(trace, routes, strict=True)))


@asynccontextmanager
async def _served(policy: Policy, speed: float) -> AsyncIterator[tuple[str, list[Finished]]]:
    """Run two engines and a gateway; yield its address and the list that its finished calls come into."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(serve_engine(EngineSettings(kind=kind, speed=speed)))
            for kind in ("speculative", "baseline")
        ]
        gateway = Gateway(_config(policy, speed, [engine.url for engine in engines]))
        finished: list[Finished] = []
        gateway.api.add_sink(finished.append)
        server = server_of(gateway, gateway.pipeline.live.config)
        listener = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started:  # noqa: ASYNC110 - the server tells no event
                await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", finished
        finally:
            server.should_exit = True
            await task


def _config(policy: Policy, speed: float, urls: Sequence[str]) -> Config:
    def pool(kind: str, url: str, **more: Any) -> dict[str, Any]:
        step = {"speculative": 0.105, "baseline": 0.045}[kind] / speed
        return {
            "name": kind,
            "kind": kind,
            "model": "demo",
            "price_per_hour": PRICE,
            "step_seconds": step,
            "ttft_seconds": 0.1 / speed,
            "replica": [{"url": url}],
            **more,
        }

    return parse(
        {
            "server": {"port": 0, "log": "off", "drain_seconds": 1.0},
            "model": [{"name": "demo"}],
            "pool": [pool("speculative", urls[0], window=7, drafter="draft_model"), pool("baseline", urls[1])],
            "tenant": [{"name": "bench", "key_sha256": [key_digest(KEY)], "policy": policy}],
            "routing": {"seed": 1},
        }
    )


if __name__ == "__main__":
    sys.exit(main())
