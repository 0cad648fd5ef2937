"""How fast engines are on this machine: seconds per step alone and in company, which routing starts from."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.measure.lab.errors import LabError
from gateway.measure.load.sample import Sample
from gateway.measure.load.sending import Endpoint, measure, open_client
from gateway.measure.load.trace import Request

# Two that drafts find easy and two that they do not, as a step with a draft to verify takes longer than one without.
_PROMPTS: Final = (
    "Write this line ten times: The lamp is on and the door is closed.",
    "Tell a story about a lighthouse keeper who finds a letter in a bottle.",
    "Write a JSON list of eight products, each with the keys id, name and price.",
    "Why do people like to watch the sea?",
)
_TOKENS: Final = 48


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per step of a call alone, by what share each further call lengthens it, and seconds to the first token."""

    step_seconds: float
    growth: float
    ttft_seconds: float


async def pace(url: str, *, model: str, slots: int) -> Pace:
    """Measure an engine that nobody else uses: alone, then with all slots taken. Takes about 20 s.

    Raises:
        LabError: it does not answer.
    """
    endpoint = Endpoint(name="pace", url=url, model=model)
    alone = await _load(endpoint, 2 * len(_PROMPTS), 1)
    step = _step_seconds(alone)
    growth = 0.0
    if slots > 1:
        full = _step_seconds(await _load(endpoint, slots, slots))
        growth = max(0.0, (full / step - 1.0) / (slots - 1))
    return Pace(step, growth, statistics.median(one.ttft_seconds or 0.0 for one in alone))


async def paces(urls: Sequence[str], *, model: str, slots: int, apart: bool) -> list[Pace]:
    """Measure several engines: side by side where they are `apart`, on processors of their own, else one after another."""
    if apart:
        return list(await asyncio.gather(*(pace(url, model=model, slots=slots) for url in urls)))
    return [await pace(url, model=model, slots=slots) for url in urls]


async def _load(endpoint: Endpoint, calls: int, at_once: int) -> list[Sample]:
    gate = asyncio.Semaphore(at_once)

    async def one(index: int) -> Sample:
        body = {
            "messages": [{"role": "user", "content": _PROMPTS[index % len(_PROMPTS)]}],
            "temperature": 0,
            "max_tokens": _TOKENS,
            "min_tokens": _TOKENS,
        }
        async with gate:
            return await measure(
                client, endpoint, Request(line=index + 1, id=f"pace-{index}", path="/v1/chat/completions", body=body)
            )

    async with open_client() as client:
        samples = await asyncio.gather(*(one(index) for index in range(calls)))
    if failed := next((sample.error for sample in samples if sample.error), None):
        raise LabError(f"{endpoint.url} does not answer as it should: {failed}")
    return list(samples)


def _step_seconds(samples: Sequence[Sample]) -> float:
    """Return seconds per step as the quicker half of the calls had it: what else the machine does only ever slows them."""
    paces = sorted(
        (one.e2e_seconds - (one.ttft_seconds or 0.0))
        / max(1.0, (one.completion_tokens or 1) / (one.acceptance_length or 1.0) - 1.0)
        for one in samples
    )
    return statistics.fmean(paces[: max(1, len(paces) // 2)])
