"""`draftlane sweep --lab`: engines that it starts itself, one after another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.lab.stand import COPYING, SECONDS, STORY, chat
from gateway.measure.lab.place import Place

pytestmark = pytest.mark.timeout(SECONDS)


def test_windows_are_measured_on_engines_of_its_own(tmp_path: Path) -> None:
    """Baseline and prompt lookup are started, measured with the same calls and stopped; lookup accepts what is copied."""
    trace = tmp_path / "prompts.jsonl"
    trace.write_text("".join(f"{json.dumps(chat(prompt))}\n" for prompt in (COPYING, STORY)))
    command = [sys.executable, "-m", "gateway", "sweep", str(trace), "--lab", "--windows", "5", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sweep:
        told, _ = sweep.communicate()
    all_together = {row["window"]: row for row in json.loads(told)["windows"] if not row["category"]}

    assert {window: row["calls"] for window, row in all_together.items()} == {0: 2, 5: 2}
    assert all_together[0]["acceptance_length"]["value"] == 1.0
    assert all_together[5]["acceptance_length"]["value"] > 1.1
    assert list(Place.usual().run.glob(f"*-{sweep.pid}.log")) == []  # a log goes when its engine has been stopped
