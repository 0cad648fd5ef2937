"""`draftlane compare`: the same prompts on a baseline and a speculative pool, and whether to adopt the latter."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from gateway.measure import writing
from gateway.measure.load.control import EndpointError, WrongModel
from gateway.measure.load.sample import ResultsError, Sample, WrongResults
from gateway.measure.load.trace import TraceError
from gateway.measure.paired import compare_options, formats
from gateway.measure.paired.files import from_files
from gateway.measure.paired.measured import WrongUse, measured
from gateway.measure.paired.result import Comparison, as_json
from gateway.measure.paired.words import as_text
from gateway.measure.publish import cloudwatch, sending

Found = tuple[Comparison, Sequence[Sample], str]  # what was found, in what calls, of which model


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare", help="measure the same prompts on two pools, in pairs, and say whether to adopt the second"
    )
    compare_options.add(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare; 1 when it ended before its end or a file could not be written, 2 for wrong use."""
    try:
        _check(args)
        with ExitStack() as stack:
            comparison, samples, model = from_files(args) if args.sources else measured(args, os.environ, stack)
    except (WrongUse, WrongModel, TraceError, WrongResults, formats.FormatError, sending.PublishError) as error:
        print(f"draftlane compare: {error}", file=sys.stderr)
        return 2
    except (EndpointError, ResultsError) as error:
        print(f"draftlane compare: {error}", file=sys.stderr)
        return 1
    failed = _give_out(args, comparison, samples, model)
    return 0 if comparison.ended.whole and not failed else 1


def _check(args: argparse.Namespace) -> None:
    """See that the options can be meant together.

    Raises:
        WrongUse, PublishError: they cannot.
    """
    measures = args.file is not None or args.baseline is not None or args.speculative is not None
    if args.sources and measures:
        raise WrongUse("--from compares files, and measures nothing: leave FILE, --baseline and --speculative out")
    if not args.sources and None in (args.file, args.baseline, args.speculative):
        raise WrongUse("name FILE, --baseline and --speculative to measure, or two result files with --from")
    if len(args.sources) > 2:
        raise WrongUse("--from: one file of --out, or two of other tools")
    if args.resume and args.out is None:
        raise WrongUse("--resume goes on with a results file; name it with --out")
    sending.check(args)
    for text in args.write:
        if formats.named(text)[0] is None:
            raise WrongUse(f"--write {text}: name a format before the file: {', '.join(formats.FORMATS)}")
    if (args.html or args.png) and find_spec("matplotlib") is None:
        raise WrongUse("--html and --png need matplotlib: pip install 'draftlane[report]'")


def _give_out(args: argparse.Namespace, found: Comparison, samples: Sequence[Sample], model: str) -> bool:
    """Print, write and publish what was found; returns whether something of it failed. What can be given out is."""
    failed = False
    for text in args.write:
        try:
            for path in formats.write(text, samples, model):
                print(f"wrote {path}", file=sys.stderr)
        except formats.FormatError as error:
            failed = _tell(error)
    for path, write in ((args.html, _page), (args.png, _picture)):
        try:
            if path is not None:
                write(found, path)
        except OSError as error:
            failed = _tell(error)
    report = as_json(found).decode() if args.json else as_text(found)
    if not sending.give_out(args, cloudwatch.of_samples(samples), report):
        failed = True
    return failed


def _page(found: Comparison, path: Path) -> None:
    from gateway.measure.publish.compare_page import page

    with writing.whole(path) as part:
        part.write_text(page(found))


def _picture(found: Comparison, path: Path) -> None:
    from gateway.measure.publish.compare_page import picture

    picture(found, path)


def _tell(error: Exception) -> bool:
    print(f"draftlane compare: {error}", file=sys.stderr)
    return True
