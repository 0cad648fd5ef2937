"""What finished calls teach the router: traffic and acceptance to the curves, paces to the pools. A sink."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.pools import Pools
    from gateway.record import Finished
    from gateway.routing import Curves
    from gateway.store.contract import Deltas


class SharedCurves:
    """What the curves of several processes tell each other, with the time that merging needs."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves

    def deltas(self) -> Deltas:
        """Return what was learned here since the last call, which takes it out."""
        return self._curves.deltas()

    def merge(self, deltas: Deltas, /) -> None:
        """Add what others learned."""
        self._curves.merge(deltas, now=time.time())


class Learning:
    """Feeds curves and pools; biased observations are left out (see `observation`)."""

    __slots__ = ("_curves", "_pools")

    def __init__(self, pools: Pools, curves: Curves) -> None:
        self._pools = pools
        self._curves = curves

    def __call__(self, finished: Finished) -> None:
        """Learn from one call."""
        if finished.outcome != "ok" or not finished.pool or finished.pool not in self._pools:
            return
        pool = self._pools[finished.pool]
        self._curves.saw(
            tenant=finished.tenant,
            model=finished.model,
            template=finished.template,
            now=finished.time + finished.duration,
        )
        if finished.ttft is not None and finished.attempts == 1:  # else the time of other attempts is in it
            pool.saw_ttft(finished.ttft)
        if finished.biased or finished.acceptance is None or finished.steps is None:
            return
        if finished.step_seconds is not None:
            pool.saw_step(finished.step_seconds, finished.running)
        if finished.speculative and finished.scored is not None and pool.verdict.learns:
            self._curves.observe(
                revision=finished.revision,
                temperature=finished.temperature,
                tenant=finished.tenant,
                model=finished.model,
                template=finished.template,
                score=finished.scored,
                m=finished.acceptance,
                steps=finished.steps,
                now=finished.time + finished.duration,
                source=finished.source,
            )
