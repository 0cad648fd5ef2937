"""`draftlane doctor --plan FILE`: what a traffic needs under each policy, before anything is deployed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gateway.measure.diagnosis import DescriptionError, as_dict, diagnose, read, text


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("doctor", help="look at a deployment before it is made")
    parser.add_argument(
        "--plan", required=True, type=Path, metavar="FILE", help="a TOML description of the traffic to plan for"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 when it would not run, 2 when the description cannot be used."""
    try:
        described = read(args.plan)
        found = diagnose(described)
    except DescriptionError as error:
        print("\n".join(f"{args.plan}: {problem}" for problem in error.problems), file=sys.stderr)
        return 2
    print(json.dumps(as_dict(found)) if args.json else text(described, found))
    for problem in found.problems:
        print(f"{args.plan}: {problem}", file=sys.stderr)
    return 1 if found.problems else 0
