"""`draftlane ledger`: what tenants, models and pools used and cost, from the Store that the configuration names."""

from __future__ import annotations

import argparse
import asyncio
import sys

from gateway import options
from gateway.config import Config, ConfigError, load
from gateway.ledger.report import FIELDS, FORMATS, Report
from gateway.store import Row, StoreError, open_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "ledger", help="report tokens, slot-seconds and cost per tenant, model, pool and day"
    )
    options.add_config(parser)
    options.add_days(parser)
    parser.add_argument(
        "--by",
        type=_fields,
        default=FIELDS,
        metavar="FIELDS",
        help=f"what to add up by, some of {','.join(FIELDS)} (default: all)",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when the Store cannot be read, 2 for wrong use."""
    if args.first > args.last:
        print(f"draftlane ledger: --from {args.first} lies after --to {args.last}", file=sys.stderr)
        return 2
    first, last = args.first.isoformat(), args.last.isoformat()
    try:
        rows = asyncio.run(_rows(load(args.config), first, last))
    except ConfigError as error:
        print("\n".join(f"{args.config}: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except StoreError as error:
        print(f"draftlane ledger: {error}", file=sys.stderr)
        return 1
    print(Report.of(rows, first=first, last=last, by=args.by).render(args.format))
    return 0


async def _rows(config: Config, first: str, last: str) -> list[Row]:
    if config.store.kind == "memory":
        raise StoreError('a ledger in memory ends with its gateway; set store.kind to "sqlite" or "redis" to keep it')
    store = open_store(config.store)
    try:
        return await store.totals(first, last)
    finally:
        await store.aclose()


def _fields(text: str) -> tuple[str, ...]:
    named = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [name for name in named if name not in FIELDS]
    if wrong:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: choose from {', '.join(FIELDS)}")
    return named
