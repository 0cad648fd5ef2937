"""`draftlane replay`: sends one's own requests to a gateway or an engine, and tells what every call took, gave and cost."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.measure.load import replay_options
from gateway.measure.load.control import EndpointError, WrongModel
from gateway.measure.load.pacing import MOST, Pace
from gateway.measure.load.replay import Keeper, Memory, Outcome, Plan, model_for, replay
from gateway.measure.load.replay_report import as_object, as_text
from gateway.measure.load.sample import Results, ResultsError, WrongResults
from gateway.measure.load.sending import Endpoint, Timeouts
from gateway.measure.load.survey import Survey, Trace
from gateway.measure.load.trace import TraceError
from gateway.measure.publish import cloudwatch, sending

_NAMED: Final = 10  # bad lines that are named


class WrongUse(Exception):
    """Options that cannot be meant; the message names them and says what to do."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "replay", help="send a file of requests to a gateway or an engine and measure every answer"
    )
    replay_options.add(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay; 1 when the run ended before its end, or nothing was answered, 2 for wrong use."""
    try:
        sending.check(args)
        plan = plan_of(args, os.environ)
        with Trace(args.file, model=args.model, defaults=dict(args.default), limit=args.limit) as trace:
            survey = trace.survey()
            check(survey, args)
            with asyncio.Runner(loop_factory=_loop) as runner:
                if model := runner.run(model_for(plan, survey)):
                    trace.defaults["model"] = model
                with ExitStack() as stack:
                    keeper = _keeper(args, plan, survey, stack)
                    outcome = runner.run(replay(trace, survey, plan, keeper, sys.stderr))
    except (WrongUse, WrongModel, TraceError, WrongResults, sending.PublishError) as error:
        print(f"draftlane replay: {error}", file=sys.stderr)
        return 2
    except (EndpointError, ResultsError) as error:
        print(f"draftlane replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before there was a run to stop
        print("draftlane replay: interrupted; nothing was sent", file=sys.stderr)
        return 1
    return _tell(outcome, survey, plan, args)


def plan_of(args: argparse.Namespace, env: Mapping[str, str]) -> Plan:
    """Return how to send, from the options and the environment's keys.

    Raises:
        WrongUse: an option contradicts another, or a key is not in the environment.
    """
    address = urlsplit(args.to)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise WrongUse(f"--to {args.to}: expected an address such as http://127.0.0.1:8080")
    endpoint = Endpoint(
        name=args.target_name or address.netloc,
        url=args.to,
        key=_key("--key-env", args.key_env, env),
        price_per_hour=args.price_per_hour,
        slots=args.slots,
        headers=(("x-draftlane-route", args.route),) if args.route else (),
    )
    admin = _key("--admin-key-env", args.admin_key_env, env)
    return Plan(
        endpoint=endpoint,
        pace=_pace(args),
        keys={tenant: _key(f"--tenant-key {tenant}", name, env) or "" for tenant, name in args.tenant_key},
        repeats=args.repeat,
        stream=not args.json_mode,
        timeouts=Timeouts(connect=args.connect_seconds, silence=args.idle_seconds, total=args.total_seconds),
        stop_after=args.stop_after,
        receipts=(args.admin_url or args.to, admin) if admin else None,
        checked=not args.unchecked,
    )


def check(survey: Survey, args: argparse.Namespace) -> None:
    """See that the trace can be sent as it is meant.

    Raises:
        TraceError: a line cannot be sent and is not to be passed over.
        WrongUse: nothing is left, a tenant has no key, or times are asked for that the trace does not have.
    """
    if survey.bad and not args.skip_bad:
        more = f"\n({len(survey.bad) - 1:,} more cannot be sent)" if len(survey.bad) > 1 else ""
        raise TraceError(0, f"{args.file}: {survey.bad[0]}{more}")
    for error in survey.bad[:_NAMED]:
        print(f"passed over: {error}", file=sys.stderr)
    if len(survey.bad) > _NAMED:
        print(f"passed over: {len(survey.bad) - _NAMED} more lines", file=sys.stderr)
    if not survey.requests:
        raise WrongUse(f"{args.file}: no requests in it")
    if args.tenant_key and args.key_env is None:
        keys = {tenant for tenant, _ in args.tenant_key}
        if unknown := sorted(survey.tenants.keys() - keys):
            where = (
                f"line {survey.tenants[unknown[0]]}: tenant {unknown[0]!r}" if unknown[0] else "lines without a tenant"
            )
            raise WrongUse(f"{where}: no key; give one with --tenant-key, or one for all others with --key-env")
    if args.trace_times and survey.untimed is not None:
        raise WrongUse(f"line {survey.untimed}: no timestamp, which --trace-times needs; use --rate or --concurrency")
    if args.trace_times and survey.backwards is not None:
        raise WrongUse(f"line {survey.backwards}: its time lies before that of the line above; sort the trace by time")


def settings_of(args: argparse.Namespace, plan: Plan, survey: Survey) -> dict[str, Any]:
    """Return what must be the same for samples to be comparable; how many lines and repeats does not matter."""
    return {
        "command": "replay",
        "target": plan.endpoint.name,
        "trace_sha256": survey.digest,
        "model": args.model,
        "pace": str(plan.pace),
        "stream": plan.stream,
        "route": args.route,
        "defaults": dict(args.default),
        "price_per_hour": args.price_per_hour,
        "slots": args.slots,
    }


def _pace(args: argparse.Namespace) -> Pace:
    opened = args.rate is not None or args.trace_times
    if args.rate is None and (args.even or args.seed is not None):
        raise WrongUse("--even and --seed space the calls of a --rate; give one")
    if args.speedup is not None and not args.trace_times:
        raise WrongUse("--speedup is for --trace-times")
    if args.at_once is not None and not opened:
        raise WrongUse("--at-once bounds --rate and --trace-times; --concurrency says it itself")
    if not opened:
        return Pace(at_once=args.concurrency or 1)
    bound = Pace(at_once=args.at_once or MOST, seed=args.seed or 0, speedup=args.speedup or 1.0)
    if args.trace_times:
        return replace(bound, kind="trace")
    return replace(bound, kind="rate", rate=args.rate, spacing="even" if args.even else "poisson")


def _key(option: str, name: str | None, env: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    if not env.get(name):
        raise WrongUse(f"{option}: {name} is not set in the environment; export the key under this name")
    return env[name]


def _keeper(args: argparse.Namespace, plan: Plan, survey: Survey, stack: ExitStack) -> Keeper:
    if args.out is None:
        if args.resume:
            raise WrongUse("--resume goes on with a results file; name it with --out")
        return Memory()
    return stack.enter_context(Results(args.out, settings_of(args, plan, survey), resume=args.resume))


def _loop() -> asyncio.AbstractEventLoop:
    """Return the fastest loop there is: the sender must not be what is measured."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _tell(outcome: Outcome, survey: Survey, plan: Plan, args: argparse.Namespace) -> int:
    told = as_object(outcome, survey, plan)
    out = None if args.out is None else str(args.out)
    for warning in told["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if outcome.stopped is not None:
        hint = (
            f"go on with --resume --out {out}"
            if out
            else "next time, --out keeps what was measured and --resume goes on"
        )
        left = f"; {outcome.lost} calls under way were left" if outcome.lost else ""
        print(f"draftlane replay: {outcome.stopped}{left}; {hint}", file=sys.stderr)
    report = json.dumps({"file": str(args.file), "out": out, **told}) if args.json else as_text(outcome, plan)
    well = sending.give_out(args, cloudwatch.of_samples(outcome.samples), report)
    return 0 if well and outcome.stopped is None and any(sample.ok for sample in outcome.samples) else 1
