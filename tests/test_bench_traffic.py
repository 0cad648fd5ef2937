"""The measurement of learning from own traffic: it learns what it feeds, and tells memory on the way."""

from __future__ import annotations

import json

import pytest

from bench.traffic import MILESTONES, kept, main, seen
from classifier.artifact import digest_of


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_memory_is_told_as_observations_pass(form: str, capsys: pytest.CaptureFixture[str]):
    """Every observation is learned from or held out, and the peak lies within the budget; a pipe also tells each tenth."""
    assert main(["--observations", "400", "--form", form]) == 0

    *milestones, end, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(milestones) == (MILESTONES if form == "jsonl" else 0)
    assert end["form"] == form
    assert end["learned_from"] + end["held_out"] == 400
    assert 0 < end["peak"] == verdict["peak"] <= verdict["budget"]


def test_what_is_fed_are_observations():
    """Lines hold features of this release, each of a template of its own, and the same ones on every run."""
    lines = list(seen(5, [json.dumps(each) for each in kept()[:2]]))

    told = [json.loads(line) for line in lines]
    assert [each["template"] for each in told] == ["0", "1", "2", "3", "4"]
    assert {each["features"]["digest"] for each in told} == {digest_of()}
    assert lines == list(seen(5, [json.dumps(each) for each in kept()[:2]]))
