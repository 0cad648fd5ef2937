"""Fuzz the parsers that meet strangers' bytes, for so many seconds each.

python -m bench.fuzz --seconds 60              # every target; guided by coverage where atheris is installed
python -m bench.fuzz --seconds 600 body heads  # some
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.fuzz.mutate import CORPUS, mutations
from bench.fuzz.targets import TARGETS


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz; 0 when no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="what to fuzz (default: everything)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: %(default)s)")
    args = parser.parse_args(argv)
    guided = importlib.util.find_spec("atheris") is not None
    failed = [name for name in args.targets or TARGETS if not (_guided if guided else _at_random)(name, args)]
    return 1 if failed else 0


def _guided(name: str, args: argparse.Namespace) -> bool:
    """Run one target under atheris in a process of its own, which ends when a law is broken."""
    with tempfile.TemporaryDirectory(prefix="dl-fuzz-") as found:
        flags = [f"-max_total_time={round(args.seconds)}", f"-seed={args.seed}", "-max_len=20000", "-timeout=10"]
        command = [sys.executable, "-m", "bench.fuzz.guided", name, found, str(CORPUS / name), *flags]
        run = subprocess.run([*command, f"-artifact_prefix={found}/"], capture_output=True, text=True, check=False)
        kept = [path for path in Path(found).iterdir() if path.name.startswith(("crash-", "timeout-", "oom-"))]
        failing = kept[0].read_bytes() if kept else b""
    runs = [line for line in run.stderr.splitlines() if line.startswith("Done ")]
    print(
        json.dumps(
            {"target": name, "guided": True, "ok": run.returncode == 0, "said": (runs or [run.stderr[-800:]])[0]}
        )
    )
    if run.returncode:
        print(repr(failing[:2000]), file=sys.stderr)
    return run.returncode == 0


def _at_random(name: str, args: argparse.Namespace) -> bool:
    until, count = time.monotonic() + args.seconds, 0
    for data in mutations(name, args.seed):
        try:
            TARGETS[name](data)
        except Exception:  # noqa: BLE001 - whatever breaks a law is what is looked for
            traceback.print_exc()
            print(json.dumps({"target": name, "guided": False, "ok": False, "input": repr(data[:2000])}))
            return False
        count += 1
        if time.monotonic() > until:
            break
    print(json.dumps({"target": name, "guided": False, "ok": True, "inputs": count}))
    return True


if __name__ == "__main__":
    sys.exit(main())
