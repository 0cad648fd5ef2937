"""`make lab-draft`: distils draft models for the lab's target from its own answers. For `.lab`'s interpreter.

Two drafts, of four and of two of the target's layers, as the study had drafts of two sizes. The time that is given is divided
between answering and learning; a further run goes on where the last one ended, and so does one after a break.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.measure.lab.distil_corpus import shards, tokens
from gateway.measure.lab.distil_train import DRAFTS, Texts, Training
from gateway.measure.lab.engines import EngineSpec
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.place import Place
from gateway.measure.lab.processes import end_as_interrupted, stop

ANSWERING: Final = 0.35  # of the time, unless there is a corpus that is large enough
LEARNING: Final = (0.36, 0.29)  # of the time, by draft: the larger one learns more slowly
ENOUGH: Final = 2_000_000  # answered tokens, of which a small draft cannot learn all in any time that one would wait


def main(argv: Sequence[str] | None = None) -> int:
    """Distil; 0 when both drafts are there."""
    parser = argparse.ArgumentParser(prog="make lab-draft", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="that it may take in all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="for learning; 0: as many as there are processors")
    parser.add_argument("--again", action="store_true", help="forget drafts and answers that are there, and begin anew")
    args = parser.parse_args(argv)
    if not args.minutes > 0:
        parser.error("--minutes: must be above 0")
    place = Place.usual()
    folder = place.root / "drafts"
    try:
        place.model(None)
        if args.again:
            _forget(folder)
        return _distil(place, folder, 60.0 * args.minutes, args.threads)
    except (LabError, OSError) as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say(f"interrupted; what there is lies in {folder}, and `make lab-draft` goes on with it")
        return 1


def _distil(place: Place, folder: Path, seconds: float, threads: int) -> int:
    """Answer, learn, publish."""
    _answer(folder, seconds)
    import torch

    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    learned, held = Texts.of(folder)
    if not learned.tokens:
        raise LabError(f"there are no answers in {folder}: give it more --minutes")
    for draft, share in zip(DRAFTS, LEARNING, strict=True):
        training = Training(place, draft, folder)
        facts = training.run(learned, held, seconds=share * seconds, say=_say)
        facts["corpus_tokens"] = tokens(folder)
        path = training.publish(facts)
        _say(f"{draft.name} agrees with the target on {facts['agreement']:.1%} of held-out tokens; it lies in {path}")
        sys.stdout.write(json.dumps({"draft": draft.name, **facts}) + "\n")
    return 0


def _answer(folder: Path, seconds: float) -> None:
    """Let the target answer in a process of its own, whose memory is free again afterwards."""
    began = time.monotonic()
    have = tokens(folder)
    if have >= ENOUGH:
        _say(f"{have} answered tokens are enough")
        return
    command = [sys.executable, "-m", "gateway.measure.lab.distil_corpus", str(folder), str(ANSWERING * seconds)]
    child = subprocess.Popen(command, env=EngineSpec(name="answers").environment(), start_new_session=True)
    try:
        failed = child.wait()
    finally:  # vLLM's own children outlive a parent that is interrupted
        stop(child.pid, seconds=10.0, reap=child)
    if failed:
        raise LabError("the target could not answer; what vLLM says of it stands above")
    _say(f"{tokens(folder)} answered tokens in {len(shards(folder))} batches, after {time.monotonic() - began:.0f} s")


def _forget(folder: Path) -> None:
    for path in (*folder.glob("shard-*"), *folder.glob("*.pt")):
        path.unlink()


def _say(text: str) -> None:
    sys.stderr.write(f"lab-draft: {text}\n")


if __name__ == "__main__":
    end_as_interrupted()
    sys.exit(main())
