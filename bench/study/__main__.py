"""`python -m bench.study`: repeats the study on the lab. `families` and `routing` by default, `drafts` after `make lab-draft`.

Everything is kept in a folder as it is measured: the same command goes on where it was broken off, and prints tables of what is
there. `--again` measures anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.machine import describe
from bench.study import drafts, families, routing
from bench.study.stand import say
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.processes import end_as_interrupted
from gateway.measure.load.sample import ResultsError

PARTS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "families": families.run,
    "routing": routing.run,
    "drafts": drafts.run,
}
FOLDER: Final = Path("results/study")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are named; 0 when all was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.study", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: families routing)"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of samples and figures (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer levels and rounds")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    args = parser.parse_args(argv)
    parts = args.parts or ["families", "routing"]
    if unknown := sorted(set(parts) - PARTS.keys()):
        parser.error(f"PART: there is no {', '.join(unknown)}; there are {', '.join(PARTS)}")
    try:
        for part in parts:
            _run(part, args.out, quick=args.quick, again=args.again)
    except (LabError, ResultsError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is in {args.out}, and the same command goes on with it")
        return 1
    return 0


def _run(part: str, folder: Path, *, quick: bool, again: bool) -> None:
    if again:
        for path in folder.glob(f"{part}*"):
            path.unlink()
    found = PARTS[part](folder, quick=quick)
    path = folder / f"{part}.json"
    write(path, part, found)
    say(f"all figures are in {path}")


def write(path: Path, part: str, found: dict[str, Any]) -> None:
    """Write a part's figures with the machine that they are of, as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": describe(), part: found}), indent=1))


if __name__ == "__main__":
    end_as_interrupted()
    sys.exit(main())
