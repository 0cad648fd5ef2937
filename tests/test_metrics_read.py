"""Metrics that are read elsewhere: quantiles off histograms, what engines told, and the pages of several workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from gateway.figures import Figures, read
from gateway.metrics.engines import Engines, Reading
from gateway.metrics.recent import STEP_SECONDS, WINDOW_SECONDS, Recent, quantile
from gateway.metrics.share import Share, merge
from gateway.metrics.tally import Histograms

BOUNDS = (1.0, 2.0, 4.0)


class Watch:
    """A histogram by pool and tenant, its quantiles, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.histograms = Histograms(self.registry, "x_seconds", "X.", ("pool", "tenant"), bounds=BOUNDS)
        Recent(self.registry, "x_q", "X.", self.histograms, label="pool", clock=lambda: self.now)

    def median(self) -> float | None:
        """Return the median of pool "p" as it would be scraped now."""
        return self.registry.get_sample_value("x_q", {"pool": "p", "percentile": "p50"})


def test_a_quantile_lies_within_its_bucket() -> None:
    """Values are taken to lie evenly in a bucket; beyond the last bound that bound is all that is known."""
    assert quantile(0.5, BOUNDS, [0, 0, 0, 0]) is None
    assert quantile(0.5, BOUNDS, [4, 0, 0, 0]) == 0.5
    assert quantile(0.5, BOUNDS, [0, 0, 10, 0]) == 3.0
    assert quantile(0.95, BOUNDS, [19, 0, 0, 1]) == 1.0
    assert quantile(0.99, BOUNDS, [1, 0, 0, 99]) == 4.0
    assert quantile(0.9, BOUNDS, [5, 0, 5, 0]) == pytest.approx(3.6)


def test_quantiles_add_up_tenants_and_forget_after_the_window() -> None:
    """All tenants of a pool count together, and calls older than the window count no longer."""
    watch = Watch()
    for tenant, value in (("a", 0.5), ("b", 0.5), ("c", 3.0)):
        watch.histograms.row("p", tenant).add(value)
    assert watch.median() == pytest.approx(0.75)
    while watch.now < WINDOW_SECONDS:
        watch.now += STEP_SECONDS
        watch.median()
    assert watch.median() is None

    watch.histograms.row("p", "a").add(3.0)
    assert watch.median() == 3.0


def test_quantiles_of_a_rarely_scraped_gateway_reach_further_back() -> None:
    """With scrapes further apart than the window, what came since the last one is told."""
    watch = Watch()
    watch.median()
    watch.now = 10 * WINDOW_SECONDS
    watch.histograms.row("p", "a").add(3.0)

    assert watch.median() == 3.0


PAGE = """\
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 1
vllm:gpu_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} 800
vllm:spec_decode_num_drafts_total{engine="0"} 100
vllm:spec_decode_num_draft_tokens_total{engine="0"} 700
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 350
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 90
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 60
vllm:time_per_output_token_seconds_count{engine="0"} 100
vllm:time_per_output_token_seconds_sum{engine="0"} 10.5
"""


def engines(*readings: Reading) -> tuple[CollectorRegistry, Engines]:
    """Return a registry with these readings."""
    registry = CollectorRegistry()
    found = Engines(registry)
    found.read = lambda: readings
    return registry, found


def reading(figures: Figures, pool: str = "fast") -> Reading:
    """Return a reading of the first replica."""
    return Reading(pool=pool, replica="0", model="demo", figures=figures, restarts=2)


def test_engines_speak_under_one_name() -> None:
    """Whatever a version of vLLM calls its figures, they appear under this gateway's names with pool and replica."""
    registry, _ = engines(reading(read(PAGE, 0.0)))
    who = {"pool": "fast", "replica": "0"}
    value = registry.get_sample_value

    assert value("draftlane_engine_requests", {**who, "state": "waiting"}) == 1
    assert value("draftlane_engine_kv_cache_usage_ratio", who) == 0.25
    assert value("draftlane_engine_generated_tokens_total", who) == 800
    assert value("draftlane_engine_accepted_tokens_by_position_total", {**who, "position": "1"}) == 60
    assert value("draftlane_engine_step_seconds_sum", who) == 10.5
    assert value("draftlane_engine_restarts_total", who) == 2
    assert "vllm:" not in generate_latest(registry).decode()


