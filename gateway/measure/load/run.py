"""A run: sends jobs at their pace and hands on every sample, until the end, a stop, or an endpoint that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from msgspec.structs import replace

from gateway.measure.load.pacing import Job, Pace
from gateway.measure.load.sample import ResultsError, Sample
from gateway.measure.load.trace import TraceError

# Between the first calls of a closed loop, so that one core can send them without one waiting for the other (1 to 2 ms each).
RAMP: Final = 0.005
Send = Callable[[Job], Awaitable[Sample]]


class Run:
    """Sends jobs.

    Args:
        send: measures one call.
        sink: takes each sample; a ResultsError that it raises ends the run.
        pace: how many at once.
        stop_after: so many calls in a row without an HTTP answer end the run.
        settle: completes a sample after the call's place is free, such as by its receipt.

    Attributes:
        sent: calls sent.
        ended: calls that gave a sample.
        errors: of these, those without a whole answer.
        lost: calls that were left before they gave a sample.
        stopped: why the run ended early, or None.
    """

    def __init__(
        self,
        send: Send,
        sink: Callable[[Sample], None],
        pace: Pace,
        *,
        stop_after: int,
        settle: Callable[[Sample], Awaitable[Sample]] | None = None,
    ) -> None:
        self._send, self._sink, self._settle = send, sink, settle
        self._most = pace.at_once
        self._gate = asyncio.Semaphore(pace.at_once)
        self._stop_after = stop_after
        self._silent = 0  # calls in a row without an HTTP answer
        self._sender: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._leaving = False
        self.sent = self.ended = self.errors = self.lost = 0
        self.stopped: str | None = None

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self._calls)

    async def all(self, jobs: Iterable[Job]) -> None:
        """Send the jobs; returns when every call that was sent has ended or been left."""
        async with asyncio.TaskGroup() as group:
            self._sender = group.create_task(self._send_all(jobs, group))

    def stop(self, reason: str) -> None:
        """Send no more; a second stop leaves the calls that are under way."""
        if self.stopped is not None:
            self._leave()
            return
        self.stopped = reason
        if self._sender is not None:
            self._sender.cancel()

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            self.lost = len(self._calls)
            for call in self._calls:
                call.cancel()

    async def _send_all(self, jobs: Iterable[Job], group: asyncio.TaskGroup) -> None:
        try:
            await self._send_each(jobs, group)
        except TraceError as error:  # the file is gone, or was changed
            self.stopped = str(error)

    async def _send_each(self, jobs: Iterable[Job], group: asyncio.TaskGroup) -> None:
        begun, clock = time.perf_counter(), time.time()
        for job in jobs:
            if job.due is not None:
                await asyncio.sleep(max(begun + job.due - time.perf_counter(), 0.0))
            elif 0 < self.sent < self._most:
                await asyncio.sleep(RAMP)
            await self._gate.acquire()
            call = group.create_task(self._call(job, clock))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            self.sent += 1

    async def _call(self, job: Job, begun: float) -> None:
        try:
            sample = await self._send(job)
        finally:
            self._gate.release()
        if self._settle is not None:
            sample = await self._settle(sample)
        late = None if job.due is None else max(sample.started - begun - job.due, 0.0)
        self._end(replace(sample, late_seconds=late))

    def _end(self, sample: Sample) -> None:
        self.ended += 1
        self.errors += not sample.ok
        try:
            self._sink(sample)
        except ResultsError as error:  # nothing that is still under way could be kept either
            self.stop(str(error))
            self._leave()
            return
        if sample.answered:
            self._silent = 0
        elif not sample.status:
            self._silent += 1
            if self._silent >= self._stop_after and self.stopped is None:
                self.stop(f"{self._silent} calls in a row had no answer, the last: {sample.error}")
