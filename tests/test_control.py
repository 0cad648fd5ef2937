"""The control plane's way to engines: whole answers, errors that are told apart, connections that are kept and let go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from fakes import CLOSE, RESET, SILENCE, Script, ScriptedEngine, chunk, reply, scripted
from harness import config_for

from gateway.control import Control
from gateway.pools import Pools
from gateway.reply import Broken

PAGE = b"vllm:num_requests_running 3\n"
Get = Callable[..., Awaitable[tuple[int, bytes]]]


@asynccontextmanager
async def asking(*scripts: Script) -> AsyncIterator[tuple[Get, ScriptedEngine]]:
    """Ask an engine that plays these scripts."""
    async with scripted(*scripts) as engine:
        pools = Pools(config_for({"base": [engine.url]}), {})
        control = Control(pools)

        async def get(path: str = "/page", seconds: float = 5.0) -> tuple[int, bytes]:
            return await control.get(pools["base"], pools["base"].replicas[0], path, seconds)

        yield get, engine
        control.close()


async def test_the_answer_is_whole() -> None:
    """Status and body arrive however the body is framed, and the connection is kept."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with asking(
        [reply(PAGE, 200)],
        [head, chunk(PAGE[:9]), 0.01, chunk(PAGE[9:]), b"0\r\n\r\n"],
        [reply(b"", 503)],
    ) as (get, engine):
        answers = [await get("/page?a=b") for _ in range(3)]

    assert answers == [(200, PAGE), (200, PAGE), (503, b"")]
    assert {(seen.method, seen.target) for seen in engine.seen} == {("GET", "/page?a=b")}
    assert {seen.connection for seen in engine.seen} == {1}
    assert all(seen.header("host") == engine.url.removeprefix("http://") for seen in engine.seen)


async def test_a_kept_connection_that_went_stale_is_no_failure() -> None:
    """An engine that closed a kept connection meanwhile is asked again on a new one, once."""
    async with asking([reply(PAGE, 200)], [CLOSE], [reply(PAGE, 200)], [CLOSE], [CLOSE]) as (get, engine):
        assert [await get(), await get()] == [(200, PAGE)] * 2
        assert len(engine.seen) == 3
        with pytest.raises(Broken):
            await get()
        assert len(engine.seen) == 5


@pytest.mark.parametrize(
    "fault", [[RESET], [CLOSE], [b"garbage\r\n\r\n"], [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", CLOSE]]
)
async def test_what_breaks_is_an_error(fault: Script) -> None:
    """A connection that fails, an answer that is none, and half of one."""
    async with asking(fault) as (get, _):
        with pytest.raises(Broken):
            await get()


@pytest.mark.parametrize("before", [[], [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]])
async def test_silence_is_a_timeout(before: Script) -> None:
    """An engine that says nothing, or stops in the midst, is given up after the time that was set, and asked anew later."""
    async with asking([*before, SILENCE], [reply(PAGE, 200)]) as (get, _):
        with pytest.raises(TimeoutError):
            await get(seconds=0.05)
        assert await get() == (200, PAGE)


async def test_nobody_there_is_an_error() -> None:
    """Where no one listens, the caller is told at once."""
    pools = Pools(config_for({"base": ["http://127.0.0.1:9"]}), {})
    with pytest.raises(Broken):
        await Control(pools).get(pools["base"], pools["base"].replicas[0], "/health", 5.0)


async def test_engines_that_are_gone_are_let_go() -> None:
    """After a reload nothing is kept for engines that it took away."""
    async with scripted([reply(PAGE, 200)]) as old, scripted([reply(PAGE, 200)]) as new:
        pools = Pools(config_for({"base": [old.url]}), {})
        control = Control(pools)
        await control.get(pools["base"], pools["base"].replicas[0], "/page", 5.0)
        pools.apply(config_for({"base": [new.url]}), {})
        await control.get(pools["base"], pools["base"].replicas[0], "/page", 5.0)

        assert [url for url, _ in control._clients] == [new.url]
        control.close()
