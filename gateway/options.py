"""Options that several subcommands share, with one meaning everywhere."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from pathlib import Path


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add --config."""
    parser.add_argument(
        "--config", default="config.toml", type=Path, help="the configuration file (default: %(default)s)"
    )


def add_days(parser: argparse.ArgumentParser, *, since: date | None = None) -> None:
    """Add --from and --to: UTC days, both included, as `first` and `last`; `since` is where the first stands unless given."""
    today = datetime.now(UTC).date()
    parser.add_argument(
        "--from",
        dest="first",
        type=date.fromisoformat,
        default=since or today.replace(day=1),
        metavar="DAY",
        help=f"first day, UTC, such as 2026-11-01 (default: {'the first' if since else 'the first of this month'})",
    )
    parser.add_argument(
        "--to", dest="last", type=date.fromisoformat, default=today, metavar="DAY", help="last day (default: today)"
    )
