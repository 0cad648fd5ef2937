"""Put models on a shared volume as local checkpoints, written once from start to end, as object storage wants it.

Usage: download.py MODELS SCRATCH. TARGET and DRAFT in the environment say what, each "repository[@revision] folder". A folder
that is complete holds the file REVISION with the commit that was fetched, and is left as it is.
"""

import os
import shutil
import sys
from pathlib import Path

PARTS = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")


def wanted(words: str) -> tuple[str, str, str]:
    """Split "repository[@revision] folder" into its three parts."""
    source, folder = words.split()
    repository, _, revision = source.partition("@")
    return repository, revision or "main", folder


def copy(source: Path, target: Path) -> None:
    """Copy a folder file by file; what marks it as complete comes last."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and ".cache" not in path.parts:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def fetch(words: str, models: Path, scratch: Path) -> str:
    """Fetch one model unless it is there; return the commit."""
    from huggingface_hub import HfApi, snapshot_download

    repository, revision, folder = wanted(words)
    mark = models / folder / "REVISION"
    if mark.is_file():
        return mark.read_text().strip()
    commit: str = HfApi().model_info(repository, revision=revision).sha
    place = scratch / folder
    snapshot_download(repository, revision=commit, local_dir=place, allow_patterns=list(PARTS))
    copy(place, models / folder)
    mark.write_text(f"{commit}\n")
    shutil.rmtree(place)
    return commit


def main() -> None:
    """Fetch all models that the environment names."""
    models, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("TARGET", "DRAFT"):
        words = os.environ.get(name)
        if words:
            sys.stdout.write(f"{name}: {words} at {fetch(words, models, scratch)}\n")


if __name__ == "__main__":
    main()
