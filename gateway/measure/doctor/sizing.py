"""How many replicas, chips and dollars a traffic needs under each routing policy. Pure: a description in, a plan out.

A call holds a slot for ttft + L·s/m seconds, where the step s grows with the calls that run beside it and m is the tokens per
step. Calls come at random (Poisson) and wait for a slot as Erlang's C formula says, so a pool is as large as it must be for
no more than `wait_share` of the calls at the busiest hour to wait longer than `wait_seconds`. Pools do not share slots: two
small ones need more of them than one large one, and the plan says so rather than hide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.section import Amount, Count, Seconds, Section, Share, Some, Text

HOURS_PER_MONTH: Final = 730.0  # a twelfth of a year
MAX_REPLICAS: Final = 10_000
Kind = Literal["baseline", "speculative"]
PolicyName = Literal["baseline", "speculative", "draftlane"]
Length = Annotated[float, Field(ge=1)]


class Traffic(Section):
    """What comes in: the mean rate, how far the busiest hour is above it, and how much of it is predictable."""

    requests_per_second: Seconds
    peak: Length = 2.0
    prompt_tokens: Some = 64
    output_tokens: Some = 600
    predictable_share: Share = 0.5
    # The study's: 15 ms a token at 105 ms a step when predictable, 45 ms a token otherwise.
    predictable_tokens_per_step: Length = 7.0
    open_tokens_per_step: Length = 2.33
    wait_seconds: Amount = 1.0
    wait_share: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Pool(Section):
    """How an engine of one kind runs, measured at the traffic's prompt length."""

    step_seconds: Seconds
    step_growth: Amount = 0.0
    ttft_seconds: Amount = 0.1
    slots: Some = 4
    spare_replicas: Count = 0  # beyond what the traffic needs, for one that fails


class Hardware(Section):
    """What a replica runs on."""

    instance: Text = "trn2.48xlarge"
    instance_price_per_hour: Seconds | None = None  # None: the known one
    tensor_parallel: Some = 32
    logical_core: Annotated[int, Field(ge=1, le=2)] = 2  # physical cores that make one logical core
    max_model_len: Some = 1024


class Models(Section):
    """Which models a replica holds: known names, or folders with a config.json."""

    target: Text = "Qwen3-32B"
    draft: Text = "Qwen3-1.7B"
    window: Some = 7
    bytes_per_weight: Seconds = 2.0
    bytes_per_kv: Seconds = 2.0


class Description(Section):
    """The whole description, as a TOML file says it; the defaults of pools, hardware and models are the study's."""

    traffic: Traffic
    baseline: Pool = Pool(step_seconds=0.045)
    speculative: Pool = Pool(step_seconds=0.105)
    hardware: Hardware = Hardware()
    models: Models = Models()
    cost_weight: Share = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """One sort of calls that go to a pool together: how many a second at the busiest hour, and their tokens per step."""

    name: Literal["predictable", "open"]
    rate: float
    tokens_per_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A pool as large as its calls need; `seconds` is a call's mean time in a slot, `waiting` the share that waits too long."""

    kind: Kind
    sorts: tuple[str, ...]
    replicas: int
    spare: int
    slots: int
    busy: float
    seconds: float
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one policy needs. `cost_per_month` counts replicas at their share of an instance, `billed` whole instances."""

    policy: PolicyName
    pools: tuple[Sized, ...]
    seconds: float
    replicas: int
    chips: int
    instances: int
    cost_per_month: float
    billed_per_month: float
    cost_per_million_tokens: float


class TooMuch(Exception):
    """No number of replicas that anybody would rent carries this traffic."""


def erlang_c(slots: int, load: float) -> float:
    """Return the probability that a call finds all `slots` taken, at a load of so many slots on average."""
    if load >= slots:
        return 1.0
    blocked = 1.0  # Erlang B by its recursion, which neither overflows nor needs factorials
    for taken in range(1, slots + 1):
        blocked = load * blocked / (taken + load * blocked)
    return blocked / (1.0 - load / slots * (1.0 - blocked))


def seconds_of(pool: Pool, sort: Sort, output_tokens: float, running: float, kind: Kind) -> float:
    """Return a call's time in a slot when `running` calls run on its replica, itself included."""
    step = pool.step_seconds * (1.0 + pool.step_growth * max(0.0, running - 1.0))
    tokens_per_step = sort.tokens_per_step if kind == "speculative" else 1.0
    return pool.ttft_seconds + output_tokens * step / tokens_per_step


