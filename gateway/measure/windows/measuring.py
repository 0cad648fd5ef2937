"""A sweep on engines, from the trace to what was found: looked through first, kept as it goes, told however it ends."""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TextIO

from msgspec import structs

from gateway.measure.load.control import EndpointError, check_models, models
from gateway.measure.load.sample import Results, ResultsError, Sample
from gateway.measure.load.sending import Endpoint, Timeouts, open_client
from gateway.measure.load.survey import Survey, Trace
from gateway.measure.load.trace import Request, TraceError
from gateway.measure.windows import candidate, online
from gateway.measure.windows.candidate import NOTHING, Candidate
from gateway.measure.windows.curve import Load
from gateway.measure.windows.progress import Progress
from gateway.measure.windows.result import Sweep
from gateway.measure.windows.session import Plan, Session
from gateway.measure.windows.starting import Starter, StartError, by_command, by_lab

_WINDOWS: Final = tuple(range(5, 16))  # that the study tried
_NAMED: Final = 10  # bad lines that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Where windows run: engines that are up, and windows whose engines are started one after another."""

    running: Sequence[tuple[Candidate, str]]
    started: Sequence[Candidate] = ()
    starter: Starter | None = None
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, args: argparse.Namespace, key: str | None) -> Self:
        """Return the engines that options name; raises StartError for a command that is none."""
        running = [*args.endpoint, *([(NOTHING, args.baseline)] if args.baseline else [])]
        if args.endpoint:
            return cls(running=running, key=key)
        chosen = candidate.all_of(args.windows or _WINDOWS, args.drafts)
        if args.lab:
            return cls(running=running, started=[NOTHING, *chosen], starter=by_lab(), key=key)
        starter = by_command(args.start, baseline=args.start_baseline, seconds=args.start_seconds)
        before = [NOTHING] if args.start_baseline else []
        return cls(running=running, started=[*before, *chosen], starter=starter, key=key)

    @property
    def candidates(self) -> list[Candidate]:
        """All of them, no speculation first, then by draft and window."""
        found = [*self.started, *(one for one, _ in self.running)]
        return sorted(found, key=lambda one: (one.window > 0, one.draft, one.window))


def measure(args: argparse.Namespace, engines: Engines, stderr: TextIO) -> tuple[Sweep, Sequence[Sample]]:
    """Measure, and tell what was found and in which calls, also when it ended before its end.

    Raises:
        TraceError: the trace cannot be read, or sent as it is.
        WrongModel, EndpointError: an engine that should be up is not, or does not serve what is asked for.
        ResultsError: the results file cannot be used.
    """
    with ExitStack() as stack:
        trace = stack.enter_context(Trace(args.file, model=args.model, defaults=dict(args.default), limit=args.limit))
        survey = trace.survey()
        _check(survey, args, stderr)
        plan = _plan(trace, args)
        settings = _settings(args, survey, plan.load)
        file = stack.enter_context(Results(args.out, settings, resume=args.resume)) if args.out is not None else None
        session, progress = _session(plan, file, engines, stderr)
        ended = _Measuring(session, engines, survey, progress).run()
    blocks = ("engines ran one after another: what changed on the machine meanwhile is in the figures",)
    labels = {one.label for one in engines.candidates}
    samples = [sample for sample in session.samples if sample.target in labels]  # others' were resumed from the file
    found = online.sweep(
        samples,
        _terms(args, engines, plan.load),
        settings={
            "mode": "measured",
            **{name: value for name, value in settings.items() if name != "load"},
            "ttft_ms": args.ttft_ms,
            "tpot_ms": args.tpot_ms,
        },
        gone=session.gone,
        warnings=blocks if engines.started else (),
        ended=ended,
    )
    return found, samples


def _plan(trace: Trace, args: argparse.Namespace) -> Plan:
    return Plan(
        requests=[_tempered(one, args.temperature) for one in trace.requests()],
        load=Load(at_once=None, rate=args.rate) if args.rate is not None else Load(at_once=args.concurrency),
        repeats=args.repeat,
        seed=args.seed,
        timeouts=Timeouts(silence=args.idle_seconds),
    )


