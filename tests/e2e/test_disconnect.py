"""Clients that leave: the engine's work ends at once, streamed or not, and nothing stays held."""

from __future__ import annotations

import asyncio
import statistics
import sys
from typing import Any

import pytest
from fakes import Visitor, post, visitor
from harness import until

from e2e.stack import COUNTING, STORY, Stack, chat, stack
from gateway.engine.faults import Fault
from gateway.engine.record import Entry

LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
ENDPOINTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat(STORY, **LONG)),
    ("/v1/completions", {"model": "demo", "prompt": STORY, "temperature": 0, **LONG}),
    (
        "/v1/responses",
        {"model": "demo", "input": STORY, "temperature": 0, "max_output_tokens": 4000, "ignore_eos": True},
    ),
    ("/v1/messages", {"model": "demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0, **LONG}),
]
BOUND = 1.0  # seconds; the aim is a tenth of it


async def running(it: Stack, count: int = 1) -> list[Entry]:
    """Wait until so many calls generate tokens; return what the engines received."""
    await until(lambda: sum(entry.tokens > 0 for entry in it.received) >= count)
    return it.received


async def left(client: Visitor, seen: Entry) -> float:
    """Let a client leave; return the seconds until the engine noticed."""
    loop = asyncio.get_running_loop()
    at = loop.time()
    client.leave()
    gone: float = await until(lambda: seen.gone)
    return gone - at


@pytest.mark.parametrize("stream", [True, False], ids=["sse", "json"])
async def test_an_engine_stops_when_its_client_leaves(*, stream: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Within a second, and in the median far sooner, the engine has aborted the work of a client that left."""
    delays: list[float] = []
    async with stack(speed=5) as it:
        for path, body in ENDPOINTS * 3:
            it.forget()
            async with visitor(it.gateway.port) as client:
                await client.send(post({**body, "stream": stream}, path))
                (seen,) = await running(it)
                delays.append(await left(client, seen))
            await it.at_rest()
            (settled,) = await it.gateway.settled(1)

            assert not seen.finished
            assert (settled.outcome, settled.attempts) == ("client_gone", 1)
            assert settled.slot_seconds > 0

    with capsys.disabled():
        median, worst = statistics.median(delays) * 1000, max(delays) * 1000
        sys.stdout.write(f" abort of {'sse' if stream else 'json'}: median {median:.1f} ms, worst {worst:.1f} ms ")
    assert max(delays) <= BOUND


async def test_a_client_that_leaves_the_queue_gives_up_its_place() -> None:
    """A call that waits for a slot in the engine is taken out of the queue when its client leaves."""
    async with stack(speed=5, engines={"slots": 1}) as it:
        async with visitor(it.gateway.port) as first, visitor(it.gateway.port) as second:
            await first.send(post(chat(STORY, **LONG, stream=True)))
            await running(it)
            await second.send(post(chat(STORY, **LONG, stream=True)))
            await until(lambda: it.baseline.engine.batch.waiting == 1)
            second.leave()
            await until(lambda: it.baseline.engine.batch.waiting == 0)

            assert it.baseline.engine.batch.running == 1
            first.leave()
        await it.at_rest()

        assert [call.outcome for call in it.gateway.finished] == ["client_gone", "client_gone"]


async def test_a_client_that_leaves_in_the_middle_of_its_upload_reaches_no_engine() -> None:
    """A body that is not whole when its client leaves is never sent on."""
    async with stack() as it:
        async with visitor(it.gateway.port) as client:
            await client.send(post(chat())[:-10])
            await until(lambda: it.gateway.gateway.api.running == 1)
            client.leave()
        await it.at_rest()

        assert (it.received, [call.outcome for call in it.gateway.finished]) == ([], ["client_gone"])


async def test_a_client_that_leaves_between_attempts_is_not_failed_over() -> None:
    """While the first engine keeps silent the client leaves: no other engine is asked on its behalf."""
    async with stack() as it:
        for one in it.engines:
            one.engine.faults.set(Fault(kind="silent"), asyncio.get_running_loop().time())
        async with visitor(it.gateway.port) as client:
            await client.send(post(chat(COUNTING)))
            await until(lambda: it.received)
            client.leave()
        await it.at_rest()

        assert (len(it.received), [call.outcome for call in it.gateway.finished]) == (1, ["client_gone"])


async def test_half_a_stream_is_counted_by_its_events() -> None:
    """What a client got before it left is on its bill: tokens are estimated by events where no usage came."""
    async with stack(speed=20) as it:
        async with visitor(it.gateway.port) as client:
            await client.send(post(chat(STORY, **LONG, stream=True)))
            await until(lambda: any(entry.tokens >= 20 for entry in it.received))
            client.leave()
        await it.at_rest()
        (settled,) = await it.gateway.settled(1)

        assert (settled.usage_source, settled.completion_tokens >= 15) == ("events", True)
        assert settled.completion_tokens <= it.received[0].tokens
        assert settled.prompt_tokens > 0


async def test_many_clients_that_leave_at_once_leave_nothing_behind() -> None:
    """Forty clients leave together, some streaming, some waiting, some sending: every slot and place comes back."""
    async with stack(speed=5) as it:
        async with asyncio.TaskGroup() as group:
            for index in range(40):
                group.create_task(come_and_go(it, index))
        await it.at_rest()

        assert {"client_gone"} == {call.outcome for call in it.gateway.finished}
        answer = await it.client.post("/v1/chat/completions", json=chat(max_tokens=1))
        assert answer.status_code == 200


async def come_and_go(it: Stack, index: int) -> None:
    """Send a long call, all or most of it, and leave after a moment of its own."""
    async with visitor(it.gateway.port) as client:
        data = post(chat(STORY if index % 2 else COUNTING, **LONG, stream=index % 3 > 0))
        await client.send(data if index % 5 else data[:-7])
        await asyncio.sleep(0.005 * index)
        client.leave()
