"""Exchanges: every call is settled once, however it ends, and leaves one record that adds up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes import CHAT, CHAT_EVENTS, DONE, STREAM, USAGE, event
from harness import KEY, config_for

from gateway import errors, wire
from gateway.attempts import Attempt, Stream
from gateway.config import key_digest
from gateway.exchange import Exchange
from gateway.http1 import Client
from gateway.outbound import Connection
from gateway.pools import Lease, Pools
from gateway.record import Finished
from gateway.reply import Reply
from gateway.sse import Reader
from gateway.tenants import Tenants
from gateway.usage import Usage

CONFIG = config_for(
    {"spec": ["http://127.0.0.1:1001"], "base": ["http://127.0.0.1:1002"]},
    pools={"spec": {"price_per_hour": 14.4, "slots": 4}, "base": {"price_per_hour": 14.4, "slots": 4}},
    tenant=[
        {
            "name": "tester",
            "key_sha256": [key_digest(KEY)],
            "max_concurrent": 2,
        }
    ],
)


class World:
    """A clock that a test moves, pools and tenants, and the records that exchanges leave."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pools = Pools(CONFIG, {})
        self.tenants = Tenants(CONFIG, {})
        self.records: list[Finished] = []

    def exchange(self, body: dict[str, Any] = CHAT, **changes: Any) -> Exchange:
        """Return an exchange whose call has been identified, parsed and admitted."""
        found = Exchange(
            request_id="req-1", endpoint="chat", sinks=[self.records.append], clock=lambda: self.now, **changes
        )
        found.tenant = tenant = self.tenants.identify([(b"authorization", b"Bearer " + KEY.encode())])
        found.call = wire.parse(json.dumps(body).encode(), "chat")
        found.model = "demo"
        found.admission = self.tenants.admit(tenant, model="demo", tokens=50, now=self.now)
        return found

    def stream(self, pool: str = "spec", *, complete: str = "yes") -> Stream:
        """Return a stream of a pool's only replica, whose reply has arrived whole or not."""
        replica = self.pools[pool].replicas[0]
        connection = Connection(Client(replica.url))
        reply = Reply(connection, connection.loop)
        reply.status, reply.headers_done = 200, True
        reply.last_byte_at = self.now
        if complete == "yes":
            reply.finish()
        lease = Lease(replica, self.now)
        return Stream(
            pool=self.pools[pool],
            replica=replica,
            reply=reply,
            lease=lease,
            running=replica.running,
            sent_at=self.now,
            first_byte_at=self.now,
            attempts=1,
        )

    @property
    def record(self) -> Finished:
        """The one record there is."""
        (found,) = self.records
        return found

    def at_rest(self) -> bool:
        """Whether no lease and no tenant's place is out: both of the two places can be taken again."""
        tenant = self.tenants.identify([(b"authorization", b"Bearer " + KEY.encode())])
        places = [self.tenants.admit(tenant, model="demo", tokens=1, now=self.now) for _ in range(2)]
        for place in places:
            place.release()
        return not any(pool.running for pool in self.pools)


@pytest.fixture(name="world")
def _world() -> World:
    return World()


def reader_of(*events: bytes) -> Reader:
    """Return a reader that these events have passed."""
    reader = Reader("chat", strip_usage=True, max_event_bytes=1 << 20)
    for passed in events:
        reader.feed(passed)
    return reader


# Settling


async def run(world: World, exchange: Exchange, end: BaseException | None) -> None:
    """Open a stream inside of an exchange and end it so."""
    with exchange:
        exchange.stream = world.stream()
        if end is not None:
            raise end


@pytest.mark.parametrize(
    "end",
    [None, errors.BadGateway("x"), asyncio.CancelledError(), ValueError("a defect"), KeyboardInterrupt()],
    ids=lambda end: type(end).__name__,
)
async def test_every_ending_settles_once_and_gives_all_back(world: World, end: BaseException | None) -> None:
    """A return, an error, a cancellation and a defect all free lease and place, leave one record and pass on."""
    seen = None
    try:
        await run(world, world.exchange(), end)
    except BaseException as error:  # noqa: BLE001 - whatever was raised must come out
        seen = error

    assert seen is end
    assert len(world.records) == 1
    assert world.at_rest()


async def test_a_second_exit_does_nothing(world: World) -> None:
    """Settling is idempotent."""
    exchange = world.exchange()
    with exchange:
        exchange.stream = world.stream()
    exchange.__exit__(None, None, None)

    assert len(world.records) == 1
    assert world.at_rest()


