"""A comparison that measures: from the command's options to a session, its samples and what they say."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.measure.load.busy import BUSY, LATE, Busy
from gateway.measure.load.control import WrongModel, check_models, models
from gateway.measure.load.progress import Progress
from gateway.measure.load.replay import Keeper, Memory
from gateway.measure.load.sample import Results, ResultsError, Sample
from gateway.measure.load.sending import Endpoint, Timeouts, open_client
from gateway.measure.load.survey import Survey, Trace
from gateway.measure.load.trace import Request, TraceError
from gateway.measure.paired.compared import Terms, comparison, with_difference
from gateway.measure.paired.outputs import look
from gateway.measure.paired.result import Comparison, Difference, Ended
from gateway.measure.paired.session import Plan, Session

_NAMED: Final = 10  # bad lines that are named


class WrongUse(Exception):
    """Options that cannot be meant; the message names them and says what to do."""


def measured(
    args: argparse.Namespace, env: Mapping[str, str], stack: ExitStack
) -> tuple[Comparison, list[Sample], str]:
    """Measure as the options say; returns what was found, in which calls, and the model's name.

    Raises:
        WrongUse, WrongModel, TraceError: the options or the requests cannot be meant.
        EndpointError: an endpoint is not there.
        ResultsError: the results file cannot be begun.
    """
    pools = endpoints(args, env)
    trace = stack.enter_context(Trace(args.file, defaults=dict(args.default), limit=args.limit))
    survey = trace.survey()
    _check_lines(args, survey)
    with asyncio.Runner() as runner:
        pools = runner.run(_with_models(pools, survey))
        requests = [_heated(request, args.temperature) for request in trace.requests()]
        plan = Plan(
            requests=requests,
            endpoints=pools,
            levels=args.concurrency,
            repeats=args.repeats,
            budget_seconds=args.budget_seconds,
            budget_requests=args.budget_requests,
            terms=Terms(precision=args.precision, seed=args.seed),
            timeouts=Timeouts(silence=args.idle_seconds),
        )
        settings = settings_of(args, plan, survey)
        keeper: Keeper = (
            Memory() if args.out is None else stack.enter_context(Results(args.out, settings, resume=args.resume))
        )
        return _run(runner, plan, keeper, settings)


def _run(
    runner: asyncio.Runner, plan: Plan, keeper: Keeper, settings: Mapping[str, Any]
) -> tuple[Comparison, list[Sample], str]:
    busy = Busy()
    session = Session(plan, keeper.append, keeper.kept)
    try:
        ended = runner.run(_measure(session, busy))
    except KeyboardInterrupt:
        ended = Ended(by="interrupted", text="interrupted")
    except ResultsError as error:
        ended = Ended(by="interrupted", text=str(error))
    if not ended.whole:
        sys.stderr.write(f"draftlane compare: {ended.text}\n")
    if not any(sample.ok for sample in session.samples):
        raise ResultsError("nothing was measured")
    found = comparison(
        session.samples,
        plan.names,
        plan.terms,
        ended,
        endings=session.endings,
        settings=settings,
        notes=_notes(plan, busy),
    )
    if ended.whole:
        found = with_difference(found, lambda difference: _look(runner, difference, plan))
    return found, session.samples, plan.endpoints[0].model or "unknown"


async def _measure(session: Session, busy: Busy) -> Ended:
    async with busy, Progress(sys.stderr, session, session.left):
        return await session.run()


def _look(runner: asyncio.Runner, difference: Difference, plan: Plan) -> Difference:
    return runner.run(look(difference, plan.requests, plan.endpoints, plan.timeouts))


def endpoints(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[Endpoint, Endpoint]:
    """Return both pools.

    Raises:
        WrongUse: an address is none, or a key is not in the environment.
    """
    found = []
    for half, (option, url, price) in enumerate(
        (
            ("--baseline", args.baseline, args.price_baseline),
            ("--speculative", args.speculative, args.price_speculative),
        )
    ):
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise WrongUse(f"{option} {url}: expected an address such as http://127.0.0.1:8000")
        if "@" in address.netloc:  # it would stand in results and reports
            raise WrongUse(f"{option}: expected an address without a name and a password; give a key with --key-env")
        key = args.key_env[min(half, len(args.key_env) - 1)] if args.key_env else None
        if key is not None and not env.get(key):
            raise WrongUse(f"--key-env: {key} is not set in the environment; export the key under this name")
        found.append(
            Endpoint(
                name=args.names[half],
                url=url,
                key=None if key is None else env[key],
                model=args.model[min(half, len(args.model) - 1)] if args.model else None,
                price_per_hour=price,
                slots=args.slots,
            )
        )
    return found[0], found[1]


async def _with_models(pools: tuple[Endpoint, Endpoint], survey: Survey) -> tuple[Endpoint, Endpoint]:
    """Ask both pools for their models, and name one where it is clear which is meant."""
    found = []
    async with open_client() as client:
        for pool, option in zip(pools, ("--baseline", "--speculative"), strict=True):
            wanted = survey.models if pool.model is None else {pool.model: 0}
            try:
                default = check_models(pool, wanted, await models(client, pool, option=option))
            except WrongModel as error:
                raise WrongModel(str(error).removeprefix("line 0: ")) from error
            found.append(pool if pool.model or default is None else replace(pool, model=default))
    return found[0], found[1]


def _check_lines(args: argparse.Namespace, survey: Survey) -> None:
    if survey.bad and not args.skip_bad:
        more = f"\n({len(survey.bad) - 1} more lines like this)" if len(survey.bad) > 1 else ""
        raise TraceError(0, f"{args.file}: {survey.bad[0]}{more}")
    for error in survey.bad[:_NAMED]:
        sys.stderr.write(f"passed over: {error}\n")
    if not survey.requests:
        raise WrongUse(f"{args.file}: no requests in it")


def _heated(request: Request, temperature: float | None) -> Request:
    if temperature is None:
        return request
    return msgspec.structs.replace(request, body={**request.body, "temperature": temperature})


def settings_of(args: argparse.Namespace, plan: Plan, survey: Survey) -> dict[str, Any]:
    """Return what must be the same for samples to be comparable; how many there should be does not matter."""
    return {
        "command": "compare",
        "names": list(plan.names),
        "urls": [pool.url for pool in plan.endpoints],
        "models": [pool.model for pool in plan.endpoints],
        "trace_sha256": survey.digest,
        "concurrency": list(plan.levels),
        "temperature": args.temperature,
        "seed": args.seed,
        "defaults": dict(args.default),
        "prices_per_hour": [pool.price_per_hour for pool in plan.endpoints],
        "slots": args.slots,
    }


def _notes(plan: Plan, busy: Busy) -> list[str]:
    found = []
    if busy.late > LATE or busy.share > BUSY:
        found.append(
            f"this machine was too slow to measure well: the sender used {busy.share:.0%} of a core and was"
            f" {1000 * busy.late:.0f} ms late at p99; measure from another machine, or at a lower concurrency"
        )
    prices = [pool.price_per_hour is None for pool in plan.endpoints]
    if any(prices) and not all(prices):
        found.append("one pool has a price and the other none, so costs are not compared")
    return found
