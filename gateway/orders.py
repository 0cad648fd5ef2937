"""What one worker was told and all must know: the configuration in force, and which pools are switched off.

The workers of a gateway share a folder; their orders are one file in it, changed under a lock and replaced whole. Each worker
looks at it every second, and before it serves: one that is started again goes on with what its predecessor was told, whatever
the configuration's file says meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gateway import atomic
from gateway.config import Config
from gateway.loop import Loop
from gateway.pipeline import Live

LOOK_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How everything shall be: `config` as JSON, empty before the first change; `pools` by name, whether they are on."""

    reloads: int = 0
    config: str = ""
    pools: Mapping[str, bool] = field(default_factory=dict)


class Orders:
    """One worker's view of what all were told.

    Args:
        folder: what the workers share.
        live: what calls meet here.
        take_over: puts a reloaded configuration into force here; what it names may have changed where it has not.
    """

    def __init__(self, folder: Path, live: Live, take_over: Callable[[Config], None]) -> None:
        self._path = folder / "orders.json"
        self._lock = folder / "orders.lock"
        self._live = live
        self._take_over = take_over
        self._seen = Order()
        self._loop = Loop(self._look)

    def start(self) -> None:
        """Do what was told before this worker began, and go on looking."""
        self.follow()
        self._loop.start()

    async def stop(self) -> None:
        """Look no more."""
        await self._loop.stop()

    def follow(self) -> None:
        """Do what others were told since the last look."""
        order = self._read()
        if order == self._seen:
            return
        if order.reloads != self._seen.reloads:
            self._take_over(Config.model_validate_json(order.config, strict=False))
        for pool in self._live.pools:
            pool.enabled = order.pools.get(pool.name, pool.enabled)
        self._seen = order

    def reload(self, step: Callable[[], list[str]]) -> list[str]:
        """Reload here; where there were no problems, have the others take the same configuration over."""
        with self._changing():
            problems = step()
            if not problems:
                self._give(self._seen.reloads + 1)
        return problems

    def switch(self, name: str, *, enabled: bool) -> bool:
        """Switch a pool on or off, here and everywhere; whether there is such a pool, as of the last reload anywhere."""
        with self._changing():
            known = self._live.pools.switch(name, enabled=enabled)
            if known:
                self._give(self._seen.reloads)
        return known

    async def _look(self) -> float:
        self.follow()
        return LOOK_SECONDS

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold all other workers' changes off; they take milliseconds."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.follow()
            yield

    def _read(self) -> Order:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Order)
        except FileNotFoundError:
            return Order()

    def _give(self, reloads: int) -> None:
        """Leave how things are here for the others."""
        pools = {pool.name: pool.enabled for pool in self._live.pools}
        order = Order(reloads=reloads, config=self._live.config.model_dump_json(by_alias=True), pools=pools)
        try:
            atomic.write(self._path, msgspec.json.encode(order))
        except OSError as error:
            _log.error("the other workers could not be told: %s", error)
        else:
            self._seen = order
