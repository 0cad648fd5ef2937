"""Live state of pools: which replicas live, what runs on them, how long a step takes now. Nothing here waits.

Owned per process. Leases are the only count of running requests: taken in `upstream`, given back by the exchange's exit,
never reaped.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date

from gateway import http1
from gateway.breaker import Breaker
from gateway.config import Config, PoolConfig
from gateway.routing.guards import FREE, Verdict
from gateway.routing.view import PoolView
from gateway.tls import engine_context, identity_of
from gateway.turns import Turns

LEARNING_SHARE = 0.1  # of a new step time in the running estimate: about the last twenty calls


class Replica:
    """One engine of a pool."""

    __slots__ = ("breaker", "client", "cool_until", "healthy", "name", "others", "pool", "running", "url")

    def __init__(self, name: str, url: str, client: http1.Client) -> None:
        self.name = name
        self.url = url
        self.client = client
        self.breaker = Breaker()
        self.healthy = True  # until a health check says otherwise: the first request needs no check before it
        self.cool_until = 0.0  # an engine's Retry-After
        self.running = 0  # calls of this process
        self.others = 0  # calls of other gateways: the engine's own count at the last scrape, less ours then
        self.pool: Pool | None = None

    def __repr__(self) -> str:
        return (
            f"<Replica {self.name} running={self.running} {self.breaker.state}{'' if self.healthy else ' unhealthy'}>"
        )

    def usable(self, now: float) -> bool:
        """Whether a request may be sent there now."""
        breaker = self.breaker
        return self.healthy and now >= self.cool_until and (breaker.state == "closed" or breaker.allows(now))

    def state(self, now: float) -> str:
        """One of REPLICA_STATES, for people and metrics."""
        if not self.healthy:
            return "unhealthy"
        if now < self.cool_until:
            return "cooling"
        return "live" if self.breaker.state == "closed" else self.breaker.state


REPLICA_STATES = ("live", "half-open", "open", "cooling", "unhealthy")


class Lease:
    """A running request on a replica; released once, by whoever owns the stream."""

    __slots__ = ("_probe", "_replica")

    def __init__(self, replica: Replica, now: float) -> None:
        replica.running += 1
        self._probe = replica.breaker.begin(now)
        self._replica: Replica | None = replica

    def release(self) -> None:
        """Give the place back; idempotent."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.running -= 1
            if self._probe:
                replica.breaker.abandon()
            if replica.pool is not None and replica.pool.turns.waiting:
                replica.pool.let_in()


