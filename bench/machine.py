"""The machine as measurements see it: cores to pin to, and what a tree of processes has used of it. Linux only."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cores:
    """Where things run: the engine stand-in and the load generator on one core, what is measured on the other."""

    load: int
    measured: int

    @property
    def shared(self) -> bool:
        """Whether there is only one core, so that figures include the load generator's interference."""
        return self.load == self.measured

    @classmethod
    def available(cls) -> Cores:
        """Take the first two cores that this process may use."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(cores[0], cores[min(1, len(cores) - 1)])


def pinned(core: int, command: list[str]) -> list[str]:
    """Return the command line that runs `command` on one core."""
    return ["taskset", "--cpu-list", str(core), *command]


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, ())
    return found


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU time that processes have used: the scheduler's nanoseconds where the kernel tells them, else ticks."""
    total = 0.0
    for process in processes:
        try:
            tasks = [(task / "schedstat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
            total += sum(int(told.split()[0]) for told in tasks) / 1e9
        except OSError:
            fields = _stat(process)
            total += (int(fields[11]) + int(fields[12])) * _TICK
    return total


def resident_mib(processes: list[int]) -> float:
    """Return the memory that processes hold, in MiB; pages shared between them are counted once for each."""
    return sum(int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in processes) * _PAGE / 2**20


def describe() -> dict[str, str | int]:
    """Return what figures depend on: processor, cores, kernel, Python."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name, which may hold anything; the first is the state."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
