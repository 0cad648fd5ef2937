"""The sixteen faults of the public suite: every verdict, from the caller's and the engines' view."""

from __future__ import annotations

import asyncio

from bench.faults.cases import FAST
from bench.faults.run import MODES, run


async def test_every_fault_is_a_pass_in_both_modes() -> None:
    """Sixteen faults, as JSON and as a stream: the caller has the whole answer or the right error, and conduct is good."""
    cells = [
        cell for found in await asyncio.gather(*(run(FAST, mode, resume=True) for mode in MODES)) for cell in found
    ]

    assert len(cells) == 32
    assert {f"{cell.case.id} {cell.mode}": (cell.verdict, [*cell.broken]) for cell in cells} == {
        f"{cell.case.id} {cell.mode}": ("pass", []) for cell in cells
    }


async def test_a_stream_that_has_begun_ends_in_a_clean_error_unless_it_may_be_gone_on_with() -> None:
    """As shipped, a stream that is cut or stalls in its middle is told to its caller, and asked of nobody else."""
    cells = await run(FAST, "sse", resume=False, only={"S08", "S09", "S14"})

    assert [(cell.case.id, cell.verdict, cell.first, cell.second) for cell in cells] == [
        ("S08", "safe", 1, 0),
        ("S09", "safe", 1, 0),
        ("S14", "safe", 1, 0),
    ]
