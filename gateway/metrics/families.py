"""Every metric that a finished call moves, by name, labels and buckets. What is set instead is in `states`.

Names and units follow Prometheus' conventions, with the prefix draftlane_; deploy/prometheus/METRICS.md lists them all beside
their counterparts in OpenTelemetry's conventions for generative AI. Buckets are finer than those of OpenTelemetry where
speculation decides: between 10 and 50 ms a token.
"""

from __future__ import annotations

from typing import Any, Final

from prometheus_client.registry import CollectorRegistry

from gateway.metrics.tally import Counters, Family, Histograms, Means

# Small answers take a second, a long reasoning trace at 45 ms a token half an hour.
_DURATION: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800)
# Prefill takes about 100 ms; beyond a second it is queueing.
_FIRST_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60, 120)
# Fine between 15 ms, speculation at its best on the study's model, and its plain step of 45 ms.
_PER_TOKEN: Final = (
    0.002,
    0.005,
    0.01,
    0.0125,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.045,
    0.05,
    0.06,
    0.1,
    0.2,
    0.5,
)
# The gateway's own work is tens of microseconds; a huge prompt or a garbage collection shows in milliseconds.
_OVERHEAD: Final = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)
# Break-even lies near 2.33 with a window of 7; a window of 15, the widest that was tried, emits at most 16 a step.
_ACCEPTANCE: Final = (1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 12, 16)
_SCORE: Final = tuple(n / 10 for n in range(1, 11))

_WHO: Final = ("model", "pool", "tenant")


class Families:
    """Every metric that a finished call moves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare them; long because each metric stands here with its name, meaning, labels and buckets side by side."""

        def counters(name: str, text: str, *labels: str) -> Counters:
            return Counters(registry, f"draftlane_{name}", text, labels)

        def histograms(name: str, text: str, *labels: str, bounds: tuple[float, ...]) -> Histograms:
            return Histograms(registry, f"draftlane_{name}", text, labels, bounds=bounds)

        self.requests = counters("requests_total", "Calls that ended.", "endpoint", *_WHO, "outcome", "status")
        self.duration = histograms(
            "request_duration_seconds", "From a call's arrival to its last byte.", *_WHO, bounds=_DURATION
        )
        self.first_token = histograms(
            "time_to_first_token_seconds", "From a call's arrival to its first token.", *_WHO, bounds=_FIRST_TOKEN
        )
        self.per_token = histograms(
            "time_per_output_token_seconds",
            "Mean time between a call's tokens: (duration - time to first token) / (tokens - 1).",
            *_WHO,
            bounds=_PER_TOKEN,
        )
        self.overhead = histograms(
            "overhead_seconds",
            "The gateway's own time in a call, by phase; the total also holds its work for other calls in between.",
            "phase",
            bounds=_OVERHEAD,
        )
        self.queue = histograms(
            "queue_seconds", "Time that calls waited here for a place, of those that waited.", "pool", bounds=_DURATION
        )
        self.tokens = counters("tokens_total", "Tokens read (prompt) and written (completion).", *_WHO, "kind")
        self.slot_seconds = counters("slot_seconds_total", "Time that calls held a slot of an engine.", *_WHO)
        self.cost = counters("cost_usd_total", "US dollars: slot time at the pool's price per slot.", *_WHO)
        self.counterfactual = counters(
            "counterfactual_cost_usd_total",
            "US dollars that the same calls would have cost under another policy.",
            "model",
            "tenant",
            "policy",
        )
        self.regret = counters(
            "regret_usd_total",
            "US dollars that calls cost beyond the estimated cost on the other kind of pool, where that is cheaper.",
            "model",
            "pool",
        )
        self.shadow_check = counters(
            "shadow_pair_cost_usd_total",
            "US dollars of calls that were copied to another pool: as estimated for it, and as paid for the copy.",
            "pool",
            "kind",
        )
        self.zero_cost = counters(
            "zero_cost_requests_total", "Complete answers that were charged nothing, by why.", "pool", "reason"
        )
        self.score = histograms("score", "Predictability of calls, 0 to 1.", "model", bounds=_SCORE)
        self.decisions = counters("decisions_total", "Calls by where they went and why.", "model", "pool", "reason")
        self.shadow = counters("shadow_decisions_total", "Calls by where they would have gone.", "model", "pool")
        self.exploration = counters("exploration_total", "Calls that went elsewhere to learn.", "pool")
        self.refusals = counters(
            "refusals_total", "Calls that the gateway refused, by the error's code.", "tenant", "code"
        )
        self.retries = counters("retries_total", "Further attempts of calls, by the pool that ended them.", "pool")
        self.resumed = counters(
            "resumed_streams_total",
            "Streams that broke off and were gone on with: by the pool that answered, and the one that had broken off.",
            "pool",
            "from",
        )
        self.acceptance = histograms(
            "acceptance_length",
            "Tokens per verification step of speculated calls, as predicted and as observed.",
            "pool",
            "kind",
            bounds=_ACCEPTANCE,
        )
        self.acceptance_by_score = Means(
            registry,
            "draftlane_acceptance_length_by_score",
            "Mean tokens per verification step by decile of the score, of calls whose acceptance was observed.",
            ("pool", "decile", "kind"),
        )
        self.control = Means(
            registry,
            "draftlane_control_acceptance_length",
            "Mean tokens per step that the same estimator reads on a pool without draft; anything but 1 is an error.",
            ("pool",),
        )
        self.observations = counters(
            "observations_total",
            "Finished calls by how their acceptance was seen; biased ones teach nothing.",
            "pool",
            "source",
        )

    @property
    def all(self) -> list[Family[Any]]:
        """All of them, in the order of their declaration."""
        return [family for family in vars(self).values() if isinstance(family, Family)]
