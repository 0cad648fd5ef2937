"""The options of `draftlane compare`, and what they may be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gateway import options
from gateway.measure.publish import sending

_EPILOG: Final = """\
Temperature: every request is sent with --temperature, 0 unless given, whatever its line says, so that both pools should answer
alike; "keep" leaves each line's own. Result files of vllm bench serve, guidellm, aiperf and llmperf are compared with --from,
the baseline's first: draftlane compare --from vllm:base.json --from vllm:spec.json."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "file",
        type=options.source,
        nargs="?",
        metavar="FILE",
        help="the requests, JSON lines as for replay; - for standard input",
    )
    _add_pools(parser.add_argument_group("the two pools"))
    _add_calls(parser.add_argument_group("what is sent"))
    _add_enough(parser.add_argument_group("how much is enough"))
    _add_cost(parser.add_argument_group("what it costs"))
    _add_files(parser.add_argument_group("files"))
    sending.add_options(parser.add_argument_group("publishing"))


def _add_pools(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--baseline", metavar="URL", help="the pool to compare with")
    group.add_argument("--speculative", metavar="URL", help="the pool that is compared")
    group.add_argument(
        "--key-env",
        metavar="NAME[,NAME]",
        type=_words,
        default=(),
        help="environment variable with the key; two for two",
    )
    group.add_argument(
        "--names", type=_two, default=("baseline", "speculative"), metavar="A,B", help="what to call them"
    )
    group.add_argument("--model", type=_words, default=(), metavar="M[,M]", help="model of every call; two for two")
    group.add_argument(
        "--idle-seconds", type=options.positive, default=300.0, metavar="S", help="of silence until a call is given up"
    )


def _add_calls(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--concurrency",
        type=_levels,
        default=(1,),
        metavar="N[,N]",
        help="calls under way at once; several are measured apart",
    )
    group.add_argument(
        "--temperature", type=_temperature, default=0.0, metavar="T", help='of every call, or "keep" (default: 0)'
    )
    group.add_argument(
        "--default",
        type=options.setting,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="field for bodies that lack it",
    )
    group.add_argument("--limit", type=options.count, metavar="N", help="only the first N requests")
    group.add_argument("--skip-bad", action="store_true", help="pass over lines that cannot be sent, and name them")
    group.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the order and of the bootstrap (default: 0)"
    )


def _add_enough(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--precision",
        type=options.positive,
        default=0.05,
        metavar="P",
        help="half an interval's width as a share (default: 0.05)",
    )
    group.add_argument(
        "--repeats", type=options.count, default=5, metavar="MAX", help="of each prompt at most (default: 5)"
    )
    group.add_argument("--budget-seconds", type=options.positive, metavar="S", help="end after so long")
    group.add_argument("--budget-requests", type=options.count, metavar="N", help="end after so many calls")


def _add_cost(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--price-baseline", type=options.positive, metavar="USD", help="per hour of one replica")
    group.add_argument(
        "--price-speculative", type=options.positive, metavar="USD", help="the same of the speculative pool"
    )
    group.add_argument(
        "--slots", type=options.count, default=1, metavar="N", help="requests that a replica runs at once (default: 1)"
    )


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", type=Path, metavar="FILE", help="write a line per call")
    group.add_argument("--resume", action="store_true", help="go on with --out: send what it has no whole answer of")
    group.add_argument(
        "--from",
        dest="sources",
        action="append",
        default=[],
        metavar="[FORMAT:]FILE",
        help="compare result files instead of measuring: two of vllm, guidellm, aiperf or llmperf, or one of --out",
    )
    group.add_argument(
        "--write",
        action="append",
        default=[],
        metavar="FORMAT:FILE",
        help="write the calls for other tools, a file per pool",
    )
    group.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    group.add_argument("--png", type=Path, metavar="FILE", help="write the charts as a picture")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if len(words) > 2 or not all(words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected one name, or two with a comma between")
    return words


def _two(text: str) -> tuple[str, str]:
    words = _words(text)
    if len(words) != 2 or words[0] == words[1] or "@" in text or "/" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected two different names with a comma between, without @ and /"
        )
    return words[0], words[1]


def _levels(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(options.count(word.strip()) for word in text.split(",")))


def _temperature(text: str) -> float | None:
    if text == "keep":
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f'{text!r}: expected a number from 0 on, or "keep"')
    return number
