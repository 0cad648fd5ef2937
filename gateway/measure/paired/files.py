"""A comparison of what was measured before: a results file of this command, or two of other load generators."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.measure.load.sample import ResultsError, Sample
from gateway.measure.load.sample import read as read_results
from gateway.measure.paired import formats, pairs
from gateway.measure.paired.compared import Terms, comparison, with_difference
from gateway.measure.paired.outputs import parted
from gateway.measure.paired.result import Comparison, Difference, Ended

Prices = tuple[float | None, float | None]  # US dollars per hour of a replica of each pool
_ENDED = Ended(by="files", text="compared from files")


def from_files(args: argparse.Namespace) -> tuple[Comparison, Sequence[Sample], str]:
    """Compare what files hold; returns what was found, in which calls, and the model's name.

    Raises:
        FormatError: a file cannot be read.
    """
    if len(args.sources) == 1:
        terms = Terms(precision=args.precision, seed=args.seed)
        return own(formats.named(args.sources[0])[1], terms, _prices(args), args.slots)
    return foreign(args.sources[0], args.sources[1], args)


def own(
    path: Path, terms: Terms | None = None, prices: Prices = (None, None), slots: int = 1
) -> tuple[Comparison, Sequence[Sample], str]:
    """Compare the calls of a results file of this command; prices that are given go before those it was measured with.

    Raises:
        FormatError: the file cannot be read, or holds other calls.
    """
    try:
        header, samples = read_results(path)
    except ResultsError as error:
        raise formats.FormatError(f"{error}; files of other tools come in twos") from None
    settings: dict[str, Any] = header.settings
    names = settings.get("names")
    if settings.get("command") == "sweep":
        raise formats.FormatError(
            f"{path}: calls of draftlane sweep; what can be shown is the JSON that the same sweep prints with --resume --json"
        )
    if not isinstance(names, list) or len(names) != 2 or settings.get("command") != "compare":
        raise formats.FormatError(f"{path}: results of one endpoint, not of draftlane compare; such files come in twos")
    priced = [_priced(one, (names[0], names[1]), prices, slots) for one in samples]
    try:
        found = comparison(priced, (names[0], names[1]), terms or Terms(), _ENDED, settings=settings)
    except ValueError as error:
        raise formats.FormatError(f"{path}: {error}; measure first") from None
    models = settings.get("models")
    return found, priced, str(models[0]) if isinstance(models, list) and models else "unknown"


def foreign(first: str, second: str, args: argparse.Namespace) -> tuple[Comparison, Sequence[Sample], str]:
    """Compare two files of other load generators, the baseline's first."""
    names: tuple[str, str] = args.names
    loaded = [formats.read(text, name) for text, name in zip((first, second), names, strict=True)]
    notes = [note for each in loaded for note in each.notes]
    levels = {each.concurrency for each in loaded}
    if len(levels - {None}) > 1:
        notes.append(
            f"measured with different loads: {loaded[0].concurrency} under way in {loaded[0].path},"
            f" {loaded[1].concurrency} in {loaded[1].path}"
        )
    level = levels.pop() if len(levels) == 1 else None
    pairing = formats.in_pairs(loaded[0], loaded[1])
    prices = _prices(args)
    samples = [
        _priced(msgspec.structs.replace(one, target=pairs.label(name, level)), names, prices, args.slots)
        for each, name in zip(loaded, names, strict=True)
        for one in each.samples
    ]
    settings = {
        "command": "compare",
        "names": list(names),
        "files": [str(each.path) for each in loaded],
        "formats": [each.format for each in loaded],
    }
    terms = Terms(precision=args.precision, seed=args.seed, pairing=pairing)
    found = comparison(samples, names, terms, _ENDED, settings=settings, notes=notes)
    return with_difference(found, lambda difference: _parted(difference, loaded)), samples, "unknown"


def _prices(args: argparse.Namespace) -> Prices:
    return args.price_baseline, args.price_speculative


def _priced(sample: Sample, names: tuple[str, str], prices: Prices, slots: int) -> Sample:
    price = dict(zip(names, prices, strict=True)).get(pairs.level_of(sample.target)[0])
    if price is None:
        return sample
    return msgspec.structs.replace(sample, cost_usd=price / slots * sample.e2e_seconds / 3600)


def _parted(found: Difference, loaded: Sequence[formats.Loaded]) -> Difference:
    texts = [(each.texts or {}).get((found.line, found.id, 0)) for each in loaded]
    return found if texts[0] is None or texts[1] is None else parted(found, texts[0], texts[1])
