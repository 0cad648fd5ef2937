"""What the gateway is doing, as plain dictionaries for people and their tools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.ledger import Settlement
    from gateway.pipeline import Live
    from gateway.pools import Pool
    from gateway.scrape import Scrape
    from gateway.tenants import Tenant


def model_cards(live: Live, tenant: Tenant, *, created: int) -> list[dict[str, Any]]:
    """Return OpenAI's model objects for what a tenant may use, aliases included."""
    return [
        {"id": name, "object": "model", "created": created, "owned_by": "draftlane", "root": model.name}
        for model in live.config.models
        if tenant.may_use(model.name)
        for name in (model.name, *model.aliases)
    ]


def snapshot(live: Live) -> dict[str, Any]:
    """Return the configuration, artefact and pools as they are now."""
    now = live.clock()
    return {
        "config": live.config.digest,
        "artefact": live.scorer.version,
        "pools": [_pool(live, pool, now) for pool in live.pools],
    }


def engines(scrape: Scrape, live: Live) -> dict[str, Any]:
    """Return what the engines themselves told of late, by pool: a cross-check of what calls have shown."""
    now = live.clock()
    told: dict[str, Any] = {}
    for pool in live.pools:
        recent = scrape.recent(pool)
        ages = [age for replica in pool.replicas if (age := scrape.of(replica).age(now)) is not None]
        told[pool.name] = {
            "acceptance_by_counters": recent.by_counters,
            "acceptance_by_histograms": recent.by_histograms,
            "step_seconds": recent.mean_step_seconds,
            "oldest_reading_seconds": max(ages, default=None),
        }
    return told


def settlement(books: Settlement) -> dict[str, Any]:
    """Return how the books are doing."""
    found = books.state()
    return {
        "healthy": found.healthy,
        "degraded": found.degraded,
        "pending": found.pending,
        "last_success": found.last_success,
        "journal_bytes": found.journal_bytes,
    }


def _pool(live: Live, pool: Pool, now: float) -> dict[str, Any]:
    view = pool.view(now)
    published = live.thresholds.published.get(pool.name)
    points = live.curves.points(view, 0.0, time.time()) if view.speculative else ()
    return {
        "name": pool.name,
        "model": pool.config.model,
        "kind": pool.kind,
        "revision": pool.revision,
        "enabled": pool.enabled,
        "available": view.available,
        "why_unavailable": view.why_unavailable,
        "guard": pool.verdict.guard,
        "guard_reason": pool.verdict.reason,
        "belief": view.belief,
        "break_even": published.break_even if published else None,
        "threshold": published.threshold if published else None,
        "running": pool.running,
        "slots": view.slots,
        "step_seconds": view.step_seconds,
        "ttft_seconds": view.ttft_seconds,
        "price_per_slot_second": view.price_per_slot_second,
        "replicas": [
            {"name": replica.name, "url": replica.url, "state": replica.state(now), "running": replica.running}
            for replica in pool.replicas
        ],
        "curve": [
            {"score": point.score, "acceptance_length": point.mean, "samples": point.samples} for point in points
        ],
    }
