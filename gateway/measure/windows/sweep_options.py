"""The options of `draftlane sweep`, and what they may be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gateway import options
from gateway.measure.publish import sending
from gateway.measure.windows import candidate

_EPILOG: Final = """\
Every request is sent with --temperature, 0 unless given, so that all windows give the same answers; "keep" leaves each line's
own. Give running engines with --endpoint, or have them started one after another with --start or --lab. Without engines, --from
reads recorded acceptance, a line each: {"accepted": [2, 0, 5], "window": 7} for the steps of an answer, or an
acceptance_histogram, or answers of vLLM with metrics.speculative_decoding; or a /metrics page. A line may name id, category and
step_seconds."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "file",
        type=options.source,
        nargs="?",
        metavar="FILE",
        help="the requests, JSON lines as for replay; - for stdin",
    )
    _add_windows(parser.add_argument_group("what is compared"))
    _add_engines(parser.add_argument_group("where it runs"))
    _add_calls(parser.add_argument_group("what is sent, and how fast"))
    _add_promise(parser.add_argument_group("what counts"))
    _add_offline(parser.add_argument_group("without engines"))
    _add_files(parser.add_argument_group("files"))
    sending.add_options(parser.add_argument_group("publishing"))


def _add_windows(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--windows", type=candidate.windows, metavar="5-15|3,5,7", help="drafted tokens per step (default 5-15)"
    )
    group.add_argument(
        "--drafts", type=candidate.drafts, default=(), metavar="A,B", help="draft models, for --start and --lab"
    )


def _add_engines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--endpoint",
        type=candidate.endpoint,
        action="append",
        default=[],
        metavar="[DRAFT:]WINDOW=URL",
        help="an engine that runs; once for each window",
    )
    group.add_argument("--baseline", metavar="URL", help="an engine without speculation, so that none can be best")
    group.add_argument(
        "--start", metavar="COMMAND", help="starts an engine; {window}, {draft} and {port} in it are filled in"
    )
    group.add_argument(
        "--start-baseline", metavar="COMMAND", help="starts the one without speculation; {port} is filled in"
    )
    group.add_argument(
        "--start-seconds", type=options.positive, default=1800.0, metavar="S", help="to come up in (default 1800)"
    )
    group.add_argument("--lab", action="store_true", help="start the lab's engines, baseline included (make lab)")
    group.add_argument("--key-env", metavar="NAME", help="environment variable with the engines' key")
    group.add_argument(
        "--idle-seconds", type=options.positive, default=300.0, metavar="S", help="of silence until a call is given up"
    )


def _add_calls(group: argparse._ArgumentGroup) -> None:
    pace = group.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=options.count, default=1, metavar="N", help="calls under way at once (default 1)"
    )
    pace.add_argument(
        "--rate", type=options.positive, metavar="R", help="calls per second instead, whatever the engine does"
    )
    group.add_argument("--repeat", type=options.count, default=1, metavar="N", help="send each prompt N times")
    group.add_argument("--limit", type=options.count, metavar="N", help="only the first N requests")
    group.add_argument("--skip-bad", action="store_true", help="pass over lines that cannot be sent, and name them")
    group.add_argument("--model", metavar="M", help="model of every call, whatever the line says")
    group.add_argument(
        "--temperature", type=temperature, default=0.0, metavar="T", help='of every call, or "keep" (default 0)'
    )
    group.add_argument(
        "--default",
        type=options.setting,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="field for bodies that lack it",
    )
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of order, arrivals and bootstrap (default 0)")


def _add_promise(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ttft-ms", type=options.positive, metavar="MS", help="a call counts if its first token came within this"
    )
    group.add_argument(
        "--tpot-ms",
        type=options.positive,
        metavar="MS",
        help="and if a further token took no longer than this on average",
    )


def _add_offline(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="recorded acceptance instead of engines"
    )
    group.add_argument(
        "--step-base-ms", type=options.positive, metavar="MS", help="a step's time without drafted tokens"
    )
    group.add_argument("--step-per-token-ms", type=options.positive, metavar="MS", help="and for each drafted token")
    group.add_argument("--steps-from", type=Path, metavar="FILE", help="step times as a sweep's JSON has them")
    group.add_argument(
        "--baseline-step-ms", type=options.positive, metavar="MS", help="without speculation (default: the base)"
    )
    group.add_argument("--nxdi", action="store_true", help="a window of k accepts k - 1 at most, as in NxD Inference")


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", type=Path, metavar="FILE", help="write a line per call")
    group.add_argument(
        "--resume", action="store_true", help="go on with --out: send what it has no answer of; windows may differ"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object, for draftlane report too")


def temperature(text: str) -> float | None:
    """Read a temperature; None for "keep"."""
    if text == "keep":
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 2.0:
        raise argparse.ArgumentTypeError(f'{text!r}: expected a number from 0 to 2, or "keep"')
    return number
