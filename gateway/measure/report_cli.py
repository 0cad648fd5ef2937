"""`draftlane report`: one HTML file and a picture, of some days from the ledger or of a result of compare or sweep."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from gateway import options
from gateway.config import Config, ConfigError, load
from gateway.measure import writing
from gateway.measure.report_facts import Facts, facts
from gateway.store import Row, StoreError, open_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report", help="write cost and routing of some days as HTML, or a result of compare or sweep"
    )
    parser.add_argument(
        "result",
        type=Path,
        nargs="?",
        metavar="RESULT",
        help="JSON of compare or sweep, or a file of compare --out; without it the report is of the ledger",
    )
    options.add_config(parser)
    options.add_days(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("draftlane-report.html"), help="the HTML file (default: %(default)s)"
    )
    parser.add_argument("--png", type=Path, help="write the charts as a picture too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report; 1 when the ledger cannot be read or a file not written, 2 for wrong use."""
    if args.first > args.last:
        print(f"draftlane report: --from {args.first} lies after --to {args.last}", file=sys.stderr)
        return 2
    if find_spec("matplotlib") is None:
        print("draftlane report: charts need matplotlib: pip install 'draftlane[report]'", file=sys.stderr)
        return 1
    if args.result is not None:
        return _of_result(args)
    now = datetime.now(UTC)
    try:
        config = load(args.config)
        rows = asyncio.run(_rows(config, args.first.isoformat(), args.last.isoformat()))
        found = facts(rows, config, first=args.first, last=args.last, now=now)
        _write(found, args, now)
    except ConfigError as error:
        print("\n".join(f"{args.config}: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except (StoreError, OSError) as error:
        print(f"draftlane report: {error}", file=sys.stderr)
        return 1
    _tell(found, args)
    return 0


def _of_result(args: argparse.Namespace) -> int:
    from gateway.measure.paired.result import ResultError
    from gateway.measure.publish.show import show

    try:
        headline = show(args.result, args.out, args.png)
    except ResultError as error:
        print(f"draftlane report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"draftlane report: {error}", file=sys.stderr)
        return 1
    if args.json:
        png = None if args.png is None else str(args.png)
        print(json.dumps({"html": str(args.out), "png": png, "result": str(args.result), "headline": headline}))
    else:
        print(f"{args.out}: {headline}")
    return 0


def _write(found: Facts, args: argparse.Namespace, now: datetime) -> None:
    from gateway.measure.report_charts import CHARTS, as_png
    from gateway.measure.report_page import headline, page

    with writing.whole(args.out) as part:
        part.write_text(page(found, written=now))
    if args.png is not None:
        span = f"{found.first.isoformat()} to {found.last.isoformat()}"
        as_png(CHARTS, found, args.png, f"Draftlane, {span}: {headline(found)}")


def _tell(found: Facts, args: argparse.Namespace) -> None:
    from gateway.measure.report_page import headline

    if args.json:
        told = {
            "html": str(args.out),
            "png": None if args.png is None else str(args.png),
            "from": found.first.isoformat(),
            "to": found.last.isoformat(),
            "total": found.total,
            "saved_usd": found.saved,
            "capacity_usd": found.capacity_usd,
            "idle_usd": found.idle_usd,
        }
        print(json.dumps(told))
    else:
        print(f"{args.out}: {headline(found)}")


async def _rows(config: Config, first: str, last: str) -> list[Row]:
    if config.store.kind == "memory":
        raise StoreError('a ledger in memory ends with its gateway; set store.kind to "sqlite" or "redis" to keep it')
    store = open_store(config.store)
    try:
        return await store.totals(first, last)
    finally:
        await store.aclose()
