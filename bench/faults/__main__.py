"""Print what sixteen faults come to in both modes, with verdicts from the caller's and the engines' view.

python -m bench.faults                # seconds; exit 1 unless every cell is a pass
python -m bench.faults --full         # the waits of the public suite: two minutes a mode
python -m bench.faults --no-resume    # with routing.resume_streams off: a stream that has begun is not gone on with elsewhere
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence

from bench.faults.cases import FAST, FULL
from bench.faults.run import MODES, Cell, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; 0 when every cell is a pass, or safe where streams are not to be gone on with."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--full", action="store_true", help="the waits of the public suite instead of short ones")
    parser.add_argument("--no-resume", action="store_true", help="switch routing.resume_streams off")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # sixteen broken engines have much to say
    timing = FULL if args.full else FAST
    cells = [asyncio.run(run(timing, mode, resume=not args.no_resume)) for mode in MODES]
    by_mode = dict(zip(MODES, cells, strict=True))
    if args.json:
        print(json.dumps({mode: [_shown(cell) for cell in found] for mode, found in by_mode.items()}))
    else:
        _print(by_mode["json"], by_mode["sse"])
    good = {"pass", "safe"} if args.no_resume else {"pass"}
    return 0 if all(cell.verdict in good for found in cells for cell in found) else 1


def _shown(cell: Cell) -> dict[str, object]:
    return {
        "case": cell.case.id,
        "title": cell.case.title,
        "verdict": cell.verdict,
        "broken": list(cell.broken),
        "attempts_first": cell.first,
        "attempts_second": cell.second,
        "seconds": round(cell.seconds, 3),
    }


def _print(json_cells: Sequence[Cell], sse_cells: Sequence[Cell]) -> None:
    print(f"{'case':<42}{'JSON':<28}{'SSE':<28}conduct")
    for one, two in zip(json_cells, sse_cells, strict=True):
        title = f"{one.case.id} {one.case.title}"
        print(f"{title:<42}{_cell(one):<28}{_cell(two):<28}{one.case.right}")
        for cell in (one, two):
            if cell.broken:
                print(f"    {cell.mode}: {'; '.join(cell.broken)}")
    for mode, found in (("JSON", json_cells), ("SSE", sse_cells)):
        counts = Counter(cell.verdict for cell in found)
        print(f"{mode}: " + ", ".join(f"{counts[name]} {name}" for name in ("pass", "partial", "safe", "fail")))
    print("A cell: verdict, requests that the failing and the other engine saw, seconds until the caller had its end.")


def _cell(cell: Cell) -> str:
    return f"{cell.verdict:<8}{cell.first} / {cell.second:<4}{cell.seconds:6.2f} s"


if __name__ == "__main__":
    sys.exit(main())