async def test_a_sink_that_fails_takes_no_other_along(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The record reaches the remaining sinks, and the failure is told."""

    def broken(finished: Finished) -> None:
        raise ValueError(finished.request_id)

    exchange = world.exchange()
    exchange.sinks = [broken, *exchange.sinks]
    with exchange:
        pass

    assert len(world.records) == 1
    assert "a sink failed on call req-1" in caplog.text
    assert world.at_rest()


async def test_a_call_that_was_never_admitted_leaves_a_record_too(world: World) -> None:
    """A refusal at the door has no tenant, model or pool, and costs nothing."""
    exchange = Exchange(request_id="r", endpoint="chat", sinks=[world.records.append], clock=lambda: world.now)
    with exchange:
        exchange.fail(errors.Unauthorized("no key", code="invalid_api_key"))

    record = world.record
    assert (record.tenant, record.model, record.pool) == ("", "", "")
    assert (record.outcome, record.status, record.error, record.cost_usd) == ("rejected", 401, "invalid_api_key", 0.0)


# Outcomes


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.BadRequest("x"), "rejected"),
        (errors.Unauthorized("x"), "rejected"),
        (errors.RateLimited("x"), "rejected"),
        (errors.TooLarge("x"), "rejected"),
        (errors.RequestTimeout("x"), "rejected"),
        (errors.BadGateway("x"), "upstream_failed"),
        (errors.Unavailable("x"), "unavailable"),
        (errors.UpstreamTimeout("x"), "upstream_timeout"),
        (errors.GatewayError("x"), "internal"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_s_fault_decides_the_outcome(world: World, error: errors.GatewayError, outcome: str) -> None:
    """What the client is told is what the record says."""
    exchange = world.exchange()
    with exchange:
        exchange.fail(error)

    assert (world.record.outcome, world.record.status, world.record.error) == (outcome, error.status, error.type)


async def test_the_status_that_was_sent_stays(world: World) -> None:
    """After the first byte a failure changes the outcome, not the status."""
    exchange = world.exchange()
    with exchange:
        exchange.status = 200
        exchange.fail(errors.BadGateway("x", code="stream_truncated"), "truncated")

    assert (world.record.status, world.record.outcome, world.record.error) == (200, "truncated", "stream_truncated")


# Tokens, time and money


async def ended(world: World, exchange: Exchange, act: Callable[[], None]) -> Finished:
    """Run an exchange in which `act` happens; return its record."""
    with exchange:
        act()
    return world.records[-1]


async def test_the_engine_s_own_count_is_the_count(world: World) -> None:
    """Usage from the engine goes before anything counted here."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream()
        exchange.reader = reader_of(*CHAT_EVENTS, USAGE, DONE)
        exchange.usage = exchange.reader.usage
        exchange.outcome = "ok"

    record = await ended(world, exchange, act)
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (9, 6, "engine")


@pytest.mark.parametrize(("pool", "tokens"), [("base", 3), ("spec", 3)])
async def test_a_stream_that_was_cut_is_estimated_by_its_events(world: World, pool: str, tokens: int) -> None:
    """Tokens that an engine wrote before a client left are counted by events, the silent first one not, and marked so."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream(pool, complete="no")
        exchange.reader = reader_of(*CHAT_EVENTS[:4])
        exchange.outcome = "client_gone"

    record = await ended(world, exchange, act)
    assert (record.completion_tokens, record.usage_source) == (tokens, "events")
    assert record.prompt_tokens > 0


async def test_usage_so_far_is_used_when_the_client_left(world: World) -> None:
    """An engine that told its usage with every event has told it for a cut stream as well."""
    so_far = event(choices=[{"index": 0}], usage={"prompt_tokens": 9, "completion_tokens": 4})
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream(complete="no")
        exchange.reader = reader_of(so_far)
        exchange.usage = exchange.reader.usage
        exchange.outcome = "client_gone"

    record = await ended(world, exchange, act)
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (9, 4, "engine")


async def test_a_slot_is_billed_from_the_request_to_its_end(world: World) -> None:
    """Slot seconds times the price of a slot: 14.40 dollars an hour over four slots is a tenth of a cent a second."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        world.now += 5.0
        exchange.stream = world.stream(complete="no")
        world.now += 3.0

    record = await ended(world, exchange, act)
    assert record.duration == pytest.approx(8.0)
    assert record.slot_seconds == pytest.approx(3.0)
    assert record.cost_usd == pytest.approx(0.003)


async def test_waiting_for_a_slot_is_not_billed(world: World) -> None:
    """With twice as many calls as slots on a replica each holds one for half of its time, and pays for that half."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = stream = world.stream(complete="no")
        stream.running = 2 * stream.pool.config.slots
        world.now += 3.0

    record = await ended(world, exchange, act)
    assert record.slot_seconds == pytest.approx(1.5)
    assert record.cost_usd == pytest.approx(0.0015)


async def test_a_slow_reader_is_not_billed_for_a_free_slot(world: World) -> None:
    """Once a reply is whole its slot is free, however long the client takes to read it."""
    exchange = world.exchange()

    def act() -> None:
        exchange.stream = stream = world.stream(complete="no")
        world.now += 2.0
        stream.reply.last_byte_at = world.now
        stream.reply.finish()
        world.now += 60.0

    record = await ended(world, exchange, act)
    assert record.slot_seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("outcome", "seconds"), [("client_gone", 3.0), ("upstream_timeout", 0.0), ("upstream_failed", 0.0)]
)
async def test_an_engine_that_did_not_answer_is_on_nobody_s_bill(world: World, outcome: Any, seconds: float) -> None:
    """Only a client that did not wait pays for an attempt without an answer: the engine was at work for it."""
    exchange = world.exchange()

    def act() -> None:
        pool = world.pools["base"]
        exchange.sent(Attempt(pool=pool, replica=pool.replicas[0], running=1, sent_at=world.now, attempts=2))
        world.now += 3.0
        exchange.outcome = outcome

    record = await ended(world, exchange, act)
    assert (record.pool, record.replica, record.attempts) == ("base", "base-0", 2)
    assert record.slot_seconds == pytest.approx(seconds)


async def test_phases_tell_the_gateway_s_own_time(world: World) -> None:
    """Reading the body is the client's time; parse, score and plan are ours, and so is all until the engine was asked."""
    exchange = world.exchange()

    def act() -> None:
        world.now += 1.0
        exchange.has_body()
        for phase, seconds in (("parse", 0.01), ("score", 0.02), ("plan", 0.03)):
            world.now += 0.001  # others have their turn
            exchange.resume()
            world.now += seconds
            exchange.mark(phase)
        world.now += 0.04
        exchange.stream = world.stream()

    record = await ended(world, exchange, act)
    assert record.overhead == pytest.approx({"parse": 0.01, "score": 0.02, "plan": 0.03, "total": 0.103})


@pytest.mark.parametrize(("body", "told"), [(STREAM, 5.0), (CHAT, None)])
async def test_time_to_first_token_is_a_stream_s(world: World, body: dict[str, Any], told: float | None) -> None:
    """It counts from the call's first byte, the gateway's time included; a reply that is not streamed has none."""
    exchange = world.exchange(body)

    def act() -> None:
        world.now += 5.0
        exchange.stream = world.stream()

    assert (await ended(world, exchange, act)).ttft == told


async def test_no_time_is_negative(world: World) -> None:
    """The loop's clock goes by milliseconds and may be behind the call's: then the first token took no time."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream()
        exchange.stream.first_byte_at = world.now - 0.001

    assert (await ended(world, exchange, act)).ttft == 0.0


@pytest.mark.parametrize(("outcome", "source"), [("ok", "events"), ("client_gone", "none"), ("truncated", "none")])
async def test_only_whole_answers_teach(world: World, outcome: Any, source: str) -> None:
    """A cut answer says less about its engine than about its client."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream()
        exchange.reader = reader_of(*CHAT_EVENTS, USAGE, DONE)
        exchange.usage = Usage(9, 6)
        exchange.outcome = outcome

    assert (await ended(world, exchange, act)).source == source


# What is told


async def test_a_prompt_is_recorded_only_where_that_is_switched_on(world: World) -> None:
    """No word of a client's is kept unless the operator wants it, and then only its beginning."""
    long = {**CHAT, "messages": [{"role": "user", "content": "secret " * 2000}]}
    assert (await ended(world, world.exchange(long), lambda: None)).prompt == ""
    kept = (await ended(world, world.exchange(long, keeps_prompt=True), lambda: None)).prompt

    assert "secret" in kept
    assert len(kept) == 4096


async def test_response_headers_tell_what_is_known(world: World) -> None:
    """The request id always, the pool once one has answered."""
    exchange = world.exchange()
    with exchange:
        assert (b"x-request-id", b"req-1") in exchange.headers()
        assert not any(name == b"x-draftlane-pool" for name, _ in exchange.headers())
        exchange.stream = world.stream("base")

        assert (b"x-draftlane-pool", b"base") in exchange.headers()


async def test_the_record_names_the_place_and_the_call(world: World) -> None:
    """Tenant, model, pool, replica and revision are the configuration's own words."""
    exchange = world.exchange(STREAM)

    def act() -> None:
        exchange.stream = world.stream()

    record = await ended(world, exchange, act)
    assert (record.request_id, record.endpoint, record.tenant, record.model) == ("req-1", "chat", "tester", "demo")
    assert (record.pool, record.replica, record.revision, record.speculative) == ("spec", "spec-0", "demo||7|", True)
    assert (record.stream, record.attempts, record.running) == (True, 1, 1)
