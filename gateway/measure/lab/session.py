"""The whole lab from `make lab` to `make lab-stop`: two engines, the gateway before them, and the record of what runs.

Each engine has its own half of the processors, as the pools of the study had their own: what one does costs the other nothing,
and figures of both can be compared. With one processor they share it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gateway import atomic
from gateway.measure.lab import front
from gateway.measure.lab.engines import NGRAM, EngineSpec, Say, await_ready, launch
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.front import FrontPool
from gateway.measure.lab.pace import paces
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.processes import Record, free_port, port_free, stop

PORT: Final = 8090  # of the gateway; the engines have the two after it
STOP_SECONDS: Final = 15.0


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that is up: its addresses by name ("gateway", "baseline", "speculative"), and its processes."""

    urls: dict[str, str]
    processes: list[Record]

    @property
    def alive(self) -> bool:
        """Whether every process still runs."""
        return all(record.alive for record in self.processes)


@dataclass(frozen=True, slots=True)
class Halves:
    """The processors of each of two engines, as vLLM reads them; `apart` says that they share none."""

    first: str
    second: str
    apart: bool

    @classmethod
    def of_machine(cls) -> Halves:
        """Divide the processors that this process may use."""
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half == 0:
            return cls(str(cores[0]), str(cores[0]), apart=False)
        return cls(_listed(cores[:half]), _listed(cores[half : 2 * half]), apart=True)


def specs() -> list[EngineSpec]:
    """Return the lab's engines: identical but for speculation."""
    halves = Halves.of_machine()
    baseline = EngineSpec(name="baseline", processors=halves.first)
    return [baseline, replace(baseline, name="speculative", processors=halves.second, speculative_config=NGRAM)]


def current(place: Place) -> Session | None:
    """Return the session that was left running here, whole or not; None when there is none."""
    try:
        return msgspec.json.decode((place.run / "session.json").read_bytes(), type=Session)
    except (OSError, msgspec.DecodeError):
        return None


def up(place: Place, *, port: int = PORT, say: Say) -> Session:
    """Start the lab unless it is up, and return it; it goes on when this process ends.

    Raises:
        LabError: something does not start; nothing is left running then.
    """
    with _lock(place):
        found = current(place)
        if found is not None and found.alive:
            say("the lab is up already")
            return found
        _end(place, found)
        return _start(place, port, say)


def down(place: Place) -> list[str]:
    """Stop what runs of the lab; return the names of the processes that were stopped."""
    with _lock(place):
        return _end(place, current(place))


def _start(place: Place, port: int, say: Say) -> Session:
    wanted = specs()
    ports = [port, port + 1, port + 2] if port else [0, 0, 0]
    for number, name in zip(ports, ("the gateway", "baseline", "speculative"), strict=True):
        if number and not port_free(number):
            raise LabError(
                f'port {number}, meant for {name}, is taken: free it, or name other ports with ARGS="--port N" (0: any)'
            )
    with ExitStack() as undo:
        engines = []
        for spec, number in zip(wanted, ports[1:], strict=True):
            one = launch(replace(spec, port=number), place, log=place.run / f"{spec.name}.log", detached=True)
            undo.callback(one.stop)
            engines.append(one)
        say(f"starting {' and '.join(spec.name for spec in wanted)}; logs are in {place.run}")
        await_ready(engines, say)
        say("measuring the engines' pace, which routing starts from")
        pools = measured(wanted, [one.url for one in engines])
        process, url = _gateway(place, pools, port)
        undo.callback(stop, process.pid, seconds=STOP_SECONDS, reap=process)
        front.await_gateway(process, url, place.run / "gateway.log")
        session = Session(
            urls={"gateway": url, **{one.spec.name: one.url for one in engines}},
            processes=[
                Record.of("gateway", process.pid, url, place.run / "gateway.log"),
                *(Record.of(one.spec.name, one.process.pid, one.url, one.log) for one in engines),
            ],
        )
        _write(place, session)
        undo.pop_all()
    return session


def measured(wanted: Sequence[EngineSpec], urls: Sequence[str]) -> list[FrontPool]:
    """Return the gateway's pools for engines that are up and idle, with their paces."""
    slots = min(spec.max_num_seqs for spec in wanted)
    apart = Halves.of_machine().apart and len({spec.processors for spec in wanted}) == len(wanted)
    found = asyncio.run(paces(urls, model=SERVED, slots=slots, apart=apart))
    return [FrontPool(spec, url, pace) for spec, url, pace in zip(wanted, urls, found, strict=True)]


def _gateway(place: Place, pools: Sequence[FrontPool], port: int) -> tuple[subprocess.Popen[bytes], str]:
    number = port or free_port()
    config = place.run / "draftlane.toml"
    config.write_text(front.configuration(pools, number))
    return front.serve(config, place.run / "gateway.log"), f"http://127.0.0.1:{number}"


def _write(place: Place, session: Session) -> None:
    atomic.write(place.run / "session.json", msgspec.json.format(msgspec.json.encode(session)))


def _end(place: Place, found: Session | None) -> list[str]:
    ended = []
    for record in found.processes if found else ():
        if record.alive:
            stop(record.pid, seconds=STOP_SECONDS)
            ended.append(record.name)
    (place.run / "session.json").unlink(missing_ok=True)
    return ended


@contextmanager
def _lock(place: Place) -> Iterator[None]:
    """Let one command at a time start or stop the lab."""
    with (place.run / "lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError("another command is just starting or stopping the lab; wait for it") from None
        yield


def _listed(cores: Sequence[int]) -> str:
    return ",".join(str(core) for core in cores)
