"""Engines' metrics pages: names over versions, differences, restarts, estimates."""

from __future__ import annotations

import math

import pytest
from engines import ask, engine

from gateway import figures

PAGE = """
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="demo"} %d
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{model_name="demo"} %d
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{le="+Inf"} %d
vllm:inter_token_latency_seconds_count %d
vllm:inter_token_latency_seconds_sum %f
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4
vllm:time_to_first_token_seconds_count 4
vllm:time_to_first_token_seconds_sum 0.4
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="demo"} 3
"""


def page(generated: int, accepted: int, steps: int) -> str:
    """A page of an engine with these counts and 100 ms a step."""
    return PAGE % (generated, accepted, steps, steps, steps * 0.1)


def test_two_readings_tell_tokens_per_step_by_both_ways() -> None:
    """Counters give generated / (generated − accepted), histograms tokens after the first per step, and seconds per step."""
    before, after = figures.read(page(100, 40, 60), 1.0), figures.read(page(400, 240, 160), 9.0)
    found = figures.between(before, after)

    assert found is not None
    assert found.seconds == 8.0
    assert found.by_counters == 300 / (300 - 200)
    assert found.by_histograms == 300 / 100
    assert found.mean_step_seconds is not None
    assert math.isclose(found.mean_step_seconds, 0.1)


def test_a_restart_says_nothing() -> None:
    """A counter that went back is a restart of the engine, not a negative amount."""
    assert figures.between(figures.read(page(400, 240, 160), 1.0), figures.read(page(10, 4, 6), 9.0)) is None


def test_gauges_may_fall() -> None:
    """Gauges are no counters: a falling one is no restart."""
    before = figures.read(
        page(1, 0, 1) + "\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 9\n", 1.0
    )
    after = figures.read(page(2, 0, 2) + "\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0\n", 2.0)

    assert figures.between(before, after) is not None


def test_dead_counters_leave_the_histograms() -> None:
    """Where the engine does not count acceptance, as with fused speculation, the histogram estimate still speaks."""
    text = "\n".join(line for line in page(300, 0, 100).splitlines() if "spec_decode" not in line)
    zero = "\n".join(line for line in page(0, 0, 0).splitlines() if "spec_decode" not in line)
    found = figures.between(figures.read(zero, 1.0), figures.read(text, 2.0))

    assert found is not None
    assert found.accepted is None
    assert found.by_counters is None
    assert found.by_histograms == 3.0


def test_nothing_decoded_is_no_estimate() -> None:
    """An idle engine has no tokens per step, and no division by zero."""
    idle = figures.Interval()

    assert (idle.by_counters, idle.by_histograms, idle.mean_step_seconds) == (None, None, None)


def test_intervals_add_up_over_replicas() -> None:
    """Replicas are differenced first and summed after; one without counters does not take the others' away."""
    counted = figures.Interval(seconds=8, generated=30, accepted=20, steps=10, step_seconds=1.0)
    uncounted = figures.Interval(seconds=7, generated=10, accepted=None, steps=10, step_seconds=1.0)
    total = counted + uncounted

    assert (total.seconds, total.generated, total.accepted, total.steps) == (8, 40, 20, 20)


@pytest.mark.parametrize("text", ["<html>502</html>", "vllm:num_requests_running nonsense\n", 'a{b="'])
def test_what_is_no_metrics_page_is_an_error(text: str) -> None:
    """A page that is not in the Prometheus format raises ValueError, whatever stands in front of the engine."""
    with pytest.raises(ValueError, match=r"\S"):
        figures.read(text, 0.0)


@pytest.mark.parametrize("style", ["current", "v0.11", "v0"])
async def test_the_names_of_every_version_are_known(style: str) -> None:
    """Engines of each generation of names tell load, tokens, steps and acceptance alike, and both estimates agree."""
    async with engine(kind="speculative", metrics_style=style) as (_, client):
        empty = figures.read((await client.get("/metrics")).text, 1.0)
        await ask(client, "Count from 1 to 80, separated by commas.", max_tokens=120)
        full = figures.read((await client.get("/metrics")).text, 2.0)
    found = figures.between(empty, full)

    assert {"running", "waiting", "kv_usage", "generated", "steps"} <= set(full.values)
    assert found is not None
    assert found.generated == 120
    assert found.by_counters is not None
    assert found.by_histograms is not None
    assert found.by_counters > 4
    assert abs(found.by_counters / found.by_histograms - 1) < 0.1
    assert full.positions.get(0, 0) >= full.positions.get(6, 0)  # V0 does not tell positions
