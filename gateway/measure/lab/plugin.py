"""What the lab changes in vLLM, by vLLM's own plugin mechanism and in the lab's engines only. For `.lab`'s interpreter.

vLLM's processes wait for one another by looking again and again, each on a processor of its own. On two processors that takes
the time from the engines themselves: a process that waits uses half of the processor on which another one calculates, and a
step takes 104 ms in place of 36. Here they sleep between two looks. What else is changed is in `dictated`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from gateway.measure.lab import dictated

ENTRY_POINT: Final = "[vllm.general_plugins]\ndraftlane_lab = gateway.measure.lab.plugin:register\n"
LOOK_SECONDS: Final = 0.0005  # a step takes seventy times as long


def register() -> None:
    """Make the changes; vLLM calls this in each of its processes."""
    _sleep_instead_of_spinning()
    dictated.register()


def install(folder: Path) -> Path:
    """Write what makes vLLM find the plugin, for an engine that has the folder on its path; return the folder."""
    described = folder / "draftlane_lab-1.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: draftlane-lab\nVersion: 1\n")
    (described / "entry_points.txt").write_text(ENTRY_POINT)
    return folder


def _sleep_instead_of_spinning() -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    # What a waiting process does between two looks; after a second without news vLLM itself waits for a notification.
    shm_broadcast.sched_yield = lambda: time.sleep(LOOK_SECONDS)
