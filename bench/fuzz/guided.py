"""One target under atheris: `python -m bench.fuzz.guided TARGET CORPUS… -flags`, which are libFuzzer's."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["gateway", "classifier", "bench.fuzz.targets"]):
    from bench.fuzz.targets import TARGETS

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
