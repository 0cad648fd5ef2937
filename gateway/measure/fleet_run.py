"""One policy through one scenario: calls in, tallies out."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.measure.fleet_policies import Policy
from gateway.measure.fleet_traffic import DEARER, Call, Scenario, acceptance, calls
from gateway.measure.fleet_world import Job, World

if TYPE_CHECKING:
    from gateway.measure.fleet_rows import Row


class Tally:
    """What a run leaves, one number per call in order of arrival: seconds, dollars, tokens, and what was chosen.

    `expected` is the acceptance length that the policy foresaw on the pool it chose, 0 where it foresaw none, and `acceptance`
    the one that came; `lost` is the decode time that exploration cost, where it cost any.
    """

    def __init__(self, requests: int) -> None:
        def zeros() -> array[float]:
            return array("d", bytes(8 * requests))

        self.decode, self.e2e, self.slot = zeros(), zeros(), zeros()
        self.cost, self.tokens, self.lost = zeros(), zeros(), zeros()
        self.expected, self.acceptance = zeros(), zeros()
        self.speculated = bytearray(requests)
        self.explored = bytearray(requests)


class Run:
    """Drives one world with one policy."""

    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self.scenario = scenario
        self.policy = policy
        self.tally = Tally(scenario.requests)
        self.world = World(scenario.pools(), scenario.seed + 2)
        self.world.on_end = self._ended
        self._pools = list(self.world.pools.values())
        self._base = next(pool for pool in self._pools if not pool.spec.speculative)

    def all(self, rows: Sequence[Row]) -> Tally:
        """Let every call of the scenario arrive and end."""
        world, policy, drafter = self.world, self.policy, self.scenario.shape.drafter
        for call in calls(self.scenario, rows):
            world.advance(call.time)
            if call.index == self.scenario.change_at:
                self._change()
            views = [pool.view() for pool in self._pools]
            choice = policy.choose(call, views, world.now)
            pool = world.pools[choice.pool]
            job = Job(call, world.now)
            job.explored = choice.explored
            self.tally.expected[call.index] = choice.expected
            length = acceptance(call, drafter, pool.spec.window) if pool.spec.speculative else 1.0
            world.start(job, pool, tokens=call.row.tokens, acceptance=length)
        world.finish()
        return self.tally

    def _change(self) -> None:
        speculative = [pool for pool in self._pools if pool.spec.speculative]
        for pool in speculative:
            if self.scenario.name == "price-change":
                pool.price_per_hour *= DEARER
                pool.changed()
            elif self.scenario.name == "half-pool":
                self.world.lose(pool, len(pool.live) // 2)

    def _ended(self, job: Job) -> None:
        call, pool, tally = job.call, job.pool, self.tally
        assert isinstance(call, Call)
        assert pool is not None
        index = call.index
        slot = job.ended - job.started
        decode = job.decode_seconds
        tally.decode[index] = decode
        tally.slot[index] = slot
        tally.e2e[index] = job.ended - job.arrived
        tally.cost[index] = slot * pool.price_per_slot_second
        tally.tokens[index] = call.row.tokens
        tally.speculated[index] = pool.spec.speculative
        tally.acceptance[index] = job.acceptance
        if job.explored:
            tally.explored[index] = 1
            tally.lost[index] = max(0.0, decode - call.row.tokens * self._base.step(1.0))
        self.policy.learn(call, pool.view(), job.acceptance, job.steps, job.ended)
