"""Loops beside the calls: they go on whatever a step comes to, and end when they are stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest
from harness import until

from gateway.loop import Loop


async def test_a_step_that_fails_is_told_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a step is one entry of the log, with its trace, and the loop goes on after the pause."""
    steps: list[int] = []

    async def step() -> float:
        steps.append(len(steps))
        if len(steps) == 2:
            raise ValueError("a defect")
        return 0.0

    loop = Loop(step, pause_seconds=0.0)
    with caplog.at_level(logging.ERROR, "gateway.loop"):
        loop.start()
        await until(lambda: len(steps) > 4)
        await loop.stop()

    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert "step failed; it goes on" in caplog.text


async def test_a_stopped_loop_takes_no_further_step() -> None:
    """Stopping ends a step that waits, and stopping twice, or before the start, is no error."""
    steps: list[str] = []

    async def step() -> float:
        steps.append("begun")
        await asyncio.sleep(60)
        steps.append("ended")
        return 0.0

    loop = Loop(step)
    await loop.stop()
    loop.start()
    await until(lambda: steps)
    await loop.stop()
    await loop.stop()

    assert steps == ["begun"]
