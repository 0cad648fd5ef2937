"""The replay that checks counterfactuals: it serves the whole trace under each policy and tells estimate, price and error."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from prom import ROOT


async def test_it_tells_what_was_estimated_and_what_was_paid() -> None:
    """One line for the routed trace and one for each pure policy, whose error is estimate over price less one."""
    words = "--calls 8 --tokens 16 --speed 60 --lessons 1 --at-once 2".split()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.counterfactual", *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    routed, *pure = [json.loads(line) for line in out.splitlines()]

    assert process.returncode in {0, 1}
    assert (routed["policy"], routed["calls"]) == ("as routed", 8)
    assert sum(routed["share"].values()) == pytest.approx(1.0)
    assert [line["policy"] for line in pure] == ["all baseline", "all speculative"]
    for line in pure:
        assert line["error"] == pytest.approx(line["estimated_usd"] / line["paid_usd"] - 1)
    assert (process.returncode == 0) == all(abs(line["error"]) <= 0.05 for line in pure)
