"""The options of `draftlane replay`, and what they may be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gateway import options
from gateway.measure.load.pacing import MOST
from gateway.measure.publish import sending

_LINES: Final = """\
FILE holds one JSON value per line: an OpenAI body, {"prompt": "…"}, a bare string, or OpenAI's batch format. A line may name
its category, its tenant, its id and its time (timestamp, at or created). A dash reads standard input; gzip is unpacked."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    parser.epilog = _LINES
    parser.add_argument(
        "file", type=options.source, metavar="FILE", help="the requests, JSON lines; - for standard input"
    )
    _add_endpoint(parser.add_argument_group("where to"))
    _add_pace(parser.add_argument_group("how fast (default: one at once)"))
    _add_calls(parser.add_argument_group("what is sent"))
    _add_cost(parser.add_argument_group("what it costs"))
    _add_results(parser.add_argument_group("what is kept and told"))
    sending.add_options(parser.add_argument_group("publishing"))


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--to", required=True, metavar="URL", help="the gateway or the engine, such as http://127.0.0.1:8080"
    )
    group.add_argument("--key-env", metavar="NAME", help="environment variable that holds the key")
    group.add_argument(
        "--tenant-key",
        type=options.pair,
        action="append",
        default=[],
        metavar="TENANT=NAME",
        help="key of the lines of a tenant; may be repeated",
    )
    group.add_argument("--target-name", metavar="NAME", help="label in the results (default: host and port)")
    group.add_argument(
        "--route", choices=("auto", "speculative", "baseline"), help="ask the gateway for a pool, where the key may"
    )
    group.add_argument(
        "--connect-seconds", type=options.positive, default=5.0, metavar="S", help="default: %(default)g"
    )
    group.add_argument(
        "--idle-seconds",
        type=options.positive,
        default=300.0,
        metavar="S",
        help="of silence until it is given up (default: %(default)g)",
    )
    group.add_argument(
        "--total-seconds", type=options.positive, default=3600.0, metavar="S", help="default: %(default)g"
    )
    group.add_argument(
        "--stop-after",
        type=options.count,
        default=10,
        metavar="N",
        help="calls in a row without an answer (default: %(default)s)",
    )
    group.add_argument("--unchecked", action="store_true", help="do not ask the endpoint for its models first")


def _add_pace(group: argparse._ArgumentGroup) -> None:
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--concurrency", type=options.count, metavar="N", help="keep N calls under way")
    kinds.add_argument(
        "--rate", type=options.positive, metavar="R", help="send R calls per second, whatever the endpoint does"
    )
    kinds.add_argument("--trace-times", action="store_true", help="send at the times that the lines carry")
    group.add_argument("--even", action="store_true", help="space a rate evenly, not by chance (Poisson)")
    group.add_argument("--seed", type=int, metavar="S", help="of that chance (default: 0)")
    group.add_argument("--speedup", type=options.positive, metavar="X", help="divide the trace's times by X")
    group.add_argument(
        "--at-once",
        type=options.count,
        metavar="N",
        help=f"with --rate and --trace-times: most calls under way (default: {MOST})",
    )


def _add_calls(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="M", help="model of every call, whatever the line says")
    group.add_argument(
        "--default",
        type=options.setting,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="field for bodies that lack it, such as max_tokens=256; may be repeated",
    )
    group.add_argument(
        "--json-mode", action="store_true", help="answers in one piece instead of streams; no TTFT, no TPOT"
    )
    group.add_argument("--repeat", type=options.count, default=1, metavar="N", help="send the whole file N times")
    group.add_argument("--limit", type=options.count, metavar="N", help="only the first N requests")
    group.add_argument("--skip-bad", action="store_true", help="pass over lines that cannot be sent, and name them")


def _add_cost(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--price-per-hour", type=options.positive, metavar="USD", help="of one replica")
    group.add_argument(
        "--slots", type=options.count, default=1, metavar="N", help="requests that a replica runs at once"
    )
    group.add_argument("--admin-key-env", metavar="NAME", help="read each call's cost from the gateway's receipts")
    group.add_argument("--admin-url", metavar="URL", help="where the receipts are, if not at --to")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", type=Path, metavar="FILE", help="write a line per call")
    group.add_argument("--resume", action="store_true", help="go on with --out: send what it has no answer of")
    group.add_argument("--json", action="store_true", help="print one JSON object")
