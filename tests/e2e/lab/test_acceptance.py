"""Acceptance on a real engine: read from its own metrics, equal to what the events tell, and summed up by its counters."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import pytest

from e2e.lab.stand import COPYING, SECONDS, STORY, Engine, Front, begun, chat, until
from gateway import sse
from gateway.observation import Evidence, observe
from gateway.usage import Speculation, Usage

pytestmark = pytest.mark.timeout(SECONDS)
WINDOW = 5
TASKS: dict[str, dict[str, Any]] = {
    "copying": chat(COPYING, max_tokens=128),
    "users": begun("Write ten users as JSON.", '[{"id": 1, "email": "user1@example.com"}, {"id": 2,', max_tokens=192),
    "counting": begun("Count from 1 to 80.", "1, 2, 3, 4, 5, 6, 7,", max_tokens=128),
    "code": chat("Write a Python class Account with the methods open, close and balance.", max_tokens=128),
    "story": chat(STORY, max_tokens=96),
}


def events_estimate(usage: Usage, events: int) -> float:
    """Return what the gateway reads from a stream's events where the engine tells no acceptance."""
    seen = observe(
        Evidence(
            usage=usage,
            speculation=None,
            token_events=events,
            streamed=True,
            decode_seconds=None,
            step_seconds_expected=0.04,
            window=5,
            several=False,
            swallowed=False,
            lagging=False,
        )
    )
    assert (seen.source, seen.biased) == ("events", "")
    assert seen.acceptance is not None
    return seen.acceptance


def streamed(engine: Engine, body: dict[str, Any]) -> tuple[Usage, Speculation, int]:
    """Stream from an engine; return its usage and acceptance as the gateway's reader finds them, and the token events."""
    reader = sse.Reader("chat", strip_usage=False, max_event_bytes=1 << 20)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with engine.http.stream("POST", engine.url + "/v1/chat/completions", json=asked) as answer:
        for data in answer.iter_raw():
            reader.feed(data)
    assert reader.usage is not None
    assert reader.speculation is not None
    return reader.usage, reader.speculation, reader.events - reader.silent_first


def test_events_tell_what_the_engine_tells(speculative: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens per event, as the gateway reads them, lie within 5 % of the engine's own count, in the median and over all.

    Every answer has as many events as the engine has steps, but for its last step: of that the engine counts all accepted
    tokens, also those after the answer's end, which nobody got. In short answers that is more than 5 %.
    """
    tokens, steps, seen = [], [], []
    for name, body in TASKS.items():
        usage, speculation, events = streamed(speculative, body)
        tokens.append(usage.completion_tokens)
        steps.append(usage.completion_tokens - speculation.accepted)
        seen.append(events_estimate(usage, events))
        assert -0.05 * steps[-1] <= events - steps[-1] <= WINDOW, (
            name
        )  # an engine short of time merges events now and then
    told = [count / each for count, each in zip(tokens, steps, strict=True)]
    errors = [ours / theirs - 1 for ours, theirs in zip(seen, told, strict=True)]
    overall = sum(tokens) / sum(count / m for count, m in zip(tokens, seen, strict=True)) / (sum(tokens) / sum(steps))
    with capsys.disabled():
        sys.stdout.write(f" events against engine: {' '.join(f'{e:+.1%}' for e in errors)}, all {overall - 1:+.1%} ")

    assert max(told) > 2.0  # there is something to tell apart
    assert min(told) < 1.5
    assert abs(statistics.median(errors)) <= 0.05
    assert overall == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("stream", [True, False], ids=["sse", "json"])
def test_the_gateway_reads_the_engine_s_acceptance(front: Front, *, stream: bool) -> None:
    """The gateway's line about a call has m = tokens / (tokens − accepted), though the client asked for no usage."""
    body = {**TASKS["copying"], "stream": stream}
    answer = front.ask(body, "speculative")
    line = front.settled(answer)

    assert (line["source"], line["outcome"]) == ("engine", "ok")
    assert line["completion_tokens"] == pytest.approx(line["acceptance"] * line["steps"])
    assert line["acceptance"] > 2.0
    assert ("num_accepted_draft_tokens" in answer.text) != stream
    if not stream:
        told = answer.json()
        tokens = told["usage"]["completion_tokens"]
        accepted = told["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        assert line["acceptance"] == pytest.approx(tokens / (tokens - accepted))


def test_the_same_estimator_reads_one_on_baseline(front: Front) -> None:
    """Without a draft every event is one token, but for a few that an engine short of time merges."""
    line = front.settled(front.ask({**TASKS["copying"], "stream": True}, "baseline"))

    assert (line["source"], line["acceptance"]) == ("events", pytest.approx(1.0, abs=0.05))


def test_the_engine_s_counters_are_scraped(front: Front, speculative: Engine) -> None:
    """The gateway's metrics show what vLLM counts: drafts, drafted and accepted tokens, and tokens per step by counters."""
    front.ask(TASKS["copying"], "speculative")
    accepted = speculative.told("vllm:spec_decode_num_accepted_tokens_total")
    until(
        lambda: front.told("draftlane_engine_accepted_tokens_total", pool="speculative") >= accepted > 0, 40, "scraped"
    )

    assert front.told("draftlane_engine_drafts_total", pool="speculative") > 0
    assert front.told("draftlane_engine_drafted_tokens_total", pool="speculative") >= accepted
    assert front.told("draftlane_engine_generated_tokens_total", pool="baseline") > 0
    assert front.told("draftlane_observations_total", pool="speculative", source="engine") > 0
    engines = front.state()["engines"]["speculative"]
    assert 1.0 < engines["acceptance_by_counters"] <= 6.0


def test_greedy_answers_do_not_depend_on_the_pool(baseline: Engine, speculative: Engine) -> None:
    """At temperature 0 both engines, which calculate in float32, say the same to the last token, story or list."""
    for name, body in TASKS.items():
        ours, theirs = (
            engine.ask({**body, "max_tokens": 64, "return_token_ids": True}).json()["choices"][0]["token_ids"]
            for engine in (speculative, baseline)
        )
        assert ours == theirs, name
