"""Calls in lockstep: a step by all that are ready before the next one, no wait alone, no pool planned past its room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from fakes import ANSWER, CHAT, Visitor, post, reply, scripted, visitor
from harness import config_for, serving, until

from gateway import lockstep
from gateway.engine import EngineSettings, serve
from gateway.lockstep import Burst, Lockstep


def test_a_call_alone_waits_for_nobody() -> None:
    """Where nothing else is ready, the next step is taken at once, without a turn of the event loop."""
    others = Lockstep()

    assert list(others.__await__()) == []
    assert others.ready == 0


async def test_all_take_a_step_before_any_takes_the_next() -> None:
    """The steps of calls that are ready together alternate by step, not by call."""
    others, taken = Lockstep(), list[str]()

    async def call(name: str) -> None:
        others.ready -= 1  # it was, until it ran
        for step in (1, 2, 3):
            taken.append(f"{name}{step}")
            await others

    others.ready = 3
    await asyncio.gather(*map(call, "abc"))

    assert taken == ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"]
    assert others.ready == 0


async def test_a_call_that_is_cancelled_between_steps_is_not_waited_for() -> None:
    """Its client leaves while others have their turn: nobody takes it for ready any more."""
    others = Lockstep()
    others.ready = 1

    async def call() -> None:
        await others

    waiting = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert others.ready == 2
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert others.ready == 1


class Sheet(asyncio.WriteTransport):
    """A transport that writes its name and what it is given on a common sheet."""

    def __init__(self, name: str, sheet: list[str]) -> None:
        super().__init__()
        self._name, self._sheet, self._closed = name, sheet, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note it."""
        self._sheet.append(self._name + bytes(data).decode())

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True


async def test_writes_leave_in_their_order_in_the_next_turn() -> None:
    """What several calls write waits until all that were ready have had their turn, and then leaves in order."""
    burst, sheet, loop = Burst(), list[str](), asyncio.get_running_loop()
    one, two = Sheet("one ", sheet), Sheet("two ", sheet)

    burst.add(loop, one, b"a")
    burst.add(loop, two, b"b")
    burst.add(loop, one, b"c")
    assert sheet == []
    await asyncio.sleep(0)
    assert sheet == ["one a", "two b", "one c"]

    burst.add(loop, two, b"d")
    await asyncio.sleep(0)
    assert sheet[3:] == ["two d"]


async def test_a_burst_has_a_bound_and_leaves_when_it_is_told_to() -> None:
    """At its bound it leaves at once, as it does when asked to; nothing is written twice."""
    burst, sheet, loop = Burst(), list[str](), asyncio.get_running_loop()
    one = Sheet("", sheet)

    for number in range(Burst.MOST + 1):
        burst.add(loop, one, b"%d" % number)
    assert len(sheet) == Burst.MOST
    burst.leave()
    assert sheet == [str(number) for number in range(Burst.MOST + 1)]
    await asyncio.sleep(0)
    assert len(sheet) == Burst.MOST + 1


async def test_what_waits_for_a_closed_transport_is_dropped() -> None:
    """A client that has left in between keeps nobody else's bytes back."""
    burst, sheet, loop = Burst(), list[str](), asyncio.get_running_loop()
    gone, there = Sheet("gone ", sheet), Sheet("there ", sheet)

    burst.add(loop, gone, b"a")
    burst.add(loop, there, b"b")
    gone.close()
    await asyncio.sleep(0)

    assert sheet == ["there b"]


def test_a_loop_that_ended_holds_nothing_back() -> None:
    """What waited in a loop that has ended is forgotten, and the next loop's writes leave."""
    burst, sheet = Burst(), list[str]()

    async def add(name: str, *, turn: bool) -> None:
        burst.add(asyncio.get_running_loop(), Sheet(name, sheet), b"")
        if turn:
            await asyncio.sleep(0)

    ended = asyncio.new_event_loop()
    burst.add(ended, Sheet("early", sheet), b"")  # never runs
    ended.close()
    asyncio.run(add("late", turn=True))

    assert sheet == ["late"]


class Highest:
    """The highest value of a number, looked at in every turn of the event loop until it is asked for."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._highest = 0
        self._looking = asyncio.create_task(self._look(look))

    async def _look(self, look: Callable[[], int]) -> None:
        while True:
            self._highest = max(self._highest, look())
            await asyncio.sleep(0)

    async def seen(self) -> int:
        """Stop looking; return the highest value."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        return self._highest


async def _known(stack: AsyncExitStack, port: int, count: int) -> list[Visitor]:
    """Open connections and have one answer on each, so that the next requests find them served."""
    guests = [await stack.enter_async_context(visitor(port)) for _ in range(count)]
    for guest in guests:
        await guest.send(post(CHAT))
        assert (await guest.answer()).status == 200
    return guests


async def test_calls_that_come_at_once_go_in_lockstep_and_leave_nothing_ready() -> None:
    """Requests that arrive together on kept connections are ready together; answered or left, none stays counted."""
    async with scripted([reply(ANSWER)]) as engine, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving(config_for({"base": [engine.url]})))
        guests = await _known(stack, gateway.port, 8)
        ready = Highest(lambda: lockstep.OTHERS.ready)
        for _ in range(5):
            for guest in guests:
                guest.writer.write(post(CHAT))
            assert [(await guest.answer()).status for guest in guests] == [200] * 8
        for guest in guests:
            guest.writer.write(post(CHAT))
        guests[0].leave()
        guests[5].leave()
        await gateway.settled(8 * 6 + 6)
        await until(lambda: gateway.gateway.api.running == 0)

    assert 2 <= await ready.seen() <= 8
    assert lockstep.OTHERS.ready == 0
    assert {call.outcome for call in gateway.finished} <= {"ok", "client_gone"}


async def test_calls_that_come_at_once_are_sent_and_answered_in_bursts() -> None:
    """Requests to engines and answers to clients of calls that run together leave together, each whole and once."""
    async with scripted([reply(ANSWER)]) as engine, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving(config_for({"base": [engine.url]})))
        guests = await _known(stack, gateway.port, 8)
        waiting = Highest(lambda: len(lockstep.BURST.waiting))
        for _ in range(5):
            for guest in guests:
                guest.writer.write(post(CHAT))
            answers = [await guest.answer() for guest in guests]
            assert [(answer.status, answer.body) for answer in answers] == [(200, answers[0].body)] * 8
        await gateway.settled(8 * 6)

    assert await waiting.seen() > 1
    assert lockstep.BURST.waiting == []
    assert [call.outcome for call in gateway.finished] == ["ok"] * 48


async def test_calls_that_plan_together_do_not_overfill_a_pool() -> None:
    """Twelve calls that come at once meet an engine of two slots: each is planned with those before it under way."""
    pools = {"plain": {"slots": 2}}
    async with serve(EngineSettings(slots=2, speed=50)) as engine, AsyncExitStack() as stack:
        config = config_for({"plain": [engine.url]}, pools=pools, limits={"queue_ahead": 0.0})
        gateway = await stack.enter_async_context(serving(config))
        guests = await _known(stack, gateway.port, 12)
        pool = gateway.gateway.pipeline.live.pools["plain"]
        busy = Highest(lambda: max(pool.running, engine.batch.running + engine.batch.waiting))
        for guest in guests:
            guest.writer.write(post({**CHAT, "max_tokens": 8}))
        answers = [await guest.answer() for guest in guests]

    assert [answer.status for answer in answers] == [200] * 12
    assert await busy.seen() == 2
