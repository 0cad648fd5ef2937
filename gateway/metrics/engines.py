"""What the engines told when they were last read, under this gateway's names; on request under vLLM's own as well.

One name for what three generations of vLLM call differently, with the pool and the replica's place in it as labels. Counters
stand as the engine counts them, so that they begin at 0 again when it does. Under vLLM's names, benchmarks that read
acceptance from the /metrics of the address that they load (`vllm bench serve`, aiperf) can do so through the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.figures import ALIASES, GAUGES, POSITIONS, Figures

_WHO: Final = ("pool", "replica")
_COUNTERS: Final = (
    ("generated", "generated_tokens", "Tokens that an engine has written."),
    ("drafts", "drafts", "Verification steps of an engine that had a draft."),
    ("drafted", "drafted_tokens", "Tokens that the draft model proposed."),
    ("accepted", "accepted_tokens", "Drafted tokens that the target model accepted."),
)
_MEANS: Final = (
    ("steps", "step_seconds", "step_seconds", "Seconds per step, as an engine times it."),
    ("first_tokens", "first_token_seconds", "time_to_first_token_seconds", "Seconds to first token, engine's view."),
    ("queued", "queue_seconds", "queue_seconds", "Seconds that requests waited for a slot of an engine."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The last reading of one replica: its place in the pool, what it told, and how often it has begun anew."""

    pool: str
    replica: str
    model: str
    figures: Figures
    restarts: int


class Engines(Collector):
    """Yields what `read` returns; `also_as_vllm` tells whether vLLM's names are wanted too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read: Callable[[], Iterable[Reading]] = tuple
        self.also_as_vllm = False
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Name nothing in advance: what there is depends on the engines."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every figure that some engine has told."""
        readings = list(self.read())
        if not readings:
            return
        yield from _gauges(readings)
        yield from _counters(readings)
        yield from _means(readings)
        if self.also_as_vllm:
            yield from _as_vllm(readings)


def _gauges(readings: list[Reading]) -> Iterator[Metric]:
    requests = GaugeMetricFamily(
        "draftlane_engine_requests", "Requests on an engine, by its own count.", labels=(*_WHO, "state")
    )
    cache = GaugeMetricFamily(
        "draftlane_engine_kv_cache_usage_ratio", "Share of an engine's key-value cache that is in use.", labels=_WHO
    )
    for each in readings:
        for state in ("running", "waiting"):
            if (count := each.figures.values.get(state)) is not None:
                requests.add_metric((each.pool, each.replica, state), count)
        if (usage := each.figures.values.get("kv_usage")) is not None:
            cache.add_metric((each.pool, each.replica), usage)
    yield requests
    yield cache


def _counters(readings: list[Reading]) -> Iterator[Metric]:
    for key, name, text in _COUNTERS:
        family = CounterMetricFamily(f"draftlane_engine_{name}_total", text, labels=_WHO)
        for each in readings:
            if (count := each.figures.values.get(key)) is not None:
                family.add_metric((each.pool, each.replica), count)
        yield family
    by_position = CounterMetricFamily(
        "draftlane_engine_accepted_tokens_by_position_total",
        "Drafted tokens that were accepted, by their place in the draft.",
        labels=(*_WHO, "position"),
    )
    restarts = CounterMetricFamily(
        "draftlane_engine_restarts_total", "How often an engine was seen to begin anew.", labels=_WHO
    )
    for each in readings:
        restarts.add_metric((each.pool, each.replica), each.restarts)
        for position, count in each.figures.positions.items():
            by_position.add_metric((each.pool, each.replica, str(position)), count)
    yield by_position
    yield restarts


def _means(readings: list[Reading]) -> Iterator[Metric]:
    for count_key, sum_key, name, text in _MEANS:
        family = SummaryMetricFamily(f"draftlane_engine_{name}", text, labels=_WHO)
        for each in readings:
            values = each.figures.values
            if count_key in values and sum_key in values:
                family.add_metric((each.pool, each.replica), round(values[count_key]), values[sum_key])
        yield family


def _as_vllm(readings: list[Reading]) -> Iterator[Metric]:
    """Yield what was read under the newest of vLLM's names, with the labels that its readers look for."""
    labels = ("engine", "model_name", *_WHO)
    for key, (name, *_) in ALIASES.items():
        if name.endswith(("_sum", "_count")):
            continue  # half a histogram would mislead whoever takes quantiles of it
        kind = GaugeMetricFamily if key in GAUGES else CounterMetricFamily
        family = kind(name, f"{name}, as an engine of the pool tells it.", labels=labels)
        for each in readings:
            if (value := each.figures.values.get(key)) is not None:
                family.add_metric(("0", each.model, each.pool, each.replica), value)
        if family.samples:
            yield family
    family = CounterMetricFamily(POSITIONS[0], f"{POSITIONS[0]}, as an engine tells it.", labels=(*labels, "position"))
    for each in readings:
        for position, count in each.figures.positions.items():
            family.add_metric(("0", each.model, each.pool, each.replica, str(position)), count)
    if family.samples:
        yield family
