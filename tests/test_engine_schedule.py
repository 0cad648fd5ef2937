"""The embedded engine's clock: slots, queue, step times, and what a client's leaving does to them."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest
from engines import PLAIN, ask, chat, engine, events, samples, stream, text_of, until

from gateway.engine import EngineSettings
from gateway.engine.schedule import Dial

COUNT = "Count from 1 to 200."


async def test_slots_and_queue():
    """No more than `slots` sequences run at once; the rest wait, in order, and are counted as waiting."""
    async with engine(slots=2, speed=20) as (running, client):
        calls = [asyncio.create_task(ask(client, COUNT, max_tokens=30 + number)) for number in range(5)]
        await until(lambda: running.batch.running == 2 and running.batch.waiting == 3)
        gauges = await samples(client)
        await asyncio.gather(*calls)
        after = await samples(client)
        ends = [entry.tokens for entry in running.record]

    assert repr(running.batch) == "<Batch 0/2 waiting 0>"
    assert (gauges["num_requests_running"], gauges["num_requests_waiting"]) == (2, 3)
    assert gauges["kv_cache_usage_perc"] > 0
    assert (after["num_requests_running"], after["num_requests_waiting"]) == (0, 0)
    assert after["kv_cache_usage_perc"] == 0
    assert after['request_success_total{finished_reason="length"}'] == 5
    assert sorted(ends) == [30, 31, 32, 33, 34]


async def test_the_queue_is_first_come():
    """With one slot, requests finish in the order in which they came."""
    finished: list[int] = []
    async with engine(slots=1) as (running, client):

        async def call(number: int) -> None:
            await ask(client, COUNT, max_tokens=5)
            finished.append(number)

        calls = []
        for number in range(5):
            calls.append(asyncio.create_task(call(number)))
            await until(lambda: running.record.total == number + 1)  # noqa: B023 - awaited within the turn
        await asyncio.gather(*calls)

    assert finished == [0, 1, 2, 3, 4]


async def test_step_time_is_what_metrics_say():
    """The mean of vLLM's inter-token latency is the step time."""
    async with engine(kind="speculative", speed=20) as (_, client):
        await ask(client, COUNT, max_tokens=60)
        found = await samples(client)

    name = "inter_token_latency_seconds"
    assert found[f"{name}_count"] == found["spec_decode_num_drafts_total"]
    assert found[f"{name}_sum"] / found[f"{name}_count"] >= 0.105 / 20  # a timer never comes early


def test_step_time_grows_with_the_batch():
    """Each further running sequence lengthens the step; the speed shortens it; the defaults are the study's."""
    baseline = Dial.of(EngineSettings(step_growth=0.1))
    speculative = Dial.of(EngineSettings(kind="speculative", speed=10))

    assert [baseline.step(running) for running in (0, 1, 2, 5)] == pytest.approx([0.045, 0.045, 0.0495, 0.063])
    assert [speculative.step(running) for running in (1, 4)] == pytest.approx([0.0105, 0.0105])


async def test_tokens_per_step_from_histograms():
    """Tokens after the first, divided by steps, are the acceptance length, also where the counters are left out."""
    async with engine(kind="speculative", spec_counters=False, per_request_metrics=True) as (_, client):
        answer = await ask(client, COUNT)
        found = await samples(client)

    steps = found["inter_token_latency_seconds_count"]
    length = (found["generation_tokens_total"] - found["time_to_first_token_seconds_count"]) / steps
    assert not [name for name in found if "spec_decode" in name]
    assert abs(length - answer["metrics"]["speculative_decoding"]["mean_acceptance_length"]) < 0.05


async def test_baseline_reads_one():
    """The same estimate on a baseline engine is exactly one token a step."""
    async with engine() as (_, client):
        await ask(client, COUNT)
        found = await samples(client)

    tokens = found["generation_tokens_total"] - found["time_to_first_token_seconds_count"]
    assert tokens == found["inter_token_latency_seconds_count"]


async def test_metric_names_of_older_engines():
    """Three generations of names hold the same numbers."""
    async with (
        engine(kind="speculative", metrics_style="v0") as (_, oldest),
        engine(kind="speculative", metrics_style="v0.11") as (_, older),
        engine(kind="speculative") as (_, current),
    ):
        found = []
        for client in (oldest, older, current):
            await ask(client, COUNT)
            found.append(await samples(client))

    assert "gpu_cache_usage_perc" in found[0]
    assert "kv_cache_usage_perc" in found[1]
    assert "kv_cache_usage_perc" in found[2]
    steps = [found[0]["time_per_output_token_seconds_count"], found[1]["time_per_output_token_seconds_count"]]
    assert steps == [found[2]["inter_token_latency_seconds_count"]] * 2
    assert "spec_decode_num_drafts_total" not in found[0]
    assert (
        found[0]["spec_decode_num_emitted_tokens_total"] == found[0]["spec_decode_num_accepted_tokens_total"] + steps[0]
    )
    assert found[1]["spec_decode_num_drafts_total"] == found[2]["spec_decode_num_drafts_total"] == steps[1]


