"""Reload: a bad file changes nothing and says why, a good one keeps what was learned, counted and running."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import (
    ANSWER,
    CHAT,
    CHAT_EVENTS,
    DONE,
    END,
    SSE_HEAD,
    STREAM,
    Answer,
    Script,
    ScriptedEngine,
    Visitor,
    chunk,
    post,
    reply,
    scripted,
    visitor,
)
from harness import ADMIN_KEY, KEY, Running, config_for, serving, until

from gateway.config import key_digest, load

GOOD = """
[server]
port = 0
log = "off"
drain_seconds = 1.0
admin_key_sha256 = "{admin}"
[limits]
idle_seconds = 30.0
[[model]]
name = "demo"
[[pool]]
name = "base"
model = "demo"
kind = "baseline"
price_per_hour = 1.0
slots = 4
[[pool.replica]]
url = "{url}"
[[tenant]]
name = "tester"
key_sha256 = ["{key}"]
requests_per_minute = 100
"""


@dataclass(slots=True)
class World:
    """A gateway with its file, before one engine."""

    gateway: Running
    engine: ScriptedEngine
    path: Path
    good: str

    async def write(self, text: str) -> None:
        """Replace the file."""
        await asyncio.to_thread(self.path.write_text, text)

    async def changed(self, old: str, new: str) -> httpx.Response:
        """Change the good file in one place and reload it."""
        assert self.good.count(old) == 1
        await self.write(self.good.replace(old, new))
        return await self.reload()

    async def reload(self) -> httpx.Response:
        """Ask for a reload as an operator does."""
        async with httpx.AsyncClient() as client:
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            return await client.post(self.gateway.url + "/draftlane/reload", headers=headers)

    async def reloads(self) -> dict[str, float]:
        """Return what the metrics say of reloads, by result."""
        async with httpx.AsyncClient() as client:
            page = (await client.get(self.gateway.url + "/metrics")).text
        found = re.findall(r'(?m)^draftlane_config_reloads_total\{result="(\w+)"\} (\S+)', page)
        return {result: float(count) for result, count in found}

    async def ask(self, key: str = KEY) -> Answer:
        """Make a call."""
        async with visitor(self.gateway.port) as guest:
            await guest.send(post(CHAT, authorization=f"Bearer {key}"))
            return await guest.answer()

    @property
    def live(self) -> Any:
        """What calls meet now."""
        return self.gateway.gateway.pipeline.live


@asynccontextmanager
async def reloading(path: Path, *scripts: Script) -> AsyncIterator[World]:
    """Serve a gateway from a file until the block ends."""
    async with scripted(*(scripts or ([reply(ANSWER)],))) as engine:
        good = GOOD.format(url=engine.url, key=key_digest(KEY), admin=key_digest(ADMIN_KEY))
        await asyncio.to_thread(path.write_text, good)
        async with serving(load(path), path=path) as gateway:
            yield World(gateway, engine, path, good)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


BAD: dict[str, tuple[str, str, str]] = {
    "no TOML": ("[limits]", "[limits", "is not valid TOML"),
    "a misspelt key": ("slots = 4", "slot = 4", "pool[0].slot: "),
    "a wrong type": ("slots = 4", 'slots = "four"', "pool[0].slots: "),
    "a broken rule": ('model = "demo"', 'model = "other"', "pool[0].model: "),
    "nobody to call": ('key_sha256 = ["', '# key_sha256 = ["', "tenant[0]: "),
    "another port": ("port = 0", "port = 8081", "server.port: changing it needs a restart"),
    "more workers": ("port = 0", "port = 0\nworkers = 2", "server.workers: changing it needs a restart"),
    "another drain": (
        "drain_seconds = 1.0",
        "drain_seconds = 9.0",
        "server.drain_seconds: changing it needs a restart",
    ),
    "other heads": ("[limits]", "[limits]\nheader_seconds = 1.0", "limits.header_seconds: changing it needs a restart"),
    "other clients' certificates": (
        "port = 0",
        'port = 0\ntls_cert = "a.pem"\ntls_key = "b.pem"\ntls_client_ca = "c.pem"',
        "server.tls_client_ca: changing it needs a restart",
    ),
    "another seed": ("[limits]", "[routing]\nseed = 3\n[limits]", "routing.seed: changing it needs a restart"),
    "another store": (
        "[limits]",
        '[store]\nkind = "sqlite"\npath = "x.db"\n[limits]',
        "store: changing it needs a restart",
    ),
}


async def test_a_bad_file_changes_nothing_and_says_why(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of problem is told in the response, the log and a metric, and the gateway serves on as before."""
    async with reloading(path) as world:
        before = world.live.config, world.live.pools["base"], world.live.tenants.identify(HEADERS)
        for count, (old, new, problem) in enumerate(BAD.values(), 1):
            answer = await world.changed(old, new)

            assert answer.status_code == 422
            told = answer.json()
            assert told["status"] == "refused"
            assert any(problem in line for line in told["problems"]), told
            assert problem in caplog.text
            assert await world.reloads() == {"ok": 0.0, "refused": float(count)}
        assert (world.live.config, world.live.pools["base"], world.live.tenants.identify(HEADERS)) == before
        assert (await world.ask()).json == ANSWER
        await asyncio.to_thread(path.unlink)
        assert "cannot be read" in (await world.reload()).text


