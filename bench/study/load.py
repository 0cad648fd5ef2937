"""A closed loop of so many calls at once: whenever one ends the next begins. Every sample is handed on as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.measure.load.sample import Sample
from gateway.measure.load.sending import Endpoint, measure, open_client
from gateway.measure.load.trace import Request


@dataclass(frozen=True, slots=True)
class Job:
    """One call to make."""

    endpoint: Endpoint
    request: Request
    repeat: int = 0


def blocks(asked: Sequence[Request], concurrency: int) -> list[Sequence[Request]]:
    """Return requests in blocks of four times as many as are under way at once, for pools that take turns."""
    size = 4 * concurrency
    return [asked[start : start + size] for start in range(0, len(asked), size)]


async def closed_loop(jobs: Sequence[Job], concurrency: int, take: Callable[[Sample], None]) -> None:
    """Make all calls, `concurrency` at once, in order; `take` gets each sample when its call has ended."""
    waiting = deque(jobs)

    async with open_client() as client:

        async def work() -> None:
            while waiting:
                job = waiting.popleft()
                take(await measure(client, job.endpoint, job.request, repeat=job.repeat))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(jobs))):
                group.create_task(work())
