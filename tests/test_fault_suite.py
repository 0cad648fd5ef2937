"""The sixteen faults of the public suite: every verdict, from the caller's and the engines' view."""

from __future__ import annotations

import pytest

from bench.faults.cases import FAST
from bench.faults.run import MODES, Mode, run


@pytest.mark.parametrize("mode", MODES)
async def test_every_fault_is_a_pass(mode: Mode) -> None:
    """Sixteen faults, as JSON and as a stream: the caller has the whole answer or the right error, and conduct is good."""
    cells = await run(FAST, mode, resume=True)

    assert len(cells) == 16
    assert {cell.case.id: (cell.verdict, [*cell.broken]) for cell in cells} == {
        cell.case.id: ("pass", []) for cell in cells
    }


async def test_a_stream_that_has_begun_ends_in_a_clean_error_unless_it_may_be_gone_on_with() -> None:
    """With resume_streams off, a stream that is cut or stalls in its middle is told to its caller, and asked of nobody else."""
    cells = await run(FAST, "sse", resume=False, only={"S08", "S09", "S14"})

    assert [(cell.case.id, cell.verdict, cell.first, cell.second) for cell in cells] == [
        ("S08", "safe", 1, 0),
        ("S09", "safe", 1, 0),
        ("S14", "safe", 1, 0),
    ]
