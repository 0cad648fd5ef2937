"""Pools: which replica a call gets, what a decision reads of them, and what survives a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
from harness import config_for
from hypothesis import given
from hypothesis import strategies as st

from gateway.breaker import FAILURES_TO_OPEN, FIRST_WAIT
from gateway.config import Config
from gateway.pools import REPLICA_STATES, Lease, Pool, Pools, Replica

A, B, C = "http://127.0.0.1:1001", "http://127.0.0.1:1002", "http://127.0.0.1:1003"
OTHER = "http://127.0.0.1:1009"


def config(*urls: str, **settings: Any) -> Config:
    """Return a configuration of a speculative pool with these replicas, and a baseline pool beside it."""
    limits = settings.pop("limits", {})
    return config_for({"spec": urls, "base": [OTHER]}, pools={"spec": settings}, limits=limits)


def pools_of(*urls: str, **settings: Any) -> Pools:
    """Return the pools of such a configuration."""
    return Pools(config(*urls, **settings), {})


def pool_of(*urls: str, **settings: Any) -> Pool:
    """Return its speculative pool."""
    return pools_of(*urls, **settings)["spec"]


def always(*chances: float) -> Callable[[], float]:
    """Return a chance that gives these numbers in turn."""
    left: Iterator[float] = iter(chances)
    return lambda: next(left)


def break_open(replica: Replica, now: float = 0.0) -> None:
    """Let a replica fail until its breaker opens."""
    for _ in range(FAILURES_TO_OPEN):
        replica.breaker.failure(now, 1.0)


# Leases


def test_a_lease_counts_until_it_is_released_and_no_longer() -> None:
    """Running is exactly the leases that are out; giving one back twice counts once."""
    pool = pool_of(A, B)
    replica = pool.replicas[0]
    first, second = Lease(replica, 0.0), Lease(replica, 0.0)
    assert (replica.running, pool.running) == (2, 2)
    first.release()
    first.release()
    assert replica.running == 1
    second.release()

    assert pool.running == 0


def test_only_the_probe_s_own_end_frees_the_next_probe() -> None:
    """A call from before the outage that ends during the probe does not let a second probe out."""
    replica = pool_of(A).replicas[0]
    before = Lease(replica, 0.0)
    break_open(replica)
    probe = Lease(replica, FIRST_WAIT)
    before.release()
    assert not replica.usable(FIRST_WAIT)
    probe.release()

    assert replica.usable(FIRST_WAIT)


# Choosing a replica


def test_the_less_busy_of_two_is_chosen() -> None:
    """Two replicas are drawn by chance, and the one with fewer requests gets the call."""
    pool = pool_of(A, B, C)
    Lease(pool.replicas[0], 0.0)

    assert pool.choose(0.0, always(0.0, 0.0)) is pool.replicas[1]
    assert pool.choose(0.0, always(0.0, 0.99)) is pool.replicas[2]
    assert pool.choose(0.0, always(0.99, 0.0)) is pool.replicas[2]


def test_other_gateways_calls_count_as_load() -> None:
    """What the engine itself told of its load at the last scrape is part of how busy it is."""
    pool = pool_of(A, B)
    pool.replicas[0].others = 3
    Lease(pool.replicas[1], 0.0)

    assert pool.choose(0.0, always(0.0, 0.0)) is pool.replicas[1]


def test_replicas_to_avoid_are_not_chosen() -> None:
    """A call that has tried a replica gets another, or none."""
    pool = pool_of(A, B)
    first, second = pool.replicas

    assert pool.choose(0.0, always(), avoid=[first]) is second
    assert pool.choose(0.0, always(), avoid=[first, second]) is None


def test_the_replica_that_holds_the_prefix_is_preferred_while_it_has_room() -> None:
    """A conversation goes on where its cache is, as long as a slot is free there."""
    pool = pool_of(A, B, slots=2)
    second = pool.replicas[1]
    Lease(second, 0.0)
    assert pool.choose(0.0, always(0.0, 0.0), prefer="spec-1") is second
    Lease(second, 0.0)

    assert pool.choose(0.0, always(0.0, 0.0), prefer="spec-1") is pool.replicas[0]
    assert pool.choose(0.0, always(0.0, 0.0), prefer="gone-7") is pool.replicas[0]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 5)), min_size=1, max_size=4),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_the_choice_is_usable_and_never_the_busiest(
    states: list[tuple[bool, bool, int]], one: float, two: float
) -> None:
    """Whatever the chances, an unusable replica is never chosen, nor the one busiest of all when two are usable."""
    pool = pool_of(*[f"http://127.0.0.1:{2000 + place}" for place in range(len(states))])
    for replica, (healthy, cooling, running) in zip(pool.replicas, states, strict=True):
        replica.healthy, replica.cool_until, replica.running = healthy, 5.0 if cooling else 0.0, running
    usable = [replica for replica in pool.replicas if replica.usable(1.0)]
    chosen = pool.choose(1.0, always(one, two))

    assert (chosen is None) == (not usable)
    if chosen is not None:
        assert chosen in usable
        if len(usable) > 1:
            others = [replica.running for replica in usable if replica is not chosen]
            assert chosen.running <= max(others)


# States


def test_each_state_has_its_word() -> None:
    """Live, cooling, open, half-open and unhealthy exclude each other, and only some take calls."""
    replica = pool_of(A).replicas[0]
    seen = [(replica.state(0.0), replica.usable(0.0))]
    replica.cool_until = 2.0
    seen.append((replica.state(1.0), replica.usable(1.0)))
    replica.cool_until = 0.0
    break_open(replica)
    seen.append((replica.state(0.5), replica.usable(0.5)))
    Lease(replica, FIRST_WAIT)
    seen.append((replica.state(1.0), replica.usable(1.0)))
    replica.healthy = False
    seen.append((replica.state(1.0), replica.usable(1.0)))

    assert seen == [("live", True), ("cooling", False), ("open", False), ("half-open", False), ("unhealthy", False)]
    assert {state for state, _ in seen} == set(REPLICA_STATES)
    assert repr(replica) == "<Replica spec-0 running=1 half-open unhealthy>"


# Views


def test_a_view_tells_load_and_price() -> None:
    """Slots and requests of all live replicas, the step time at that load, and what a slot costs by the second."""
    pool = pool_of(A, B, slots=4, price_per_hour=14.4, step_seconds=0.1, step_growth=0.5, ttft_seconds=0.2)
    for place in (0, 0, 0, 1):
        Lease(pool.replicas[place], 0.0)
    view = pool.view(0.0)

    assert (view.name, view.speculative, view.window, view.live_replicas) == ("spec", True, 7, 2)
    assert (view.slots, view.running, view.queued) == (8, 4, 0)
    assert view.step_seconds == pytest.approx(0.15)
    assert view.ttft_seconds == pytest.approx(0.2)
    assert view.price_per_slot_second == pytest.approx(0.001)
    assert view.available
    assert "min_p" not in view.supports
    assert "sampling" in view.supports


def test_requests_beyond_the_slots_are_queued() -> None:
    """More requests than slots wait inside of the engine."""
    pool = pool_of(A, slots=2)
    for _ in range(5):
        Lease(pool.replicas[0], 0.0)
    view = pool.view(0.0)

    assert (view.slots, view.running, view.queued) == (2, 2, 3)


def test_why_a_pool_is_unavailable() -> None:
    """A switch, or the lack of a live replica, takes a pool out, and the view says which."""
    pool = pool_of(A)
    pool.enabled = False
    assert pool.view(0.0).why_unavailable == "switched off"
    pool.enabled = True
    pool.replicas[0].healthy = False
    view = pool.view(0.0)

    assert (view.available, view.why_unavailable, view.slots) == (False, "no live replica", 0)


def test_a_disabled_pool_begins_switched_off() -> None:
    """The kill switch of the configuration holds from the first call on."""
    assert not pool_of(A, disabled=True).view(0.0).available


# Learning


def test_step_time_follows_what_is_observed() -> None:
    """Calls that ran slower than configured raise the step time, whatever the load they ran at."""
    pool = pool_of(A, step_seconds=0.1, step_growth=0.5)
    for _ in range(100):
        pool.saw_step(0.3, 2)

    assert pool.load_factor == pytest.approx(2.0, rel=0.01)
    assert pool.view(0.0).step_seconds == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize(("seconds", "factor"), [(1000.0, 1.2), (0.000001, 1 - 0.1 * 2 / 3)])
def test_one_outlier_moves_little(seconds: float, factor: float) -> None:
    """A single wild value moves the estimate by at most a fifth."""
    pool = pool_of(A, step_seconds=0.1)
    pool.saw_step(seconds, 1)

    assert pool.load_factor == pytest.approx(factor)


def test_time_to_first_token_follows() -> None:
    """The estimate moves a tenth of the way with each call."""
    pool = pool_of(A, ttft_seconds=0.1)
    pool.saw_ttft(1.1)

    assert pool.ttft_seconds == pytest.approx(0.2)


# Reload


def test_replicas_that_stay_keep_their_state() -> None:
    """Leases, breaker, cooling and connections outlive a reload, under the names of their new places."""
    pools = pools_of(A, B)
    first, second = pools["spec"].replicas
    lease = Lease(second, 0.0)
    break_open(second)
    pools.apply(config(B, C), {})
    kept, new = pools["spec"].replicas

    assert kept is second
    assert (kept.name, new.name) == ("spec-0", "spec-1")
    assert (kept.running, kept.breaker.state) == (1, "open")
    assert new.url == C
    assert first not in pools["spec"].replicas
    lease.release()
    assert pools["spec"].running == 0


def test_limits_reach_the_clients_that_stay() -> None:
    """A reloaded bound or time holds for the connections of replicas that were there before."""
    pools = pools_of(A)
    client = pools["spec"].replicas[0].client
    pools.apply(config(A, limits={"buffer_bytes": 4096, "connect_seconds": 9.0}), {})

    assert pools["spec"].replicas[0].client is client
    assert (client.buffer_bytes, client._connect_seconds) == (4096, 9.0)


def test_a_replica_that_changes_its_pool_begins_anew() -> None:
    """State belongs to a replica in its pool."""
    pools = pools_of(A, B)
    moved = pools["spec"].replicas[1]
    pools.apply(config_for({"spec": [A], "base": [B]}), {})

    assert pools["base"].replicas[0] is not moved


def test_what_was_learned_stays_with_the_revision() -> None:
    """Step and first-token times survive a reload, and are forgotten when the engine's revision changes."""
    pools = pools_of(A)
    pools["spec"].saw_step(1.0, 1)
    pools["spec"].saw_ttft(5.0)
    learned = pools["spec"].load_factor, pools["spec"].ttft_seconds
    pools.apply(config(A, B, slots=8), {})
    assert (pools["spec"].load_factor, pools["spec"].ttft_seconds) == learned
    pools.apply(config(A, B, engine="vllm-2"), {})

    assert (pools["spec"].load_factor, pools["spec"].ttft_seconds) == (1.0, 0.1)