class Pool:
    """Replicas that share a model and an engine configuration, and what they have shown."""

    __slots__ = """_alone_seconds _bound _drafter _growth _longest _supports ahead authorization config enabled identity
        kind load_factor name price_per_slot_second replicas revision served_model slots speculative tls
        ttft_seconds turns usd_per_hour verdict window""".split()

    def __init__(self, config: PoolConfig, replicas: list[Replica], key: str | None) -> None:
        self.config = config
        # What calls ask for is read once: each look at a model of pydantic's takes as long as ten at an attribute.
        self.name, self.kind, self.speculative = config.name, config.kind, config.speculative
        self.slots, self.window, self.revision = config.slots, config.window, config.revision
        self.served_model = config.served_model
        self._alone_seconds, self._growth = config.step_seconds, config.step_growth  # of a step
        self._drafter, self._longest = config.drafter, config.max_model_len
        self.replicas = replicas
        self.authorization = f"Bearer {key}".encode() if key else None
        self.enabled = not config.disabled
        self.load_factor = 1.0  # observed step time ÷ the configured one at that load
        self.ttft_seconds = config.ttft_seconds
        self.verdict = FREE  # of the guards, by `steering`
        self.tls: ssl.SSLContext | None = None  # for https engines
        self.identity: tuple[object, ...] = ()  # what their connections were made with
        self.turns = Turns()  # calls that wait for a place
        self.ahead = 0.0  # calls sent ahead of free slots, per slot
        self._bound = math.inf  # calls of this process that may be with the engines, at the last look
        self._supports = frozenset(config.supports)
        for replica in replicas:
            replica.pool = self
        self.price(config.price_per_hour)

    def __repr__(self) -> str:
        return f"<Pool {self.name} {self.running}/{self.slots * len(self.replicas)} {self.replicas}>"

    def price(self, usd_per_hour: float) -> None:
        """Take what a replica costs now, in US dollars."""
        self.usd_per_hour = usd_per_hour
        self.price_per_slot_second = usd_per_hour / 3600.0 / self.slots

    @property
    def running(self) -> int:
        """Requests of this process on all replicas."""
        found = 0
        for replica in self.replicas:
            found += replica.running
        return found

    @property
    def load(self) -> int:
        """Requests of all gateways on all replicas, as far as known."""
        found = 0
        for replica in self.replicas:
            found += replica.running + replica.others
        return found

    @property
    def full(self) -> bool:
        """Whether one more call has to wait: so many are with the engines already, or wait before it."""
        return self.turns.waiting > 0 or not self._room() > 0

    def _room(self) -> float:
        return self._bound - self.running - self.turns.granted

    def let_in(self) -> None:
        """Give those who wait their turn, as far as there is room."""
        room = self._room()
        if self.turns.waiting and room > 0:
            self.turns.wake(math.ceil(min(room, self.turns.waiting)))

    def configured_step(self, running_per_replica: float) -> float:
        """Seconds per step by configuration with so many requests running on a replica."""
        if self._growth == 0.0:
            return self._alone_seconds
        busy = min(max(running_per_replica, 1.0), self.slots)
        return self._alone_seconds * (1.0 + self._growth * (busy - 1.0))

    @property
    def step_seconds(self) -> float:
        """Seconds per step at the load of the moment."""
        per_replica = self.load / len(self.replicas) if self.replicas else 0.0
        return self.configured_step(per_replica) * self.load_factor

    def saw_step(self, step_seconds: float, running_per_replica: float) -> None:
        """Learn from one call's mean step time at a load; outliers move the estimate by at most a fifth."""
        ratio = step_seconds / self.configured_step(running_per_replica) / self.load_factor
        self.load_factor *= 1.0 + LEARNING_SHARE * (min(max(ratio, 1 / 3), 3.0) - 1.0)

    def saw_ttft(self, seconds: float) -> None:
        """Learn from one call's time to first token."""
        self.ttft_seconds += LEARNING_SHARE * (seconds - self.ttft_seconds)

    def view(self, now: float) -> PoolView:
        """Return the snapshot that one decision reads."""
        live = running = 0
        for replica in self.replicas:
            live += replica.usable(now)
            running += replica.running + replica.others
        slots = self.slots * live
        verdict, per_replica, queued = self.verdict, 0.0, self.turns.waiting
        self._bound = math.inf
        if live:
            self._bound = slots * (1.0 + self.ahead)
            per_replica = running / live
            if verdict.guard == "replicas":
                verdict = FREE  # it has come back since
        if running > slots:
            queued += running - slots
            running = slots
        why = None if live and self.enabled and verdict.available else self._why_not(live, verdict)
        return PoolView(
            name=self.name,
            speculative=self.speculative,
            window=self.window or 1,
            drafter=self._drafter,
            revision=self.revision,
            supports=self._supports,
            max_model_len=self._longest,
            slots=slots,
            running=running,
            queued=queued,
            live_replicas=live,
            step_seconds=self.configured_step(per_replica) * self.load_factor,
            ttft_seconds=self.ttft_seconds,
            price_per_slot_second=self.price_per_slot_second,
            available=why is None,
            why_unavailable=why,
            step_growth=self._growth,
            guard=verdict.guard,
            belief=verdict.belief,
        )

    def _why_not(self, live: int, verdict: Verdict) -> str:
        """Say what keeps calls away."""
        if not self.enabled:
            return "switched off"
        return verdict.reason if live else "no live replica"

    def choose(
        self, now: float, chance: Callable[[], float], avoid: Sequence[Replica] = (), prefer: str = ""
    ) -> Replica | None:
        """Return the less busy of two usable replicas drawn by chance, none of those to avoid.

        The replica that is preferred, by name, goes before as long as it has a free slot. None when none is usable.
        """
        if len(self.replicas) == 1 and not avoid:
            return self.replicas[0] if self.replicas[0].usable(now) else None
        usable = [replica for replica in self.replicas if replica.usable(now) and replica not in avoid]
        for replica in usable if prefer else ():
            if replica.name == prefer and replica.running < self.slots:
                return replica
        if len(usable) < 2:
            return usable[0] if usable else None
        first = usable.pop(int(chance() * len(usable)))
        second = usable[int(chance() * len(usable))]
        return first if first.running + first.others <= second.running + second.others else second


