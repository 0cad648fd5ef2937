"""Processes of the lab: ports, ends of logs, records by which a later command finds them again, and stopping them.

A record names a process by its id *and* the moment when it began, as ids are used again: nothing is ever signalled that is not
what was started. Linux only, for /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

TAIL_LINES: Final = 15


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was left running."""

    name: str
    pid: int
    began: int  # clock ticks after the machine's start
    url: str
    log: str

    @classmethod
    def of(cls, name: str, pid: int, url: str, log: Path) -> Record:
        """Record a process that was started just now."""
        return cls(name=name, pid=pid, began=began(pid) or 0, url=url, log=str(log))

    @property
    def alive(self) -> bool:
        """Whether it still runs, and is the one that was recorded."""
        return began(self.pid) == self.began


def began(pid: int) -> int | None:
    """Return when a process began, in clock ticks after the machine's start; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def port_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the end of a log, indented, with its path."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"    ({error})"
    return "\n".join([*(f"    {line[:300]}" for line in text[-lines:] if line.strip()), f"    (all of it: {log})"])


def end_as_interrupted() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that what it has started ends with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def stop(pid: int, *, seconds: float, reap: subprocess.Popen[bytes] | None = None) -> None:
    """End the process group that `pid` leads: asked first, killed after `seconds`; returns when all of it is gone."""
    for sign, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(pid, sign)
        except ProcessLookupError:
            break
        if _gone(pid, patience, reap):
            break
    if reap is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            reap.wait(1.0)


def _gone(group: int, seconds: float, reap: subprocess.Popen[bytes] | None) -> bool:
    """Wait until a process group has no members."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if reap is not None:
            reap.poll()  # a zombie would keep the group alive
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
