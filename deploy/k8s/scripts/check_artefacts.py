"""Refuse compiled artefacts that are not those of the folder's name, before an engine compiles them again without a word.

Usage: check_artefacts.py FOLDER. The name says what is inside: <models>-tp32-bs4-len1024-k7-sdk2.26.1, where k0 is no draft.
Needs nothing but Python. Exits 0 when they fit, 1 with every reason otherwise.
"""

import json
import re
import sys
from pathlib import Path

NAME = re.compile(r"-tp(?P<tp>\d+)-bs(?P<bs>\d+)-len(?P<len>\d+)-k(?P<k>\d+)-sdk(?P<sdk>[0-9.]+)$")
# What NeuronX Distributed Inference writes into neuron_config.json, by the folder name's words.
FIELDS = {"tp": "tp_degree", "bs": "batch_size", "len": "seq_len", "k": "speculation_length"}


def problems(folder: Path) -> list[str]:
    """Return everything that is wrong with the artefacts of a folder, in words."""
    named = NAME.search(folder.name)
    if named is None:
        return [f"{folder.name}: the name must end in -tp<n>-bs<n>-len<n>-k<n>-sdk<version>"]
    try:
        config = json.loads((folder / "neuron_config.json").read_text())
        stamp = json.loads((folder / "draftlane.json").read_text())
    except (OSError, ValueError) as wrong:
        return [f"{folder}: not compiled, or only in part: {wrong}; run the compile Job of this pool"]
    inner = config.get("neuron_config", config)
    found = []
    for word, field in FIELDS.items():
        if int(inner.get(field) or 0) != int(named[word]):
            found.append(f"{field} is {inner.get(field)!r}, the folder's name says {named[word]}")
    if stamp.get("sdk") != named["sdk"]:
        found.append(f"compiled with SDK {stamp.get('sdk')!r}, the folder's name says {named['sdk']}")
    if not (folder / "model.pt").is_file():
        found.append("model.pt is missing")
    return found


def main() -> int:
    """Check the folder that is named."""
    if len(sys.argv) != 2:
        sys.stderr.write(__doc__ or "")
        return 2
    found = problems(Path(sys.argv[1]))
    for problem in found:
        sys.stderr.write(f"artefacts: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
