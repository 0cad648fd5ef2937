"""A replay: one trace sent to one endpoint, from the look at its models to the last sample. What is told of it is elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TextIO

import httpx

from gateway.measure.load.busy import Busy
from gateway.measure.load.control import Receipts, check_models, models
from gateway.measure.load.pacing import Job, Pace
from gateway.measure.load.progress import Progress
from gateway.measure.load.run import Run, Send
from gateway.measure.load.sample import Sample
from gateway.measure.load.sending import Endpoint, Timeouts, measure, open_client
from gateway.measure.load.survey import Survey, Trace
from gateway.measure.load.trace import Request


class Keeper(Protocol):
    """What keeps samples: a results file, or memory. `kept` are those of an earlier run that is gone on with."""

    kept: list[Sample]

    def append(self, sample: Sample) -> None:
        """Keep a sample; raises ResultsError when it cannot."""


@dataclass(slots=True)
class Memory:
    """Keeps samples until the command has ended."""

    kept: list[Sample] = field(default_factory=list)

    def append(self, sample: Sample) -> None:
        """Keep nothing: the outcome has all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a trace is sent.

    Attributes:
        keys: tenants' own keys; the others use the endpoint's.
        repeats: how often the whole trace is sent.
        stop_after: calls in a row without an answer that end the run.
        receipts: the origin and the admin key of the gateway whose receipts complete the samples.
        checked: ask for the endpoint's models first.
    """

    endpoint: Endpoint
    pace: Pace
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    repeats: int = 1
    stream: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    stop_after: int = 10
    receipts: tuple[str, str] | None = field(default=None, repr=False)
    checked: bool = True


@dataclass(slots=True)
class Outcome:
    """What became of a replay: every sample, those of earlier runs included, and why it ended before its end, if it did."""

    samples: list[Sample]
    sent: int = 0
    skipped: int = 0  # calls that an earlier run had answered
    lost: int = 0  # calls left under way
    missing: int = 0  # receipts that were not there
    stopped: str | None = None
    busy: float = 0.0  # of a core
    late: float = 0.0  # seconds, of the loop at p99
    warning: str | None = None  # of the sender


async def model_for(plan: Plan, survey: Survey) -> str | None:
    """Look whether the endpoint is there and has the trace's models; return the one for requests that name none.

    Raises:
        EndpointError: it is not there, or refuses the key.
        WrongModel: it lacks a model, or it is open which one is meant.
    """
    if not plan.checked:
        return None
    key = plan.endpoint.key or next(iter(plan.keys.values()), None)
    async with open_client() as client:
        served = await models(client, replace(plan.endpoint, key=key))
    return check_models(plan.endpoint, survey.models, served)


async def replay(trace: Trace, survey: Survey, plan: Plan, keeper: Keeper, stderr: TextIO) -> Outcome:
    """Send a trace as planned, and keep every sample as soon as there is one."""
    samples = {sample.key: sample for sample in keeper.kept}
    done = {key for key, sample in samples.items() if sample.answered}
    name = plan.endpoint.name
    total = survey.requests * plan.repeats
    outcome = Outcome([])
    if done:
        outcome.skipped = total - sum(1 for _ in _calls(trace, plan.repeats, name, done))

    def sink(sample: Sample) -> None:
        keeper.append(sample)
        samples.pop(sample.key, None)
        samples[sample.key] = sample

    async with open_client() as client, Busy() as busy:
        receipts = Receipts(client, *plan.receipts) if plan.receipts else None
        run = Run(
            _sender(client, plan),
            sink,
            plan.pace,
            stop_after=plan.stop_after,
            settle=receipts.settle if receipts else None,
        )
        async with Progress(stderr, run, total - outcome.skipped) as progress:
            with _interruptible(run, progress):
                await run.all(plan.pace.jobs(_calls(trace, plan.repeats, name, done), span=survey.span))
    outcome.samples = list(samples.values())
    outcome.sent, outcome.lost, outcome.stopped = run.sent, run.lost, run.stopped
    outcome.missing = receipts.missing if receipts else 0
    outcome.busy, outcome.late, outcome.warning = busy.share, busy.late, busy.warning
    return outcome


def _calls(trace: Trace, repeats: int, target: str, done: set[tuple[str, int, int]]) -> Iterator[tuple[int, Request]]:
    for repeat in range(repeats):
        for request in trace.requests():
            if (target, request.line, repeat) not in done:
                yield repeat, request


def _sender(client: httpx.AsyncClient, plan: Plan) -> Send:
    endpoints = {tenant: replace(plan.endpoint, key=key) for tenant, key in plan.keys.items()}

    async def send(job: Job) -> Sample:
        endpoint = endpoints.get(job.request.tenant, plan.endpoint)
        return await measure(
            client, endpoint, job.request, repeat=job.repeat, stream=plan.stream, timeouts=plan.timeouts
        )

    return send


@contextlib.contextmanager
def _interruptible(run: Run, progress: Progress) -> Iterator[None]:
    """Let the first Ctrl-C end the sending and the second leave what is under way."""
    if threading.current_thread() is not threading.main_thread():  # no other hears signals
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if run.stopped is None and run.in_flight:
            progress.note(f"stopping: {run.in_flight} calls are under way; once more leaves them")
        run.stop("interrupted")

    signals = (signal.SIGINT, signal.SIGTERM)
    for one in signals:
        loop.add_signal_handler(one, interrupted)
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