class Pools:
    """All pools by name, built from the configuration; a reload keeps the state of replicas that stay."""

    __slots__ = ("_by_name", "_of_model")

    def __init__(self, config: Config, env: Mapping[str, str]) -> None:
        self._by_name: dict[str, Pool] = {}
        self._of_model: dict[str, tuple[Pool, ...]] = {}
        self.apply(config, env)

    def __getitem__(self, name: str) -> Pool:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def known(self, names: Iterable[str]) -> list[Pool]:
        """Return the pools of these names; a reload may have removed some since they were named."""
        by_name = self._by_name
        return [by_name[name] for name in names if name in by_name]

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._by_name.values())

    def of_model(self, model: str) -> tuple[Pool, ...]:
        """Return the pools that serve a configured model."""
        return self._of_model[model]

    def view(self, model: str, now: float) -> list[PoolView]:
        """Return the snapshots of a model's pools."""
        return [pool.view(now) for pool in self._of_model[model]]

    def apply(self, config: Config, env: Mapping[str, str]) -> None:
        """Take over a configuration: pools and replicas that stay keep their connections and state, others are retired.

        A pool that operators have switched off or on stays so, unless the configuration changes its mind about it.
        """
        before, limits = self._by_name, config.limits
        kept = {
            (pool.name, replica.url, pool.identity): replica for pool in before.values() for replica in pool.replicas
        }
        after: dict[str, Pool] = {}
        for settings in config.pools:
            replicas = []
            tls, identity = engine_context(settings), identity_of(settings)
            for index, spec in enumerate(settings.replicas):
                replica = kept.pop((settings.name, spec.url, identity), None)
                replica = replica or Replica("", spec.url, http1.Client(spec.url, tls=tls))
                replica.name = f"{settings.name}-{index}"
                replica.client.limit(connect_seconds=limits.connect_seconds, buffer_bytes=limits.buffer_bytes)
                replicas.append(replica)
            pool = Pool(settings, replicas, env.get(settings.key_env) if settings.key_env else None)
            pool.tls, pool.identity = tls, identity
            old = before.get(settings.name)
            if old is not None and old.config.disabled == settings.disabled:
                pool.enabled = old.enabled
            if old is not None and old.config.revision == settings.revision:
                pool.load_factor, pool.ttft_seconds = old.load_factor, old.ttft_seconds
            pool.ahead = limits.queue_ahead
            if old is not None:
                pool.turns = old.turns
            after[settings.name] = pool
        self._by_name = after
        self._of_model = {
            model.name: tuple(pool for pool in after.values() if pool.config.model == model.name)
            for model in config.models
        }
        for gone in before.keys() - after.keys():
            before[gone].turns.wake(before[gone].turns.waiting)  # they look elsewhere
        for replica in kept.values():
            replica.client.retire()  # running streams end by themselves

    def switch(self, name: str, *, enabled: bool) -> bool:
        """Switch a pool on or off; return whether there is such a pool."""
        if name not in self:
            return False
        self[name].enabled = enabled
        return True

    def price(self, config: Config, day: date) -> None:
        """Take the prices that hold on a UTC day."""
        for pool in self:
            pool.price(config.usd_per_hour(pool.config, day))

    def close(self) -> None:
        """Close every connection."""
        for pool in self._by_name.values():
            for replica in pool.replicas:
                replica.client.close()
