"""Options that several subcommands share, with one meaning everywhere."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any


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


def count(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def pair(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, mark, value = text.partition("=")
    if not (name and mark and value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE, the value as JSON where it is some."""
    name, value = pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def source(text: str) -> Path | str:
    """Read a file's name, "-" for standard input."""
    return text if text == "-" else Path(text)