def test_an_engine_that_does_not_count_drafts_has_no_such_series() -> None:
    """What an engine does not tell is absent, never 0."""
    registry, _ = engines(reading(Figures(0.0, {"running": 1.0}, {}), pool="plain"))

    assert (
        registry.get_sample_value("draftlane_engine_requests", {"pool": "plain", "replica": "0", "state": "running"})
        == 1
    )
    assert registry.get_sample_value("draftlane_engine_drafts_total", {"pool": "plain", "replica": "0"}) is None


def test_a_benchmark_reads_acceptance_through_the_gateway() -> None:
    """Under vLLM's names the counters stand line by line as `vllm bench serve` looks for them: name, position, value."""
    registry, found = engines(reading(read(PAGE, 0.0)), reading(read(PAGE, 0.0), pool="other"))
    found.also_as_vllm = True
    drafts = accepted = 0
    by_position: dict[int, int] = {}
    for line in generate_latest(registry).decode().splitlines():
        if not line.startswith("vllm:spec_decode"):
            continue
        count = int(float(line.split()[-1]))
        if "num_drafts" in line:
            drafts += count
        elif "num_accepted_tokens_per_pos" in line:
            position = int(line.partition('position="')[2].partition('"')[0])
            by_position[position] = by_position.get(position, 0) + count
        elif "num_accepted_tokens" in line:
            accepted += count

    assert "\nvllm:spec_decode_num_drafts_total{" in generate_openmetrics(registry, escaping=ALLOWUTF8).decode()
    assert (drafts, accepted) == (200, 700)
    assert by_position == {0: 180, 1: 120}


COUNTS = '# HELP c_total C.\n# TYPE c_total counter\nc_total{{a="b c"}} {0}\n'
WORKER = (
    COUNTS + "# HELP draftlane_inflight I.\n# TYPE draftlane_inflight gauge\ndraftlane_inflight {0}\n"
    "# HELP draftlane_threshold T.\n# TYPE draftlane_threshold gauge\ndraftlane_threshold {1}\n"
    "# HELP draftlane_engine_drafts_total D.\n# TYPE draftlane_engine_drafts_total counter\n"
    "draftlane_engine_drafts_total {1}\n"
)


def sums(page: bytes) -> dict[str, float]:
    """Return the values of a page by name, read by Prometheus' own parser."""
    return {sample.name: sample.value for family in read_text(page.decode()) for sample in family.samples}


def test_workers_add_up_what_they_count() -> None:
    """Counters and load are sums, other gauges the largest, and so it is with what engines told each of those that live."""
    merged = sums(merge(WORKER.format(1, 0.2), [WORKER.format(2, 0.7)], [WORKER.format(4, 0.9)]))

    assert merged == {
        "c_total": 7,
        "draftlane_inflight": 3,
        "draftlane_threshold": 0.7,
        "draftlane_engine_drafts_total": 0.7,
    }


def test_a_worker_that_was_replaced_keeps_its_counts_and_loses_its_gauges(tmp_path: Path) -> None:
    """Of the pages of one index the newest speaks for the present; all of them count."""
    for name, count, written in (("1-10", 5, 100.0), ("1-11", 7, 200.0)):
        Share(tmp_path, name).leave(WORKER.format(count, 0.1).encode())
        os.utime(tmp_path / f"{name}.prom", (written, written))
    own = Share(tmp_path, "0-12")
    own.leave(b"not even looked at, as it is passed in")
    merged = sums(own.merged(WORKER.format(1, 0.2).encode()))

    assert merged["c_total"] == 13
    assert merged["draftlane_inflight"] == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-12.prom", "1-10.prom", "1-11.prom"]


def test_the_predecessor_of_the_worker_that_is_scraped_has_no_gauges(tmp_path: Path) -> None:
    """A worker speaks for its own index, whatever its predecessor left."""
    Share(tmp_path, "0-10").leave(WORKER.format(5, 0.9).encode())
    merged = sums(Share(tmp_path, "0-11").merged(WORKER.format(1, 0.2).encode()))

    assert (merged["c_total"], merged["draftlane_inflight"], merged["draftlane_threshold"]) == (6, 1, 0.2)


def test_a_folder_that_is_gone_costs_no_call(tmp_path: Path) -> None:
    """Leaving a page where there is no room is no error, and the own page is still told."""
    share = Share(tmp_path / "gone", "0-1")
    share.leave(b"x")

    assert sums(share.merged(WORKER.format(1, 0.2).encode()))["c_total"] == 1
