"""`draftlane doctor`: looks at a deployment before it is made, and says what to fix.

`compat` compares draft and target, `hbm` plans memory, `flags` reads engines' command lines and manifests, `live` visits
running engines; `--config` does all of that which a configuration makes possible, `--plan` sizes a fleet for a traffic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.measure import writing
from gateway.measure.doctor.finding import Checkup, as_dict, text


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("doctor", help="look at a deployment before it is made", description=__doc__)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a TOML description of the traffic to plan for")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a gateway's configuration: look at all that it names"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for an engine's answer (default 120)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    checks = parser.add_subparsers(dest="check", metavar="CHECK")
    _add_compat(checks.add_parser("compat", help="can this draft propose tokens for this target?"))
    _add_hbm(checks.add_parser("hbm", help="do both models and their caches fit?"))
    _add_flags(checks.add_parser("flags", help="do flags contradict each other, their image or their artefacts?"))
    _add_live(checks.add_parser("live", help="is a running engine what it is taken for?"))
    for check in checks.choices.values():
        check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")


def _add_compat(parser: argparse.ArgumentParser) -> None:
    for role in ("target", "draft"):
        parser.add_argument(
            f"--{role}", type=Path, nargs="+", required=True, metavar="PATH", help="a model's folder, or files of it"
        )
    parser.add_argument("--tp", type=_positive, metavar="N", help="the tensor-parallel degree to look at")
    parser.add_argument("--length", type=_positive, metavar="TOKENS", help="max-model-len")


def _add_hbm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", default="trn2.48xlarge", help="the machine (default: %(default)s)")
    parser.add_argument(
        "--target", default="Qwen3-32B", help="a known name, or a folder with config.json (default: %(default)s)"
    )
    parser.add_argument("--draft", help="the same of the draft; leave out for a pool without")
    parser.add_argument(
        "--tp", type=_positive, default=32, metavar="N", help="tensor-parallel degree (default: %(default)s)"
    )
    parser.add_argument(
        "--lnc", type=_positive, metavar="N", help="physical cores in a logical one (default: 2 on Trainium2)"
    )
    parser.add_argument(
        "--length", type=_positive, default=1024, metavar="TOKENS", help="max-model-len (default: %(default)s)"
    )
    parser.add_argument("--batch", type=_positive, default=4, metavar="N", help="max-num-seqs (default: %(default)s)")
    parser.add_argument(
        "--bytes-per-weight", type=float, default=2.0, metavar="BYTES", help="2 is bf16 (default), 1 is fp8"
    )
    parser.add_argument(
        "--bytes-per-kv", type=float, default=2.0, metavar="BYTES", help="of a cached number (default: 2)"
    )


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="FILE | -- COMMAND",
        help="manifests, Compose files or scripts, - for standard input; or after -- a command: vllm serve MODEL …",
    )
    parser.add_argument("--image", help="the engine's image, where the source does not say")
    parser.add_argument(
        "--compiled", type=Path, metavar="FILE", help="neuron_config.json of the compiled artefacts, or its folder"
    )
    parser.add_argument("--prompt-tokens", type=_positive, metavar="N", help="the longest prompt that callers send")
    parser.add_argument("--max-tokens", type=_positive, metavar="N", help="the longest answer that they ask for")


def _add_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="an engine, such as http://127.0.0.1:8001")
    parser.add_argument("--baseline", metavar="URL", help="the engine without speculation that must answer alike")
    parser.add_argument("--model", help="the name that it serves (default: the first)")
    parser.add_argument("--window", type=_positive, metavar="K", help="drafted tokens per step, where it does not tell")
    parser.add_argument(
        "--timeout", type=float, default=argparse.SUPPRESS, metavar="SECONDS", help="for an answer (default 120)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable with the key that it asks for")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 0 when nothing is to fix, 1 when something is, 2 for wrong use."""
    from gateway.measure.doctor import checks

    asked = [name for name in ("plan", "config", "check") if getattr(args, name) is not None]
    if len(asked) != 1:
        given = "name one of" if not asked else f"{' and '.join(asked)} exclude each other; name one of"
        print(f"draftlane doctor: {given} compat, hbm, flags, live, --config FILE, --plan FILE", file=sys.stderr)
        return 2
    if args.plan is not None:
        return _plan(args)
    try:
        found = _checkups(args)
    except checks.WrongUse as error:
        print(f"draftlane doctor: {error}", file=sys.stderr)
        return 2
    return _tell(found, args)


def _checkups(args: argparse.Namespace) -> Sequence[Checkup]:
    from gateway.measure.doctor import checks

    if args.config is not None:
        return asyncio.run(checks.config(args.config, args.timeout))
    if args.check == "live":
        key = _key(args.key_env)
        return asyncio.run(
            checks.live(args.url, args.baseline, model=args.model, window=args.window, key=key, seconds=args.timeout)
        )
    return {"compat": checks.compat, "hbm": checks.hbm, "flags": checks.flags}[args.check](args)


def _key(name: str | None) -> str | None:
    from gateway.measure.doctor.checks import WrongUse

    if name is not None and not os.environ.get(name):
        raise WrongUse(f"--key-env: the environment variable {name} is not set")
    return os.environ[name] if name is not None else None


def _tell(found: Sequence[Checkup], args: argparse.Namespace) -> int:
    told: dict[str, Any] = as_dict(found)
    well = writing.to_stdout(f"{json.dumps(told) if args.json else text(found)}\n")
    return 0 if well and told["ok"] else 1


def _plan(args: argparse.Namespace) -> int:
    """Print the plan of a fleet; 1 when it would not run, 2 when the description cannot be used."""
    from gateway.measure.doctor import diagnosis

    try:
        described = diagnosis.read(args.plan)
        found = diagnosis.diagnose(described)
    except diagnosis.DescriptionError as error:
        print("\n".join(f"{args.plan}: {problem}" for problem in error.problems), file=sys.stderr)
        return 2
    well = writing.to_stdout(
        f"{json.dumps(diagnosis.as_dict(found)) if args.json else diagnosis.text(described, found)}\n"
    )
    for problem in found.problems:
        print(f"{args.plan}: {problem}", file=sys.stderr)
    return 1 if found.problems or not well else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