async def test_a_client_that_leaves_a_stream_frees_its_slot():
    """A client that leaves in the middle of a stream ends the sequence; the next one gets the slot."""
    async with engine(slots=1, speed=20) as (running, client):
        async with client.stream("POST", "/v1/chat/completions", json=chat(COUNT, stream=True)) as response:
            async for line in response.aiter_lines():
                if '"content":"5"' in line or '"content":" 5"' in line:
                    break
        await until(lambda: running.batch.running == 0)
        entry = running.record[0]
        answer = await ask(client, "Count from 1 to 3.")
        found = await samples(client)

    assert entry.gone is not None
    assert not entry.finished
    assert 9 <= entry.tokens < 100
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert found['request_success_total{finished_reason="abort"}'] == 1


async def test_a_client_that_leaves_before_an_answer_frees_its_slot():
    """The same holds for an answer that is not streamed, and for one that still waits in the queue."""
    async with engine(slots=1, speed=2) as (running, client):
        calls = [asyncio.create_task(ask(client, COUNT)) for _ in range(2)]
        await until(lambda: running.batch.running == 1 and running.batch.waiting == 1 and running.record[0].tokens)
        for call in calls:
            call.cancel()
        for call in calls:
            with contextlib.suppress(asyncio.CancelledError):
                await call
        await until(lambda: running.batch.running == 0 and running.batch.waiting == 0)

    assert [entry.gone is not None for entry in running.record] == [True, True]
    assert [entry.finished for entry in running.record] == [False, False]


async def test_a_slow_reader_gets_everything_in_fewer_events():
    """Steps are merged while a client does not read, as vLLM does, and nothing is lost."""
    body = chat("Count from 1 to 9000.", stream=True, max_tokens=4000, logprobs=True, top_logprobs=20)  # large events
    async with (
        engine(speed=5000) as (running, client),
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        await until(lambda: running.record[0].tokens == 4000, seconds=30)
        unread = running.batch.running, running.record[0].finished
        received = (await response.aread()).decode()

    found = events(received)
    numbers = text_of(found).split(", ")
    assert unread == (0, False)  # the sequence has ended, its last events wait for the reader
    assert numbers[:-1] == [str(one + 1) for one in range(len(numbers) - 1)]
    assert sum(len(event["choices"][0]["logprobs"]["content"]) for event in found[1:]) == 4000
    assert len(found) < 3500
    assert running.record[0].finished


async def test_live_settings():
    """Step time, speed and draft quality change while the engine runs; nonsense changes nothing and says why."""
    async with engine(kind="speculative") as (running, client):
        changed = await client.post("/engine/settings", json={"step_seconds": 0.2, "draft_quality": 0.5})
        wrong = [
            await client.post("/engine/settings", json=body)
            for body in ({"speed": 0}, {"draft_quality": 2}, {"window": 3}, {"speed": "fast"})
        ]
        shown = await client.get("/engine/settings")

    assert changed.status_code == 200
    assert [response.status_code for response in wrong] == [400] * 4
    assert shown.json() == changed.json()
    assert (running.settings.step_seconds, running.settings.draft_quality, running.settings.speed) == (0.2, 0.5, 500)


async def test_choices_share_a_request():
    """Each of `n` choices is a sequence of its own in the batch, streamed under its index."""
    async with engine(slots=2) as (running, client):
        found = await stream(client, "Tell me a story.", n=3, temperature=1, max_tokens=10)

    indices = [event["choices"][0]["index"] for event in found]
    assert set(indices) == {0, 1, 2}
    assert [sum(event["choices"][0]["finish_reason"] == "length" for event in found)] == [3]
    assert running.record[0].tokens == 30


async def test_a_shut_down_engine_closes_its_connections():
    """At the end of `serve` open streams break off and nothing is left listening."""
    async with engine(speed=1) as (running, client):
        pending = asyncio.create_task(client.post("/v1/chat/completions", json=chat(COUNT)))
        await until(lambda: running.batch.running == 1)
        url = running.url
        await asyncio.sleep(0)
        running.engine.batch.close()
        for connection in tuple(running.connections):
            connection.transport.abort()
        with contextlib.suppress(httpx.TransportError):
            await pending
    async with httpx.AsyncClient(verify=PLAIN) as client:
        try:
            await client.get(f"{url}/health")
            reached = True
        except httpx.ConnectError:
            reached = False

    assert not reached
