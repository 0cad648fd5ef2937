"""Inputs changed at random, the same ones on every run: no parser that meets strangers breaks its laws."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from bench.fuzz.mutate import corpus, mutations
from bench.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_law(name: str) -> None:
    """The corpus and 1,500 changes of it are answered or refused as each target's law says."""
    assert corpus(name)
    for data in islice(mutations(name, 1), 1500):
        TARGETS[name](data)


def test_a_fuzzer_finds_nothing_within_its_budget() -> None:
    """A second for each target, guided by coverage where atheris is there, from the corpus on: no law is broken."""
    command = [sys.executable, "-m", "bench.fuzz", "--seconds", "1"]
    run = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    told = [json.loads(line) for line in run.stdout.splitlines()]

    assert [each["target"] for each in told if each["ok"]] == list(TARGETS), run.stderr + run.stdout
    assert run.returncode == 0
