"""Acceptance on a real engine: read from its own metrics, equal to what the events tell, and summed up by its counters."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from e2e.lab.stand import COPYING, SECONDS, STORY, Engine, Front, begun, chat, until
from gateway import sse
from gateway.observation import Evidence, observe
from gateway.usage import Speculation, Usage

pytestmark = pytest.mark.timeout(SECONDS)
WINDOW = 5
LINE = "The head of the workshop in Graz, Ms Adler, wants to buy a second oven if the post office renews its contract."
NOTE = "Please bring the blue folder, the keys of the cellar and two lamps to the meeting on Monday; the room is cold in May."
ENDING: dict[str, dict[str, Any]] = {  # answers that end by themselves
    "line": chat(f"Repeat the following sentence: {LINE}", max_tokens=120),
    "note": chat(f"Repeat the following sentence: {NOTE}", max_tokens=120),
    "spelling": chat(
        f"Correct the spelling of this text and give it back otherwise unchanged.\n\n{LINE} {NOTE}", max_tokens=160
    ),
    "sky": chat("Answer in one sentence: why is the sky blue?", max_tokens=120),
}
CUT: dict[str, dict[str, Any]] = {  # answers that reach max_tokens
    "copying": chat(COPYING, max_tokens=64),
    "counting": begun("Count from 1 to 80.", "1, 2, 3, 4, 5, 6, 7,", max_tokens=64),
    "colours": begun(
        "Repeat these words: red, green, blue.", "red, green, blue, red, green, blue, red,", max_tokens=64
    ),
    "story": chat(STORY, max_tokens=64),
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
    """Tokens per event, as the gateway reads them, lie within 5 % of the engine's own count, in every answer that ends."""
    told, seen = {}, {}
    for name, body in ENDING.items():
        usage, speculation, events = streamed(speculative, body)
        assert usage.completion_tokens < body["max_tokens"], name
        told[name] = usage.completion_tokens / (usage.completion_tokens - speculation.accepted)
        seen[name] = events_estimate(usage, events)
    with capsys.disabled():
        pairs = (f"{told[name]:.2f} {seen[name]:.2f}" for name in told)
        sys.stdout.write(f" by engine and by events: {', '.join(pairs)} ")

    assert max(told.values()) > 2.0  # there is something to tell apart
    assert min(told.values()) < 1.5
    assert seen == {name: pytest.approx(length, rel=0.05) for name, length in told.items()}


@pytest.mark.parametrize("name", CUT)
def test_a_cut_answer_has_no_more_steps_than_events(speculative: Engine, name: str) -> None:
    """Where max_tokens cuts an answer, the engine counts accepted tokens that nobody got: up to a window of them."""
    usage, speculation, events = streamed(speculative, CUT[name])
    steps = usage.completion_tokens - speculation.accepted

    assert usage.completion_tokens == 64
    assert steps <= events <= steps + WINDOW


@pytest.mark.parametrize("stream", [True, False], ids=["sse", "json"])
def test_the_gateway_reads_the_engine_s_acceptance(front: Front, *, stream: bool) -> None:
    """The gateway's line about a call has m = tokens / (tokens − accepted), though the client asked for no usage."""
    body = {**CUT["copying"], "stream": stream}
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
    """Without a draft every event is one token."""
    line = front.settled(front.ask({**CUT["copying"], "stream": True}, "baseline"))

    assert (line["source"], line["acceptance"]) == ("events", pytest.approx(1.0))


def test_the_engine_s_counters_are_scraped(front: Front, speculative: Engine) -> None:
    """The gateway's metrics show what vLLM counts: drafts, drafted and accepted tokens, and tokens per step by counters."""
    front.ask(CUT["copying"], "speculative")
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
    for name, body in {**ENDING, **CUT}.items():
        ours, theirs = (
            engine.ask({**body, "return_token_ids": True}).json()["choices"][0]["token_ids"]
            for engine in (speculative, baseline)
        )
        assert ours == theirs, name
