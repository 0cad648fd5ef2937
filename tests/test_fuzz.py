"""Inputs changed at random, the same ones on every run: no parser that meets strangers breaks its laws."""

from __future__ import annotations

from itertools import islice

import pytest

from bench.fuzz.mutate import corpus, mutations
from bench.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_law(name: str) -> None:
    """The corpus and 1,500 changes of it are answered or refused as each target's law says."""
    assert corpus(name)
    for data in islice(mutations(name, 1), 1500):
        TARGETS[name](data)