def test_an_operator_s_switch_survives_a_reload() -> None:
    """A pool switched off by hand is not switched on by an unrelated reload, only by one that changes its own setting."""
    pools = pools_of(A)
    pools["spec"].enabled = False
    pools.apply(config(A, slots=8), {})
    assert not pools["spec"].enabled
    pools.apply(config(A, disabled=True), {})
    assert not pools["spec"].enabled
    pools.apply(config(A), {})

    assert pools["spec"].enabled


def test_pools_by_name_and_by_model() -> None:
    """Pools are found by name, and all of a model together, before and after a reload."""
    pools = pools_of(A)

    assert [pool.name for pool in pools] == ["spec", "base"]
    assert [pool.name for pool in pools.of_model("demo")] == ["spec", "base"]
    assert [view.name for view in pools.view("demo", 0.0)] == ["spec", "base"]
    assert "spec" in pools
    pools.apply(config_for({"only": [A]}), {})
    assert "spec" not in pools
    assert [pool.name for pool in pools.of_model("demo")] == ["only"]


def test_a_pool_s_credential_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is looked up by the name that the configuration gives, and no pool has another's."""
    monkeypatch.setenv("ENGINE_KEY", "k")
    settings = config_for({"spec": [A], "base": [B]}, pools={"spec": {"key_env": "ENGINE_KEY"}})
    pools = Pools(settings, {"ENGINE_KEY": "k"})

    assert pools["spec"].authorization == b"Bearer k"
    assert pools["base"].authorization is None


def test_a_pool_takes_the_price_of_the_day() -> None:
    """From the day on which a price begins to hold, calls pay that one."""
    dated = config(A, price_per_hour=14.4, slots=4, price=[{"from": date(2027, 1, 1), "per_hour": 28.8}])
    pools = Pools(dated, {})
    for day, price in ((date(2026, 12, 31), 0.001), (date(2027, 1, 1), 0.002)):
        pools.price(dated, day)
        assert pools["spec"].price_per_slot_second == pytest.approx(price)
        assert pools["spec"].view(0.0).price_per_slot_second == pytest.approx(price)
