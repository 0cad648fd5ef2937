"""The measuring of a sweep: the same prompts on every window, side by side where all engines are up, else one after another.

Side by side, prompts are taken in blocks and a block goes to one window after another, the first one in turn: only one engine
is under load at a time, and what changes with the hour changes for all. One after another, the hour is in the figures.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx

from gateway.measure.load.pacing import Job, Pace
from gateway.measure.load.run import Run
from gateway.measure.load.sample import ResultsError, Sample
from gateway.measure.load.sending import Endpoint, Timeouts, measure, open_client
from gateway.measure.load.trace import Request
from gateway.measure.windows.candidate import Candidate
from gateway.measure.windows.curve import Load

_BLOCK: Final = 4  # calls per call under way: the end of a block, where fewer are, is then a small part of it
_BLOCK_SECONDS: Final = 20.0  # of a block at a rate
_PATIENCE: Final = 5  # calls in a row without an answer, beyond those under way, after which an engine is given up
_PATIENCE_AT_A_RATE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, at which load, and how often each prompt."""

    requests: Sequence[Request]
    load: Load
    repeats: int = 1
    seed: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def at_once(self) -> int:
        """Calls under way at most; at a rate as many as it takes."""
        return 512 if self.load.rate is not None else self.load.at_once or 1

    @property
    def patience(self) -> int:
        """Calls in a row without an answer after which an engine is given up."""
        return _PATIENCE_AT_A_RATE if self.load.rate is not None else _PATIENCE + self.at_once

    def blocks(self, repeat: int) -> list[list[Request]]:
        """Return the requests in an order that is drawn, in blocks."""
        requests = list(self.requests)
        random.Random(f"{self.seed}/{repeat}").shuffle(requests)
        rate = self.load.rate
        size = max(8, round(rate * _BLOCK_SECONDS)) if rate is not None else _BLOCK * self.at_once
        return [requests[start : start + size] for start in range(0, len(requests), size)]

    def pace(self, block: int) -> Pace:
        """Return how a block is sent; at a rate all windows have the same arrivals."""
        rate = self.load.rate
        if rate is None:
            return Pace(kind="concurrency", at_once=self.at_once)
        return Pace(kind="rate", at_once=self.at_once, rate=rate, seed=self.seed + block)


def _unseen(sample: Sample) -> None:
    """Show a sample to nobody."""


class Session:
    """Measures windows, one or several at a time.

    Args:
        plan: what to measure.
        keep: takes each new sample as soon as it is there; what it raises ends the session.
        kept: samples of the same plan that are there already; calls that were answered are not made again.

    Attributes:
        seen: is told of each new sample.
        gone: why a window was given up, by candidate.
    """

    def __init__(self, plan: Plan, keep: Callable[[Sample], None], kept: Iterable[Sample] = ()) -> None:
        self.plan, self._keep = plan, keep
        self.seen: Callable[[Sample], None] = _unseen
        self._calls = {sample.key: sample for sample in kept}
        self._silent: Counter[Candidate] = Counter()
        self.gone: dict[Candidate, str] = {}

    @property
    def samples(self) -> list[Sample]:
        """What has been measured so far."""
        return list(self._calls.values())

    def left(self, candidates: Iterable[Candidate]) -> int:
        """Return how many calls these still need."""
        wanted = (
            (one.label, request.line, repeat)
            for one in candidates
            for repeat in range(self.plan.repeats)
            for request in self.plan.requests
        )
        return sum(not self._done(key) for key in wanted)

    async def run(self, endpoints: Sequence[tuple[Candidate, Endpoint]]) -> None:
        """Measure these windows side by side; one that does not answer is given up, and the others go on.

        Raises:
            ResultsError: a sample could not be kept.
        """
        async with open_client() as client:
            for candidate, endpoint in endpoints:
                if self.left([candidate]):
                    await self._warm_up(client, candidate, endpoint)
            turn = 0
            for repeat in range(self.plan.repeats):
                for number, block in enumerate(self.plan.blocks(repeat)):
                    order = [*endpoints[turn % len(endpoints) :], *endpoints[: turn % len(endpoints)]]
                    turn += 1
                    for candidate, endpoint in order:
                        if candidate not in self.gone:
                            await self._block(client, candidate, endpoint, block, repeat, number)

    async def _warm_up(self, client: httpx.AsyncClient, candidate: Candidate, endpoint: Endpoint) -> None:
        """Send one call whose answer does not count: connections, caches and lazily built kernels are ready after it."""
        sample = await measure(client, endpoint, self.plan.requests[0], timeouts=self.plan.timeouts)
        if not sample.answered:
            self.gone[candidate] = f"{endpoint.url}: {sample.error}"

    async def _block(
        self,
        client: httpx.AsyncClient,
        candidate: Candidate,
        endpoint: Endpoint,
        block: Sequence[Request],
        repeat: int,
        number: int,
    ) -> None:
        """Send what is missing of a block to one window."""
        todo = [(repeat, one) for one in block if not self._done((candidate.label, one.line, repeat))]
        broken: list[ResultsError] = []

        async def send(job: Job) -> Sample:
            return await measure(client, endpoint, job.request, repeat=job.repeat, timeouts=self.plan.timeouts)

        def sink(sample: Sample) -> None:
            self._calls.pop(sample.key, None)
            self._calls[sample.key] = sample
            self._silent[candidate] = 0 if sample.answered else self._silent[candidate] + 1
            if self._silent[candidate] >= self.plan.patience:
                run.stop("silent")
            self.seen(sample)
            try:
                self._keep(sample)
            except ResultsError as error:
                broken.append(error)
                raise

        pace = self.plan.pace(number)
        run = Run(send, sink, pace, stop_after=self.plan.patience)
        await run.all(pace.jobs(todo))
        if broken:
            raise broken[0]
        if run.stopped is not None:
            last = next(sample for sample in reversed(self._calls.values()) if sample.target == candidate.label)
            self.gone[candidate] = f"{endpoint.url}: {last.error}"

    def _done(self, key: tuple[str, int, int]) -> bool:
        return key in self._calls and self._calls[key].answered
