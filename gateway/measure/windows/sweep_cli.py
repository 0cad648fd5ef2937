"""`draftlane sweep`: which window, and which draft, suits one's own prompts best at the load that they come in."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.measure.load.control import EndpointError, WrongModel
from gateway.measure.load.sample import ResultsError, WrongResults
from gateway.measure.load.trace import TraceError
from gateway.measure.publish import cloudwatch, sending
from gateway.measure.publish.cloudwatch import Metric
from gateway.measure.publish.results import sweep_of
from gateway.measure.windows import offline, records, result, sweep_options
from gateway.measure.windows.measuring import Engines, measure
from gateway.measure.windows.result import StepModel, Sweep, SweepError
from gateway.measure.windows.starting import StartError
from gateway.measure.windows.words import text

_ONLINE: Final = ("endpoint", "start", "start_baseline", "baseline", "out", "ttft_ms", "rate", "drafts")
_OFFLINE: Final = ("step_base_ms", "step_per_token_ms", "steps_from", "baseline_step_ms", "nxdi")


class WrongUse(Exception):
    """Options that cannot be meant; the message names them and says what to do."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("sweep", help="find the best window and draft for one's own prompts")
    sweep_options.add(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sweep; 1 when it ended before its end or found no best window, 2 for wrong use."""
    try:
        check(args)
        sending.check(args)
        found, metrics = _recorded(args) if args.source is not None else _measured(args)
    except (
        WrongUse,
        WrongModel,
        TraceError,
        WrongResults,
        records.RecordError,
        SweepError,
        sending.PublishError,
    ) as error:
        print(f"draftlane sweep: {error}", file=sys.stderr)
        return 2
    except (EndpointError, ResultsError, StartError) as error:
        print(f"draftlane sweep: {error}", file=sys.stderr)
        return 1
    report = result.as_json(found) if args.json else text(found)
    well = sending.give_out(args, metrics, report)
    return 1 if not well or found.ended is not None or result.ALL not in found.best else 0


def _recorded(args: argparse.Namespace) -> tuple[Sweep, Sequence[Metric]]:
    found = from_records(args)
    return found, cloudwatch.of_sweep(sweep_of(found), time.time())


def _measured(args: argparse.Namespace) -> tuple[Sweep, Sequence[Metric]]:
    found, samples = measure(args, engines(args, os.environ), sys.stderr)
    return found, cloudwatch.of_samples(samples)


def check(args: argparse.Namespace) -> None:
    """See that the options go together.

    Raises:
        WrongUse: they do not.
    """
    offline_ = args.source is not None
    if offline_ == (args.file is not None):
        raise WrongUse(
            "give FILE with requests, or --from with recorded acceptance" + (", not both" if offline_ else "")
        )
    for name in _ONLINE if offline_ else _OFFLINE:
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise WrongUse(f"{option}: means nothing {'with' if offline_ else 'without'} --from; leave it out")
    if args.resume and args.out is None:
        raise WrongUse("--resume: name the results to go on with by --out")
    if offline_ and (args.step_base_ms is None) != (args.step_per_token_ms is None):
        raise WrongUse("--step-base-ms and --step-per-token-ms: give both, as a step takes base + per token x window")
    if not offline_:
        _check_engines(args)


def _check_engines(args: argparse.Namespace) -> None:
    """See that it is clear where the windows run."""
    ways = [name for name in ("endpoint", "start", "lab") if getattr(args, name)]
    if len(ways) != 1:
        raise WrongUse(
            "say where to measure by one of --endpoint, --start or --lab" + (", not several" if ways else "")
        )
    if args.endpoint and (args.windows or args.drafts):
        raise WrongUse("--endpoint: its windows and drafts stand in it; leave --windows and --drafts out")
    labels = [one.label for one, _ in args.endpoint]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise WrongUse(f"--endpoint: {twice} stands twice; name drafts apart, as in small:7=URL")
    if args.start_baseline and not args.start:
        raise WrongUse("--start-baseline: goes with --start")
    if args.baseline and (args.start_baseline or args.lab):
        raise WrongUse("--baseline: another baseline is started; leave one of them out")


def engines(args: argparse.Namespace, env: Mapping[str, str]) -> Engines:
    """Return where the windows run.

    Raises:
        WrongUse: a key is not in the environment, or there is nothing to compare.
        StartError: a command is none.
    """
    key = None
    if args.key_env is not None and not (key := env.get(args.key_env)):
        raise WrongUse(f"--key-env: the environment variable {args.key_env} is not set")
    found = Engines.of(args, key)
    if len(found.candidates) < 2:
        raise WrongUse("one window alone is not best of anything; name more of them, or a baseline")
    return found


def from_records(args: argparse.Namespace) -> Sweep:
    """Work out what smaller windows would have done."""
    found = records.read(args.source, seed=args.seed)
    base = args.baseline_step_ms / 1000 if args.baseline_step_ms is not None else None
    steps = _steps(args) or offline.measured_steps(found, base) or offline.STUDY
    largest = max(record.window for record in found)
    if args.windows is not None and max(args.windows) > largest:
        raise WrongUse(
            f"--windows: {max(args.windows)} is over {largest}, the largest that was recorded; a smaller one can be told"
        )
    terms = offline.Terms(
        steps=steps,
        baseline_step_seconds=base if base is not None else steps.base_seconds if steps.base_seconds > 0 else None,
        tpot_seconds=args.tpot_ms / 1000 if args.tpot_ms is not None else None,
        uses_all=not args.nxdi,
        seed=args.seed,
    )
    settings = {"source": str(args.source), "tpot_ms": args.tpot_ms, "nxdi": args.nxdi, "seed": args.seed}
    return offline.sweep(found, args.windows, terms, settings)


def _steps(args: argparse.Namespace) -> StepModel | None:
    """Return the step times that were given."""
    if args.step_base_ms is not None:
        return StepModel(
            base_seconds=args.step_base_ms / 1000, per_token_seconds=args.step_per_token_ms / 1000, source="given"
        )
    if args.steps_from is None:
        return None
    models = result.read(args.steps_from).step_model
    if len(models) != 1:
        named = ", ".join(sorted(models)) or "none"
        raise WrongUse(
            f"--steps-from: {args.steps_from} has step times of {named}; give them with --step-base-ms instead"
        )
    return next(iter(models.values()))