HEADERS = [(b"authorization", b"Bearer " + KEY.encode())]


async def test_all_problems_are_told_at_once(path: Path) -> None:
    """An operator needs one look, not one reload for each mistake."""
    async with reloading(path) as world:
        await world.write(
            world.good.replace("slots = 4", "slot = 4\nwindow = 3").replace("idle_seconds", "idel_seconds")
        )
        problems = (await world.reload()).json()["problems"]

        assert len(problems) == 3
        assert any('did you mean "idle_seconds"' in problem for problem in problems)


async def test_a_good_file_is_in_force_at_once(path: Path) -> None:
    """New tenants and limits hold for the next call; keys that are gone no longer open anything."""
    async with reloading(path) as world:
        digest = world.live.config.digest
        answer = await world.changed(key_digest(KEY), key_digest("sk-new"))

        assert answer.status_code == 200
        assert answer.json() == {"status": "ok", "config": world.live.config.digest}
        assert answer.json()["config"] != digest
        assert (await world.ask(KEY)).status == 401
        assert (await world.ask("sk-new")).json == ANSWER
        assert await world.reloads() == {"ok": 1.0, "refused": 0.0}


async def test_what_was_learned_and_counted_stays(path: Path) -> None:
    """Step times, replicas with their leases and breakers, tenants' counts and metrics outlive a reload of all else."""
    async with reloading(path) as world:
        assert (await world.ask()).json == ANSWER
        pool = world.live.pools["base"]
        pool.saw_step(1.0, 1)
        pool.replicas[0].breaker.failure(0.0, 0.0)
        learned = pool.load_factor, pool.replicas[0], repr(pool.replicas[0].breaker)
        curves, metrics = world.live.curves, world.gateway.gateway.metrics
        assert (await world.changed("slots = 4", "slots = 8")).status_code == 200
        after = world.live.pools["base"]

        assert after.config.slots == 8
        assert (after.load_factor, after.replicas[0], repr(after.replicas[0].breaker)) == learned
        assert world.live.curves is curves
        assert world.gateway.gateway.metrics is metrics
        answer = await world.ask()
        assert answer.header("x-ratelimit-remaining-requests") == "98"
        assert world.engine.seen[0].connection == world.engine.seen[1].connection


async def test_sighup_reloads(path: Path) -> None:
    """The signal that supervisors send does what the operators' call does."""
    async with reloading(path) as world:
        await world.write(world.good.replace("slots = 4", "slots = 5"))
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: world.live.pools["base"].config.slots == 5)
        await world.write("nonsense")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(5):
            while (await world.reloads())["refused"] != 1:
                await asyncio.sleep(0.01)

        assert world.live.pools["base"].config.slots == 5
        assert (await world.ask()).json == ANSWER


async def test_a_running_stream_survives_the_end_of_its_replica(path: Path) -> None:
    """A reload that takes a replica away lets its streams end whole, sends new calls elsewhere and then lets go of it."""
    ending: Script = [SSE_HEAD, *map(chunk, CHAT_EVENTS[:2]), 0.3, *map(chunk, [*CHAT_EVENTS[2:], DONE]), END]
    async with reloading(path, ending) as world, scripted([reply(ANSWER)]) as other:
        guest = Visitor(*await asyncio.open_connection("127.0.0.1", world.gateway.port))
        await guest.send(post(STREAM))
        await guest.head()
        await guest.until(CHAT_EVENTS[1])
        old = world.live.pools["base"].replicas[0]
        assert (await world.changed(world.engine.url, other.url)).status_code == 200
        assert (await world.ask()).json == ANSWER
        assert len(other.seen) == 1

        assert await guest.until(DONE) == b"".join([*CHAT_EVENTS[2:], DONE])
        assert await guest.chunk() == b""
        guest.leave()
        records = await world.gateway.settled(2)
        assert {record.outcome for record in records} == {"ok"}
        assert old.running == 0
        await until(lambda: "open=0 idle=0" in repr(old.client))


async def test_reloads_under_load_lose_no_call(path: Path) -> None:
    """Calls before, during and after many reloads, good and bad, all get their answer."""
    async with reloading(path, [0.01, reply(ANSWER)]) as world:

        async def keep_asking() -> list[int]:
            return [(await world.ask()).status for _ in range(8)]

        callers = [asyncio.create_task(keep_asking()) for _ in range(6)]
        for slots in range(1, 9):
            await world.changed("slots = 4", f"slots = {slots}")
            await world.changed("slots = 4", "slots = 0")
        statuses = await asyncio.gather(*callers)

        assert {status for found in statuses for status in found} == {200}
        assert world.live.pools["base"].config.slots == 8
        assert await world.reloads() == {"ok": 8.0, "refused": 8.0}


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    """A gateway that was made of an object says so."""
    async with scripted([reply(ANSWER)]) as engine, serving(config_for({"base": [engine.url]})) as gateway:
        async with httpx.AsyncClient() as client:
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            answer = await client.post(gateway.url + "/draftlane/reload", headers=headers)
            assert (answer.status_code, answer.json()["problems"]) == (
                422,
                ["there is no configuration file to reload"],
            )
            answer = await client.post(gateway.url + "/draftlane/reload")

        assert answer.status_code == 401
        assert json.loads(answer.text)["error"]["code"] == "invalid_admin_key"
