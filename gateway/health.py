"""Active health checks: each replica's health path asked every few seconds, on the control plane's own client.

A check decides one thing, `Replica.healthy`: two failures in a row take a replica out, one success brings it back. Traffic
has its own judge, the breaker; a replica that answers checks and fails calls is held by that one. An engine that talks while
its check times out is not dead: either of us is busy, and calls are better off with it than without.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from gateway.control import Control
from gateway.loop import Loop
from gateway.pools import Pool, Pools, Replica
from gateway.reply import Broken

INTERVAL_SECONDS = 3.0
TIMEOUT_SECONDS = 2.0
FAILURES_TO_LEAVE = 2
_log = logging.getLogger(__name__)


class HealthChecks(Loop):
    """Checks every replica of the pools until stopped; replicas that a reload brings are picked up by themselves."""

    def __init__(
        self,
        pools: Pools,
        control: Control,
        *,
        interval_seconds: Callable[[], float] = lambda: INTERVAL_SECONDS,
        chance: Callable[[], float] = random.random,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(self._again)
        self._timeout = timeout_seconds
        self._pools = pools
        self._control = control
        self._interval = interval_seconds
        self._chance = chance
        self._failures: dict[str, int] = {}

    async def check_all(self) -> None:
        """Check every replica once, side by side."""
        checks = [self._check(pool, replica) for pool in self._pools for replica in pool.replicas]
        await asyncio.gather(*checks)

    async def _again(self) -> float:
        await self.check_all()
        return self._interval() * (0.75 + 0.5 * self._chance())

    async def _check(self, pool: Pool, replica: Replica) -> None:
        began = asyncio.get_running_loop().time()
        try:
            status, _ = await self._control.get(pool, replica, pool.config.health_path, self._timeout)
            failure = "" if status < 400 else f"status {status}"
        except TimeoutError:
            if replica.client.heard_at() > began:
                return
            failure = f"no answer in {self._timeout:g} s"
        except Broken as error:
            failure = str(error)
        if not failure:
            self._failures.pop(replica.url, None)
            if not replica.healthy:
                _log.warning("replica %s is healthy again", replica.name)
            replica.healthy = True
            return
        count = self._failures[replica.url] = self._failures.get(replica.url, 0) + 1
        if count == FAILURES_TO_LEAVE:
            _log.warning("replica %s left out: %s", replica.name, failure)
        if count >= FAILURES_TO_LEAVE:
            replica.healthy = False
