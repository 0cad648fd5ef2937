"""Calls that no score could move are not scored: a tenant of policy baseline pays what a plain relay would cost."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from harness import KEY, config_for, key_digest, serving

from gateway.engine import EngineSettings, serve
from gateway.errors import BadRequest, Unavailable
from gateway.routing import Needs, PoolView, plain

AUTH = {"authorization": f"Bearer {KEY}"}
NEEDS = Needs(frozenset(), 10, 10, 0.0)


def view(name: str, **changes: Any) -> PoolView:
    """Return a pool with free slots; its name says its kind."""
    facts: dict[str, Any] = {
        "name": name,
        "speculative": name.startswith("spec"),
        "window": 7,
        "drafter": None,
        "revision": name,
        "supports": frozenset({"sampling"}),
        "max_model_len": 100,
        "slots": 4,
        "running": 0,
        "queued": 0,
        "live_replicas": 1,
        "step_seconds": 0.045,
        "ttft_seconds": 0.1,
        "price_per_slot_second": 0.001,
    }
    return PoolView(**{**facts, **changes})


def test_the_emptiest_baseline_pool_comes_first() -> None:
    """Baseline pools are tried by how full they are, speculative ones only after all of them."""
    pools = [view("spec"), view("base-full", running=4, queued=2), view("base-free", running=1)]

    chosen = plain("demo", NEEDS, pools)

    assert chosen.pools == ("base-free", "base-full", "spec")
    assert (chosen.reason, chosen.score, chosen.expected) == ("policy", None, None)


def test_constraints_and_failures_hold_as_ever() -> None:
    """What no pool can serve is the client's error, and without a live pool there is nothing to plan."""
    down = view("base", available=False, why_unavailable="no live replica")

    assert plain("demo", NEEDS, [view("spec"), down]).reason == "pool_down"
    with pytest.raises(Unavailable, match="no live replica"):
        plain("demo", NEEDS, [down])
    with pytest.raises(BadRequest, match="logprobs"):
        plain("demo", Needs(frozenset({"logprobs"}), 10, 10, 0.0), [view("base")])


async def test_a_tenant_of_policy_baseline_is_not_scored() -> None:
    """Its answers name pool and reason but no score, and its record has none, unless the client asks for speculation."""
    async with (
        serve(EngineSettings(kind="speculative", speed=400.0)) as fast,
        serve(EngineSettings(kind="baseline", speed=400.0)) as slow,
    ):
        tenant = {"name": "plain", "key_sha256": [key_digest(KEY)], "policy": "baseline"}
        config = config_for({"spec": [fast.url], "base": [slow.url]}, tenant=[tenant])
        async with serving(config) as running, httpx.AsyncClient(base_url=running.url, headers=AUTH) as client:
            body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Count to ten."}]}
            usual = await client.post("/v1/chat/completions", json=body)
            asked = await client.post("/v1/chat/completions", json=body, headers={"x-draftlane-route": "speculative"})
            first, second = await running.settled(2)

    assert (usual.headers["x-draftlane-pool"], usual.headers["x-draftlane-reason"]) == ("base", "policy")
    assert "x-draftlane-score" not in usual.headers
    assert (first.score, first.scored, first.counterfactual) == (None, None, {})
    assert asked.headers["x-draftlane-pool"] == "spec"
    assert second.score is not None
