"""Where conversations were: remembered by beginning, tenant and model, for a while, within bounds."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway import conversations, wire
from gateway.conversations import KEPT_SECONDS, SECONDS_PER_TOKEN, Conversations, affinity
from gateway.record import Finished

CALL = Finished(
    request_id="r",
    time=100.0,
    endpoint="chat",
    tenant="a",
    model="demo",
    stream=True,
    status=200,
    outcome="ok",
    pool="spec",
    replica="spec-1",
    conversation="c",
    prompt_tokens=100,
    completion_tokens=20,
    ttft=0.01,
)


def beginning(*messages: tuple[str, object]) -> str:
    """The fingerprint of a chat of these messages."""
    body = {"model": "demo", "messages": [{"role": role, "content": content} for role, content in messages]}
    return wire.parse(msgspec.json.encode(body), "chat").conversation


def test_every_turn_of_a_conversation_has_the_same_fingerprint() -> None:
    """What follows the first user message does not matter; what stands before it does."""
    first = beginning(("system", "s"), ("user", "hello"))

    assert first
    assert beginning(("system", "s"), ("user", "hello"), ("assistant", "hi"), ("user", "more")) == first
    assert beginning(("system", "other"), ("user", "hello")) != first
    assert beginning(("system", "s"), ("user", "hello!")) != first
    assert beginning(("system", "s"), ("user", [{"type": "text", "text": "hello"}])) == first
    assert beginning(("system", "s")) == ""


def test_long_beginnings_are_told_apart_by_their_ends_and_length() -> None:
    """Material that many conversations share stands at either end, or the question does."""
    material = "The same report for everybody. " * 100

    assert beginning(("user", material + "What is missing?")) == beginning(("user", material + "What is missing?"))
    assert beginning(("user", material + "What is missing?")) != beginning(("user", material + "What is striking"))
    assert beginning(("user", "Be brief. " + material)) != beginning(("user", "Be clear. " + material))
    assert beginning(("user", material)) != beginning(("user", material + material))


def test_a_place_belongs_to_tenant_and_model_and_ages() -> None:
    """A place is found by whoever left it, until its prefix has probably been evicted."""
    kept = Conversations()
    kept(CALL)
    place = kept.find("a", "demo", "c", 100.0)

    assert place is not None
    assert (place.pool, place.replica, place.tokens) == ("spec", "spec-1", 120)
    assert kept.find("b", "demo", "c", 100.0) is None
    assert kept.find("a", "other", "c", 100.0) is None
    assert kept.find("a", "demo", "", 100.0) is None
    assert kept.find("a", "demo", "c", 100.0 + KEPT_SECONDS) is None


def test_the_pace_of_prefill_is_that_of_the_first_turn() -> None:
    """The first turn's prefill was a cold one and tells what a lost prefix costs; queueing never makes it dearer."""
    kept = Conversations()
    kept(CALL)
    kept(replace(CALL, ttft=0.0001))
    slow = Conversations()
    slow(replace(CALL, ttft=10.0))
    unknown = Conversations()
    unknown(replace(CALL, ttft=None))
    found = affinity(kept.find("a", "demo", "c", 100.0))
    queued = affinity(slow.find("a", "demo", "c", 100.0))
    blind = affinity(unknown.find("a", "demo", "c", 100.0))

    assert found is not None
    assert found.seconds_per_token == 0.0001
    assert queued is not None
    assert queued.seconds_per_token == SECONDS_PER_TOKEN
    assert blind is not None
    assert blind.seconds_per_token == SECONDS_PER_TOKEN
    assert affinity(None) is None


def test_failed_calls_and_calls_without_a_beginning_leave_no_place() -> None:
    """Only a whole answer means that a prefix is cached somewhere."""
    kept = Conversations()
    kept(replace(CALL, outcome="truncated"))
    kept(replace(CALL, conversation=""))

    assert kept.find("a", "demo", "c", 100.0) is None


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    """Past the bound the conversation that was longest without a turn is forgotten."""
    kept = Conversations()
    for number in range(conversations.KEPT + 1):
        kept(replace(CALL, conversation=str(number)))

    assert kept.find("a", "demo", "0", 100.0) is None
    assert kept.find("a", "demo", "1", 100.0) is not None