def size(pool: Pool, sorts: Sequence[Sort], traffic: Traffic, kind: Kind) -> Sized:
    """Return the smallest pool that carries the sorts.

    Raises:
        TooMuch: not even the largest does.
    """
    rate = sum(sort.rate for sort in sorts)
    alone = sum(sort.rate * seconds_of(pool, sort, traffic.output_tokens, 1.0, kind) for sort in sorts)
    for replicas in range(max(1, math.ceil(alone / pool.slots)), MAX_REPLICAS + 1):
        slots = replicas * pool.slots
        seconds = _steady_seconds(pool, sorts, traffic, kind, replicas)
        load = rate * seconds
        if load >= slots:
            continue
        waiting = erlang_c(slots, load) * math.exp(-(slots - load) / seconds * traffic.wait_seconds)
        if waiting <= traffic.wait_share:
            return Sized(
                kind=kind,
                sorts=tuple(sort.name for sort in sorts),
                replicas=replicas + pool.spare_replicas,
                spare=pool.spare_replicas,
                slots=slots,
                busy=load / slots,
                seconds=seconds,
                waiting=waiting,
            )
    raise TooMuch(f"more than {MAX_REPLICAS} {kind} replicas would be needed")


def _steady_seconds(pool: Pool, sorts: Sequence[Sort], traffic: Traffic, kind: Kind, replicas: int) -> float:
    """Return the mean time in a slot once step time and running calls agree; each makes the other grow."""
    rate = sum(sort.rate for sort in sorts)
    running = 1.0
    for _ in range(100):
        seconds = sum(sort.rate * seconds_of(pool, sort, traffic.output_tokens, running, kind) for sort in sorts) / rate
        settled = min(float(pool.slots), max(1.0, rate * seconds / replicas))
        if abs(settled - running) < 1e-9:
            break
        running = settled
    return seconds


def sorts_of(traffic: Traffic) -> tuple[Sort, ...]:
    """Return the sorts of calls at the busiest hour; one that does not occur is left out."""
    rate = traffic.requests_per_second * traffic.peak
    both = (
        Sort(
            name="predictable",
            rate=rate * traffic.predictable_share,
            tokens_per_step=traffic.predictable_tokens_per_step,
        ),
        Sort(name="open", rate=rate * (1.0 - traffic.predictable_share), tokens_per_step=traffic.open_tokens_per_step),
    )
    return tuple(sort for sort in both if sort.rate > 0.0)


def break_even(described: Description) -> float:
    """Return the tokens per step at which a call takes as long on either pool, at full slots."""
    base, fast = described.baseline, described.speculative
    tokens = described.traffic.output_tokens
    plain = Sort(name="open", rate=1.0, tokens_per_step=1.0)
    left = seconds_of(base, plain, tokens, base.slots, "baseline") - fast.ttft_seconds
    step = fast.step_seconds * (1.0 + fast.step_growth * (fast.slots - 1))
    return math.inf if left <= 0.0 else tokens * step / left


def prefers(described: Description, sort: Sort) -> Kind:
    """Return the kind of pool that routing gives this sort, by time and money of a call as `cost_weight` mixes them.

    A slot costs its replica's price over its slots; replicas cost alike, so only the number of slots differs.
    """
    weight, tokens = described.cost_weight, described.traffic.output_tokens
    objective = {}
    for kind, pool in (("baseline", described.baseline), ("speculative", described.speculative)):
        seconds = seconds_of(pool, sort, tokens, pool.slots, kind)  # type: ignore[arg-type]
        objective[kind] = (1.0 - weight) * seconds + weight * seconds * described.baseline.slots / pool.slots
    return "speculative" if objective["speculative"] < objective["baseline"] else "baseline"


def assigned(described: Description, policy: PolicyName) -> dict[Kind, list[Sort]]:
    """Return which sorts go to which pool under a policy."""
    found: dict[Kind, list[Sort]] = {}
    for sort in sorts_of(described.traffic):
        kind = prefers(described, sort) if policy == "draftlane" else policy
        found.setdefault(kind, []).append(sort)
    return found


def plan(described: Description, policy: PolicyName, *, chips: int, chips_per_instance: int, price: float) -> Plan:
    """Return what a policy needs; `chips` is what a replica takes, `price` US dollars per instance-hour.

    Raises:
        TooMuch: the traffic is beyond any fleet.
    """
    settings = {"baseline": described.baseline, "speculative": described.speculative}
    pools = tuple(
        size(settings[kind], sorts, described.traffic, kind) for kind, sorts in assigned(described, policy).items()
    )
    replicas = sum(pool.replicas for pool in pools)
    per_instance = chips_per_instance // chips
    instances = -(-replicas // per_instance)
    monthly = replicas * price / per_instance * HOURS_PER_MONTH
    traffic = described.traffic
    tokens = traffic.requests_per_second * traffic.output_tokens * 3600.0 * HOURS_PER_MONTH
    rates = {kind: sum(sort.rate for sort in sorts) for kind, sorts in assigned(described, policy).items()}
    return Plan(
        policy=policy,
        pools=pools,
        seconds=sum(pool.seconds * rates[pool.kind] for pool in pools) / sum(rates.values()),
        replicas=replicas,
        chips=replicas * chips,
        instances=instances,
        cost_per_month=monthly,
        billed_per_month=instances * price * HOURS_PER_MONTH,
        cost_per_million_tokens=monthly / tokens * 1e6,
    )
