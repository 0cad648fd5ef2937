"""Measure the memory and time of learning from own traffic: one JSON line per milestone, as the observations pass.

`python -m bench.traffic --observations 300000` feeds the training command through a named pipe, so that no disk is needed, and
reads its memory at every tenth; with `--form parquet` it is given a file of one row group, as large as they come, and judged
by its peak. What grows is the held-out sample alone, which is full at ten times `HELD_OUT` observations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from classifier.scorer import Scorer, View

BUDGET: Final = 4096.0  # MiB that learning may take, whatever the number of observations
REQUESTS: Final = 200  # different ones; each observation is of one of them, with a length and a template of its own
MILESTONES: Final = 10
_WORDS: Final = (
    "river engine poem doctor window garden winter letter bridge teacher market forest island candle".split()
)


# The command itself, which then tells its own peak: what the system tells of a child includes what its parent was at the fork.
_TRAIN: Final = """
import json, sys, time
from classifier.__main__ import main
code = main(sys.argv[1:])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"cpu_seconds": round(time.process_time(), 2), "peak": round(peak / 1024, 1)}))
sys.exit(code if code > 1 else 0)
"""


def kept(seed: int = 1) -> list[dict[str, Any]]:
    """Features of some requests, as the gateway keeps them where text must not be kept."""
    r, scorer = random.Random(seed), Scorer.load()
    texts = (f"Tell me {r.randint(1, 99)} things of the {' '.join(r.choices(_WORDS, k=60))}." for _ in range(REQUESTS))
    return [scorer.features(View.of({"messages": [{"role": "user", "content": text}]})) for text in texts]


def seen(count: int, features: Sequence[str], seed: int = 1) -> Iterator[str]:
    """Lines of observations; each is of a template of its own, so that a tenth is held out."""
    r = random.Random(seed)
    for i in range(count):
        acceptance = round(1.0 + r.random() * 3.0, 3)
        yield f'{{"features": {r.choice(features)}, "acceptance": {acceptance}, "steps": 40, "template": "{i}"}}\n'


def memory(pid: int) -> dict[str, float]:
    """Resident memory of a process now and at its peak, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"resident": round(found["VmRSS"], 1), "peak": round(found["VmHWM"], 1)}


def _train(path: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _TRAIN, "train", "--traffic", str(path), "--out", str(out), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _ended(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What the training told, its CPU time and its peak; whether it published is not the question here."""
    told, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"training ended with {child.returncode}")
    verdict, spent = map(json.loads, told.splitlines())
    figures: dict[str, Any] = verdict["traffic"]
    return {"learned_from": figures["observations"], "held_out": figures["held_out"], **spent}


def piped(count: int, directory: Path) -> float:
    """Feed `count` JSON lines through a named pipe, printing memory on the way; returns the peak in MiB."""
    pipe, features = directory / "traffic.jsonl", [json.dumps(each) for each in kept()]
    os.mkfifo(pipe)
    child = _train(pipe, directory / "artefact.json")
    with pipe.open("w", encoding="utf-8") as feed:
        for number, line in enumerate(seen(count, features), 1):
            feed.write(line)
            if number % max(1, count // MILESTONES) == 0:
                feed.flush()
                print(json.dumps({"observations": number} | memory(child.pid)), flush=True)
    end = _ended(child)
    print(json.dumps({"form": "jsonl"} | end))
    return float(end["peak"])


def filed(count: int, directory: Path) -> float:
    """Train from a Parquet file of one row group; returns the peak in MiB."""
    import pyarrow as pa
    from pyarrow import parquet

    path, features, r = directory / "traffic.parquet", kept(), random.Random(1)
    tables = []
    for start in range(0, count, 1000):
        lines = [json.loads(line) for line in seen(min(1000, count - start), [json.dumps(r.choice(features))], start)]
        for each in lines:  # numbers of its own, so that no dictionary makes the file small
            each["features"]["cues"] = [cue + r.random() * 1e-3 for cue in each["features"]["cues"]]
            each["template"] = f"{start}:{each['template']}"
        tables.append(pa.Table.from_pylist(lines))
    parquet.write_table(pa.concat_tables(tables), path, row_group_size=count)
    end = _ended(_train(path, directory / "artefact.json"))
    print(json.dumps({"form": "parquet", "file": round(path.stat().st_size / 2**20, 1)} | end))
    return float(end["peak"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; exit code 1 when learning took more memory than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.traffic", description="Memory and time of learning from traffic."
    )
    parser.add_argument("--observations", type=int, default=300_000, metavar="N")
    parser.add_argument("--form", choices=("jsonl", "parquet"), default="jsonl")
    args = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        peak = (piped if args.form == "jsonl" else filed)(args.observations, Path(directory))
    print(json.dumps({"budget": BUDGET, "peak": peak, "seconds": round(time.monotonic() - started, 1)}))
    return int(peak > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
