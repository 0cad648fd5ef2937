"""Several processes on one port: the first process supervises, the others serve; a worker that dies is started again.

The listening socket is opened once and inherited, so the kernel spreads connections. Workers share what they learn and count
through the Store (SQLite or Redis) and their metrics through `metrics.share`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
Target = Callable[[int, list[socket.socket], T], object]
RESTART_SECONDS = 1.0  # a worker that dies at once must not be restarted in a tight loop
_CONTEXT = multiprocessing.get_context("spawn")  # a fork would copy a running event loop
_log = logging.getLogger(__name__)


def when_orphaned(call: Callable[[], None]) -> None:
    """Have `call` called on the running loop when the supervisor has died; a worker alone would keep the port for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    loop, sentinel = asyncio.get_running_loop(), parent.sentinel

    def orphaned() -> None:
        loop.remove_reader(sentinel)
        _log.error("the supervising process has died; stopping")
        call()

    loop.add_reader(sentinel, orphaned)


class Supervisor:
    """Runs `target(index, sockets, argument)` in `count` processes until it is told to stop.

    SIGTERM and SIGINT are passed on and end the supervision once the workers have drained; SIGHUP is passed on.
    """

    def __init__(self, target: Target[T], count: int, sockets: list[socket.socket], argument: T) -> None:
        self._spawn: Callable[[int], BaseProcess] = lambda index: _CONTEXT.Process(
            target=target, args=(index, sockets, argument), name=f"worker-{index}"
        )
        self._workers: dict[int, BaseProcess] = {}
        self._count = count
        self._stopping = False

    def run(self) -> int:
        """Supervise; returns 0 after an orderly stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        for index in range(self._count):
            self._start(index)
        while not self._stopping:
            time.sleep(0.1)
            for index, worker in list(self._workers.items()):
                if not worker.is_alive() and not self._stopping:
                    _log.error("worker %d ended with %s; starting it again", index, worker.exitcode)
                    time.sleep(RESTART_SECONDS)
                    self._start(index)
        for worker in self._workers.values():
            worker.join()
        return 0

    def _start(self, index: int) -> None:
        worker = self._workers[index] = self._spawn(index)
        worker.start()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._pass_on(signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        for worker in self._workers.values():
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)
