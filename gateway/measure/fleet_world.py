"""A simulated fleet: pools of replicas with slots, queues and load-dependent steps, driven by events in exact order.

All requests that run on a replica advance at one rate, one step per `step(n)` seconds, with n of them running. So a replica
keeps one odometer of steps; a request ends when the odometer has moved by the steps it needs. A change of n changes the rate
and nothing else. No wall clock, no randomness but that of the generator passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from gateway.routing import FEATURES, PoolView

EVERYTHING = frozenset(FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """What a simulated pool is; `growth` is the relative growth of its step per further running request on a replica."""

    name: str
    speculative: bool
    window: int
    drafter: str | None
    replicas: int
    slots: int
    step_seconds: float
    growth: float
    ttft_seconds: float
    price_per_hour: float


class Job:
    """One request under way. Times are seconds of simulated time; `steps` excludes the prefill's share."""

    __slots__ = ("acceptance", "arrived", "call", "ended", "explored", "goal", "pool", "started", "steps", "work")

    def __init__(self, call: object, arrived: float) -> None:
        self.call = call
        self.arrived = arrived
        self.started = self.ended = self.goal = self.steps = self.work = 0.0
        self.acceptance = 1.0
        self.explored = False
        self.pool: Pool | None = None

    @property
    def decode_seconds(self) -> float:
        """The time in the slot without the prefill, which runs at the same rate."""
        return (self.ended - self.started) * self.steps / self.work


class Replica:
    """One engine: slots, a queue, an odometer of steps."""

    __slots__ = ("at", "live", "odometer", "pool", "rate", "running", "turn", "waiting")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.waiting: deque[Job] = deque()
        self.running: list[tuple[float, int, Job]] = []  # a heap by the odometer at which each ends
        self.odometer = self.at = 0.0
        self.rate = 1.0 / pool.spec.step_seconds
        self.turn = 0  # of scheduled ends, all but the last are void
        self.live = True

    @property
    def busy(self) -> int:
        """Requests running and waiting."""
        return len(self.running) + len(self.waiting)


class Pool:
    """Replicas of one kind. `price_per_hour` and `live` may change during a run."""

    __slots__ = ("_view", "busy", "live", "price_per_hour", "replicas", "spec")

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.replicas = [Replica(self) for _ in range(spec.replicas)]
        self.live = list(self.replicas)
        self.price_per_hour = spec.price_per_hour
        self.busy = 0
        self._view: PoolView | None = None

    @property
    def price_per_slot_second(self) -> float:
        """US dollars for one slot during one second."""
        return self.price_per_hour / 3600.0 / self.spec.slots

    def step(self, running: float) -> float:
        """Return the seconds per step with so many requests running on a replica."""
        return self.spec.step_seconds * (1.0 + self.spec.growth * max(0.0, running - 1.0))

    def view(self) -> PoolView:
        """Return the pool as a gateway sees it."""
        if self._view is None:
            spec, live = self.spec, len(self.live)
            slots = spec.slots * live
            running = min(self.busy, slots)
            self._view = PoolView(
                name=spec.name,
                speculative=spec.speculative,
                window=spec.window,
                drafter=spec.drafter,
                revision=f"{spec.name}-k{spec.window}",
                supports=EVERYTHING,
                max_model_len=None,
                slots=slots,
                running=running,
                queued=self.busy - running,
                live_replicas=live,
                step_seconds=self.step(running / live if live else 0.0),
                step_growth=spec.growth,
                ttft_seconds=spec.ttft_seconds,
                price_per_slot_second=self.price_per_slot_second,
                available=live > 0,
                why_unavailable=None if live else "no live replica",
            )
        return self._view

    def changed(self) -> None:
        """Forget the view: load, price or replicas are other ones now."""
        self._view = None

    def pick(self, chance: Random) -> Replica:
        """Return the less busy of two live replicas drawn by chance."""
        live = self.live
        if len(live) == 1:
            return live[0]
        first = int(chance.random() * len(live))
        second = int(chance.random() * (len(live) - 1))
        one, other = live[first], live[second + (second >= first)]
        return one if one.busy <= other.busy else other


class World:
    """The event loop: `run` takes calls in order of arrival and tells of every end. Ends before arrivals at equal times."""

    def __init__(self, specs: list[PoolSpec], seed: int) -> None:
        self.pools = {spec.name: Pool(spec) for spec in specs}
        self.now = 0.0
        self._chance = Random(seed)
        self._ends: list[tuple[float, int, int, Replica]] = []  # time, tie-breaker, turn, replica
        self._count = 0
        self.on_end: Callable[[Job], None] = _ignore

    def advance(self, until: float) -> None:
        """Let everything end that ends by `until`."""
        while self._ends and self._ends[0][0] <= until:
            time, _, turn, replica = heappop(self._ends)
            if turn == replica.turn:
                self.now = time
                self._end(replica)
        self.now = max(self.now, until)

    def finish(self) -> None:
        """Let everything end."""
        while self._ends:
            self.advance(self._ends[0][0])

    def start(self, job: Job, pool: Pool, *, tokens: int, acceptance: float) -> None:
        """Send a job to a pool now."""
        job.pool = pool
        job.acceptance = acceptance
        job.steps = tokens / acceptance
        job.work = job.steps + pool.spec.ttft_seconds / pool.spec.step_seconds
        self._admit(pool.pick(self._chance), job)
        pool.busy += 1
        pool.changed()

    def lose(self, pool: Pool, replicas: int) -> None:
        """Take replicas away; what ran or waited there starts anew on the others."""
        gone, pool.live = pool.live[:replicas], pool.live[replicas:]
        for replica in gone:
            replica.live = False
            replica.turn += 1
            for job in [*(entry[2] for entry in replica.running), *replica.waiting]:
                self._admit(pool.pick(self._chance), job)
            replica.running.clear()
            replica.waiting.clear()
        pool.changed()

    def _admit(self, replica: Replica, job: Job) -> None:
        if len(replica.running) >= replica.pool.spec.slots:
            replica.waiting.append(job)
            return
        self._roll(replica)
        self._begin(replica, job)
        self._schedule(replica)

    def _begin(self, replica: Replica, job: Job) -> None:
        job.started = self.now
        job.goal = replica.odometer + job.work
        self._count += 1
        heappush(replica.running, (job.goal, self._count, job))

    def _roll(self, replica: Replica) -> None:
        replica.odometer += (self.now - replica.at) * replica.rate
        replica.at = self.now

    def _schedule(self, replica: Replica) -> None:
        replica.turn += 1
        running = replica.running
        if not running:
            replica.odometer = 0.0  # keeps the odometer small and exact
            return
        replica.rate = 1.0 / replica.pool.step(len(running))
        self._count += 1
        end = self.now + max(0.0, running[0][0] - replica.odometer) / replica.rate
        heappush(self._ends, (end, self._count, replica.turn, replica))

    def _end(self, replica: Replica) -> None:
        self._roll(replica)
        _, _, job = heappop(replica.running)
        replica.odometer = job.goal  # what rounding lost
        if replica.waiting:
            self._begin(replica, replica.waiting.popleft())
        self._schedule(replica)
        pool = replica.pool
        pool.busy -= 1
        pool.changed()
        job.ended = self.now
        self.on_end(job)


def _ignore(job: Job) -> None:
    """Nobody listens yet."""
