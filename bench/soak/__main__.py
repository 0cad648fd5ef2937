"""Load one gateway process on one core; each kind of load prints one JSON object and exits with 1 when something fails.

python -m bench.soak streams                      # 2,000 streams of 20 events a second at once
python -m bench.soak idle                         # 10,000 idle connections, and calls beside them
python -m bench.soak requests --count 200000      # mixed with disconnects: memory per 100,000 requests, leaks
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench import native
from bench.soak import idle, requests, streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one kind of load; 0 when all holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    held = kinds.add_parser("streams", help="many streams at once")
    held.add_argument("--count", type=int, default=2000)
    held.add_argument("--rate", type=float, default=20.0, help="events per second of each (default: %(default)s)")
    held.add_argument("--seconds", type=float, default=15.0, help="of each stream (default: %(default)s)")
    kinds.add_parser("idle", help="many idle connections").add_argument("--count", type=int, default=10_000)
    kinds.add_parser("requests", help="very many requests").add_argument("--count", type=int, default=200_000)
    args = parser.parse_args(argv)
    if args.kind == "streams":
        found = told(lambda: streams.run(args.count, args.rate, args.seconds))
    else:
        found = told(lambda: (idle if args.kind == "idle" else requests).run(args.count))
    print(json.dumps(found))
    return 0 if found["ok"] else 1


def told(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a kind of load has found; of one that could not go on, why."""
    try:
        return run()
    except (native.LoadError, OSError, EOFError) as error:  # a gateway that is gone is an OSError or an end of file
        return {"ok": False, "failure": str(error) or type(error).__name__}


if __name__ == "__main__":
    sys.exit(main())
