"""The `draftlane` command: one subcommand per module, each imported only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gateway import compiled

COMMANDS = {
    "serve": "gateway.serve",
    "check": "gateway.check",
    "explain": "gateway.explain_cli",
    "engine": "gateway.engine.cli",
    "ledger": "gateway.ledger.cli",
    "observations": "gateway.traffic.cli",
    "replay": "gateway.measure.load.replay_cli",
    "compare": "gateway.measure.paired.compare_cli",
    "report": "gateway.measure.report_cli",
    "sweep": "gateway.measure.windows.sweep_cli",
    "doctor": "gateway.measure.doctor.cli",
    "fleet": "gateway.measure.fleet",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns 0 when all is well, 1 when the check or the service failed, 2 for wrong use."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if edited := compiled.stale():
        sys.stderr.write(
            f"{', '.join(edited)}: edited since compiled, and runs as it was; `make setup` compiles it again\n"
        )
    parser = argparse.ArgumentParser(
        prog="draftlane", description="Routes each request by how predictable its answer is."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if word in COMMANDS), None)
    for name in [chosen] if chosen else COMMANDS:
        import_module(COMMANDS[name]).add_parser(subparsers)
    args = parser.parse_args(arguments)
    try:
        return int(import_module(COMMANDS[args.command]).run(args))
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
