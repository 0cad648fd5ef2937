"""`draftlane check`: reads a configuration as `serve` would, and tells every problem."""

from __future__ import annotations

import argparse
import json
import sys

from gateway import options, tls
from gateway.config import ConfigError, load, loose_files


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("check", help="check a configuration file and tell every problem")
    options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print what is wrong; 0 when nothing is."""
    try:
        config = load(args.config)
    except ConfigError as error:
        return _tell(args, {"ok": False, "problems": error.problems, "warnings": []})
    unusable = tls.problems(config)
    return _tell(
        args,
        {
            "ok": not unusable,
            "problems": unusable,
            "warnings": [*config.warnings, *loose_files(args.config, config)],
            "models": [model.name for model in config.models],
            "pools": [pool.name for pool in config.pools],
            "tenants": [tenant.name for tenant in config.tenants],
            "digest": config.digest,
        },
    )


def _tell(args: argparse.Namespace, found: dict[str, object]) -> int:
    if args.json:
        print(json.dumps(found))
    else:
        for kind in ("problems", "warnings"):
            for line in found[kind]:  # type: ignore[attr-defined]
                print(f"{args.config}: {kind[:-1]}: {line}", file=sys.stderr)
        if found["ok"]:
            print(f"{args.config}: ok, models {', '.join(found['models'])}; pools {', '.join(found['pools'])}")  # type: ignore[arg-type]
    return 0 if found["ok"] else 1
