"""`draftlane observations export`: what was kept of own traffic, as `python -m classifier train --traffic` reads it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, get_args

import msgspec

from classifier.scorer import ArtefactError, Scorer, View
from gateway import options
from gateway.config import Config, ConfigError, load
from gateway.traffic.files import lines
from gateway.traffic.lines import Observed, Privacy, read

_ENCODE: Final = msgspec.json.Encoder().encode
_FIRST: Final = date(1970, 1, 1)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("observations", help="give out what was kept of own traffic, to train on it")
    actions = parser.add_subparsers(dest="action", metavar="export", required=True)
    export = actions.add_parser("export", help="write observations as JSON lines")
    options.add_config(export)
    options.add_days(export, since=_FIRST)
    export.add_argument("--out", default="-", metavar="FILE", help="where they go (default: standard output)")
    export.add_argument(
        "--privacy",
        choices=get_args(Privacy),
        help="features: with no text, whatever was kept; text: only those whose request was kept (default: as they were kept)",
    )
    export.add_argument(
        "--json", action="store_true", help="with --out FILE, print what was exported as one JSON object"
    )


def run(args: argparse.Namespace) -> int:
    """Write the observations; 1 when there is nothing to read or to write to, 2 for wrong use."""
    if args.first > args.last:
        print(f"draftlane observations: --from {args.first} lies after --to {args.last}", file=sys.stderr)
        return 2
    try:
        config = load(args.config)
        scorer = Scorer.load(Path(config.classifier.artefact) if config.classifier.artefact else None)
        told = _export(config, scorer, args)
    except ConfigError as error:
        print("\n".join(f"{args.config}: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except (ArtefactError, OSError) as error:
        print(f"draftlane observations: {error}", file=sys.stderr)
        return 1
    print(told.sentence(config.classifier.observations_path), file=sys.stderr)
    if args.json and args.out != "-":
        print(json.dumps({"exported": told.exported, "left_out": dict(told.left_out), "out": args.out}))
    return 0 if told.exported else 1


@dataclass(slots=True)
class Told:
    """What an export came to: observations by why they were left out."""

    exported: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def sentence(self, directory: str) -> str:
        """Return it in words."""
        left = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        nothing = f"; are [classifier] observations on, and was anything kept in {directory}?"
        return f"{self.exported} observations" + (f"; left out: {left}" if left else "" if self.exported else nothing)


def _export(config: Config, scorer: Scorer, args: argparse.Namespace) -> Told:
    """Write to a file beside the one that is wanted, which takes its place when it is whole."""
    told = Told()
    between = _midnight(args.first), _midnight(args.last + timedelta(days=1))
    found = chosen(Path(config.classifier.observations_path), scorer, between, args.privacy, told)
    if args.out == "-":
        _write(found, sys.stdout.buffer, told)
        return told
    out = Path(args.out)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        # What people asked may be in it: it is for its owner alone.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            _write(found, file, told)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return told


def _write(found: Iterator[Observed], file: BinaryIO, told: Told) -> None:
    for seen in found:
        file.write(_ENCODE(seen) + b"\n")
        told.exported += 1
    file.flush()


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def chosen(
    directory: Path, scorer: Scorer, between: tuple[float, float], privacy: Privacy | None, told: Told
) -> Iterator[Observed]:
    """Yield the observations of a span of Unix time in the form that is wanted; `told` counts those left out.

    Torn lines are passed over, and so are features that another release computed: they mean something else.
    """
    digest = scorer.features(View.of({}))["digest"]
    for line in lines(directory):
        seen = read(line)
        if seen is None:
            told.left_out["torn"] += 1
            continue
        time = seen.get("time")
        if not isinstance(time, int | float) or not between[0] <= time < between[1]:
            told.left_out["of other days"] += 1
            continue
        if "request" in seen and privacy == "features":
            seen["features"] = scorer.features(View.of(seen.pop("request"), str(seen.get("endpoint"))))
        if "request" not in seen and privacy == "text":
            told.left_out["without text"] += 1
        elif "request" not in seen and (seen.get("features") or {}).get("digest") != digest:
            told.left_out["with features of another release"] += 1
        else:
            yield seen