def _terms(args: argparse.Namespace, engines: Engines, load: Load) -> online.Terms:
    return online.Terms(
        candidates=engines.candidates,
        load=load,
        promise=online.Promise(
            ttft_seconds=args.ttft_ms / 1000 if args.ttft_ms is not None else None,
            tpot_seconds=args.tpot_ms / 1000 if args.tpot_ms is not None else None,
        ),
        seed=args.seed,
    )


def _check(survey: Survey, args: argparse.Namespace, stderr: TextIO) -> None:
    """See that there is something to send, and that bad lines are meant to be passed over."""
    if survey.bad and not args.skip_bad:
        more = f"\n({len(survey.bad) - 1} more lines like this)" if len(survey.bad) > 1 else ""
        raise TraceError(0, f"{args.file}: {survey.bad[0]}{more}")
    stderr.writelines(f"passed over: {error}\n" for error in survey.bad[:_NAMED])
    if not survey.requests:
        raise TraceError(0, f"{args.file}: no requests in it")


def _tempered(request: Request, temperature: float | None) -> Request:
    if temperature is None:
        return request
    return structs.replace(request, body={**request.body, "temperature": temperature})


def _settings(args: argparse.Namespace, survey: Survey, load: Load) -> dict[str, Any]:
    """Return what must be the same for samples to be comparable: windows, repeats and what counts may change."""
    return {
        "command": "sweep",
        "trace_sha256": survey.digest,
        "model": args.model,
        "load": str(load),
        "temperature": args.temperature,
        "defaults": dict(args.default),
        "seed": args.seed,
    }


def _session(plan: Plan, file: Results | None, engines: Engines, stderr: TextIO) -> tuple[Session, Progress]:
    keep: Callable[[Sample], None] = file.append if file is not None else _forget
    session = Session(plan, keep, file.kept if file is not None else ())
    progress = Progress(stderr, session.left(engines.candidates))
    session.seen = progress.saw
    return session, progress


def _forget(sample: Sample) -> None:
    """Keep nothing: the session has all samples."""


@contextmanager
def _ending_as_asked() -> Iterator[None]:
    """Let SIGTERM end the sweep as Ctrl-C does: engines that it started are stopped, and what was measured is told."""
    if threading.current_thread() is not threading.main_thread():  # no other hears signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Measuring:
    """Brings every window that still lacks calls before the session."""

    def __init__(self, session: Session, engines: Engines, survey: Survey, progress: Progress) -> None:
        self._session, self._engines, self._survey, self._progress = session, engines, survey, progress

    def run(self) -> str | None:
        """Measure all; return why it ended before its end, or None."""
        try:
            with _ending_as_asked(), asyncio.Runner() as runner:
                running = [
                    (one, runner.run(self._endpoint(one, url))) for one, url in self._engines.running if self._open(one)
                ]
                if running:
                    runner.run(self._session.run(running))
                for one in filter(self._open, self._engines.started):
                    self._start(one, runner)
        except ResultsError as error:
            return str(error)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self._progress.done()
        return None

    def _open(self, one: Candidate) -> bool:
        return self._session.left([one]) > 0

    def _start(self, one: Candidate, runner: asyncio.Runner) -> None:
        """Measure one window on an engine that is started for it; one that does not come up does not end the others."""
        assert self._engines.starter is not None
        self._progress.note(f"starting an engine for {one}")
        try:
            with self._engines.starter(one) as url:
                endpoint = runner.run(self._endpoint(one, url))
                runner.run(self._session.run([(one, endpoint)]))
        except (StartError, EndpointError) as error:
            self._session.gone[one] = str(error)
            self._progress.note(str(error))

    async def _endpoint(self, one: Candidate, url: str) -> Endpoint:
        """Return an engine with the model for requests that name none; raises EndpointError and WrongModel."""
        endpoint = Endpoint(name=one.label, url=url, key=self._engines.key)
        option = "--start" if self._engines.starter else "--endpoint" if one.window else "--baseline"
        async with open_client() as client:
            served = await models(client, endpoint, option=option)
        return replace(endpoint, model=check_models(endpoint, self._survey.models, served))
