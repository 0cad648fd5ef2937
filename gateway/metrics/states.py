"""Every metric that tells how things are now: set by whoever knows, or read when it is asked for."""

from __future__ import annotations

from typing import Final

from prometheus_client import Gauge, Info
from prometheus_client.registry import CollectorRegistry

from gateway.metrics.tally import Counters

RELOADS: Final = ("ok", "refused")


class States:
    """The gauges of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare them; long because each metric stands here with its name, meaning and labels side by side."""

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"draftlane_{name}", text, labels, registry=registry)

        self.inflight = gauge("inflight", "Calls that are under way.")
        self.running = gauge("pool_running", "Calls that hold a slot or wait for one, by pool.", "pool")
        self.waiting = gauge("pool_waiting", "Calls that wait at the gateway for a place at a pool.", "pool")
        self.slots = gauge("pool_slots", "Slots of all replicas of a pool.", "pool")
        self.replicas = gauge("replicas", "Engines by state.", "pool", "state")
        self.step_seconds = gauge("step_seconds", "Time of one verification step at the load now.", "pool")
        self.price = gauge("pool_price_usd_per_hour", "US dollars per replica and hour, as configured.", "pool")
        self.capacity = Counters(
            registry,
            "draftlane_pool_capacity_usd_total",
            "US dollars that all replicas of a pool cost while this process ran, busy or idle.",
            ("pool",),
        )
        self.pool_info = gauge("pool_info", "1 for the revision of a pool that is served now.", *_POOL)
        self.threshold = gauge("threshold", "Score from which speculation is expected to win now.", "model", "pool")
        self.break_even = gauge(
            "break_even_acceptance_length",
            "Tokens per step at which speculation and baseline tie now.",
            "model",
            "pool",
        )
        self.curve = gauge(
            "curve_acceptance_length",
            "Tokens per step that are expected at temperature 0, by decile of the score: what was learned.",
            "pool",
            "decile",
        )
        self.guard = gauge("guard_active", "1 while a guard keeps calls from a pool.", "guard", "pool")
        self.scrape_age = gauge("scrape_age_seconds", "Age of what an engine last told.", "pool", "replica")
        self.degraded = gauge(
            "books_degraded", "1 while a part of the books (store, journal, loop, limits, observations) fails.", "part"
        )
        self.kept = Counters(
            registry, "draftlane_observations_kept_total", "Observations of traffic that were written to files.", ()
        )
        self.dropped = Counters(
            registry,
            "draftlane_observations_dropped_total",
            "Observations of traffic that were not written, or whose file was removed, by why.",
            ("reason",),
        )
        self.pending = gauge("ledger_pending_batches", "Batches of the ledger that the Store does not have yet.")
        self.journal = gauge("ledger_journal_bytes", "Size of the journals that this process answers for.")
        self.settled_at = gauge("ledger_last_success_timestamp_seconds", "When the Store last had everything.")
        self.limit = gauge(
            "limit_used_ratio", "Used share of a limit or budget, of all gateways together.", "tenant", "limit"
        )
        self.budget = gauge("budget_usd", "US dollars that a tenant may spend per day or month.", "tenant", "period")
        self.budget_spent = gauge(
            "budget_spent_usd", "US dollars that a tenant has spent of its budget so far.", "tenant", "period"
        )
        self.build = Info("draftlane_build", "The version that runs.", registry=registry)
        self.config = Info("draftlane_config", "The configuration in force.", registry=registry)
        self.reloads = Counters(
            registry, "draftlane_config_reloads_total", "Configurations read again, by result.", ("result",)
        )
        for result in RELOADS:
            self.reloads.row(result)

    def forget(self) -> None:
        """Drop what belongs to pools and tenants that a new configuration may no longer have."""
        for each in (
            self.running,
            self.waiting,
            self.slots,
            self.replicas,
            self.step_seconds,
            self.price,
            self.pool_info,
            self.threshold,
            self.break_even,
            self.curve,
            self.guard,
            self.scrape_age,
            self.limit,
            self.budget,
            self.budget_spent,
        ):
            each.clear()


_POOL: Final = ("pool", "model", "kind", "revision")
