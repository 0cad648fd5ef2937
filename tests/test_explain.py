"""Explanations: where a request would go and why, without calling an engine, over HTTP and from the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fakes import ANSWER, CHAT, ScriptedEngine, reply, scripted
from harness import ADMIN_KEY, Running, config_for, serving

from gateway.__main__ import main
from gateway.config import key_digest
from gateway.errors import BadRequest, NotFound
from gateway.explain import endpoint_of, explain

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHIPPED = str(Path(__file__).parent.parent / "config.toml")
TENANTS = [
    {"name": "tester", "key_sha256": [key_digest("sk-test")]},
    {"name": "careful", "key_sha256": [key_digest("sk-careful")], "policy": "baseline"},
]
SAID = {"model", "tenant", "score", "features", "pool", "reason", "detail", "threshold", "break_even", "options"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[Running, ScriptedEngine]]:
    """Serve two pools of one engine's kind; the speculative one has an engine that must never be asked."""
    async with scripted([reply(ANSWER)]) as engine, scripted([reply(ANSWER)]) as other:
        config = config_for({"spec": [engine.url], "base": [other.url]}, tenant=TENANTS)
        async with serving(config) as gateway:
            yield gateway, engine


async def ask(gateway: Running, body: Any, key: str = ADMIN_KEY, **params: str) -> httpx.Response:
    """Ask a running gateway for an explanation."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient() as client:
        headers = {"authorization": f"Bearer {key}"}
        return await client.post(gateway.url + "/draftlane/explain", content=content, headers=headers, params=params)


# Over HTTP


async def test_an_explanation_says_all_and_asks_nobody(served: tuple[Running, ScriptedEngine]) -> None:
    """Score, features, curve, break-even, threshold, reason and each pool's price, and no engine has seen anything."""
    gateway, engine = served
    answer = await ask(gateway, CHAT)

    assert answer.status_code == 200
    told = answer.json()
    assert told.keys() >= SAID
    assert (told["model"], told["tenant"], told["endpoint"]) == ("demo", "tester", "chat")
    assert {option["pool"] for option in told["options"]} == {"spec", "base"}
    assert told["pool"] in {"spec", "base"}
    assert 0 <= told["score"]["value"] <= 1
    assert engine.seen == []
    assert gateway.finished == []


async def test_constraints_and_policies_are_named(served: tuple[Running, ScriptedEngine]) -> None:
    """What decides is told: a parameter that the speculative pool lacks, or the tenant's policy."""
    gateway, _ = served
    constrained = (await ask(gateway, {**CHAT, "min_p": 0.1})).json()
    governed = (await ask(gateway, CHAT, tenant="careful")).json()

    assert (constrained["pool"], constrained["reason"], constrained["needs"]) == (
        "base",
        "constraint",
        ["min_p", "sampling"],
    )
    assert "min_p" in next(option["unfit"] for option in constrained["options"] if option["pool"] == "spec")
    assert (governed["pool"], governed["reason"], governed["tenant"]) == ("base", "policy", "careful")


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"model": "demo", "prompt": "x"}, "completions"),
        ({"model": "demo", "input": "x"}, "responses"),
        (CHAT, "chat"),
    ],
)
async def test_the_endpoint_is_seen_from_the_body(
    served: tuple[Running, ScriptedEngine], body: dict[str, Any], endpoint: str
) -> None:
    """The field that holds the prompt tells which endpoint a body is for."""
    assert (await ask(served[0], body)).json()["endpoint"] == endpoint


@pytest.mark.parametrize(
    ("body", "params", "status", "param"),
    [
        (b"{", {}, 400, "messages"),
        (b'{"model":"demo"}', {}, 400, "messages"),
        ({**CHAT, "model": "gpt-9"}, {}, 404, "model"),
        ({**CHAT, "n": "two"}, {}, 400, "n"),
        (CHAT, {"tenant": "stranger"}, 404, "tenant"),
    ],
)
async def test_what_cannot_be_explained(
    served: tuple[Running, ScriptedEngine], body: Any, params: dict[str, str], status: int, param: str
) -> None:
    """A body that would be refused is refused here in the same words."""
    answer = await ask(served[0], body, **params)

    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_call_that_no_pool_can_take_is_explained_by_its_error(served: tuple[Running, ScriptedEngine]) -> None:
    """With every pool switched off the answer says what the client would be told."""
    gateway, _ = served
    pools = list(gateway.gateway.pipeline.live.pools)
    for pool in pools:
        pool.enabled = False
    try:
        told = (await ask(gateway, CHAT)).json()
    finally:
        for pool in pools:
            pool.enabled = True

    assert told["error"]["status"] == 503
    assert "pool" not in told


async def test_operators_only(served: tuple[Running, ScriptedEngine]) -> None:
    """A tenant's key, or a wrong one, opens nothing of the operators'."""
    for key in ("sk-test", "wrong"):
        assert (await ask(served[0], CHAT, key)).status_code == 401


async def test_explaining_changes_nothing(served: tuple[Running, ScriptedEngine]) -> None:
    """The same question twice has the same answer, but for the numbers that move with time."""
    gateway, _ = served
    pipeline = gateway.gateway.pipeline
    body = json.dumps(CHAT).encode()
    first, second = (explain(pipeline, body) for _ in range(2))

    assert {name: first[name] for name in ("pool", "reason", "score")} == {
        name: second[name] for name in ("pool", "reason", "score")
    }
    with pytest.raises(NotFound):
        explain(pipeline, body, tenant="stranger")


async def test_a_body_without_a_prompt_has_no_endpoint() -> None:
    """Nothing is guessed where there is nothing to guess from."""
    with pytest.raises(BadRequest):
        endpoint_of(b"[]")


# From the command line


async def run(*words: str) -> int:
    """Run the command beside the event loop."""
    return await asyncio.to_thread(main, ["explain", *words])


async def test_a_prompt_is_explained_from_the_file_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a running gateway, and without starting an engine, the prediction and the choice are told in words."""
    assert await run("--config", SHIPPED, "Count from 1 to 100.", "--temperature", "0") == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert lines[:4] == ["score", "pool", "curve", "threshold"]
    assert lines.count("option") == 2
    assert "feature" in lines


async def test_programs_get_one_object() -> None:
    """With --json the whole explanation is one object; a body may come from standard input."""
    command = [sys.executable, "-m", "gateway", "explain", "--config", SHIPPED, "--json", "--body", "-"]
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=Path(SHIPPED).parent)
    out, _ = await child.communicate(json.dumps({**CHAT, "min_p": 0.2}).encode())

    assert child.returncode == 0
    assert json.loads(out)["reason"] == "constraint"


async def test_a_running_gateway_is_asked_for_what_it_has_learned(
    served: tuple[Running, ScriptedEngine],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --url the answer is the running gateway's, and no configuration file is needed."""
    monkeypatch.setenv("DRAFTLANE_ADMIN_KEY", ADMIN_KEY)
    body = tmp_path / "body.json"
    await asyncio.to_thread(body.write_text, json.dumps(CHAT))
    url = served[0].url
    nowhere = ("--config", str(tmp_path / "none.toml"))
    assert await run("--url", url, "--json", "--body", str(body), "--tenant", "careful", *nowhere) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "policy"
    assert await run("--url", url, "--model", "demo", "Hello", *nowhere) == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "PROMPT"),
        (["hi", "--body", "x"], 2, "PROMPT"),
        (["hi", "--config", "no-such-file.toml"], 1, "cannot be read"),
        (["hi", "--config", SHIPPED, "--model", "gpt-9"], 1, "does not exist"),
        (["hi", "--config", SHIPPED, "--tenant", "stranger"], 1, "no tenant"),
        (["--body", "no-such-file.json", "--config", SHIPPED], 1, "no-such-file.json"),
        (["hi", "--config", SHIPPED, "--url", "http://127.0.0.1:9"], 1, "draftlane explain:"),
    ],
)
async def test_what_goes_wrong_is_said(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong use is 2, a refusal or a missing file is 1, and each has a sentence instead of a traceback."""
    assert await run(*words) == status
    assert said in capsys.readouterr().err


async def test_another_server_is_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers something else is told from a gateway that refuses."""
    async with scripted([reply(b"<html>", 404)]) as server:
        assert await run("hi", "--model", "demo", "--url", server.url) == 1

    assert "does not answer as a gateway does (status 404)" in capsys.readouterr().err


async def test_a_wrong_admin_key_is_said(
    served: tuple[Running, ScriptedEngine], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's own words reach the terminal."""
    monkeypatch.setenv("DRAFTLANE_ADMIN_KEY", "wrong")

    assert await run("hi", "--model", "demo", "--url", served[0].url) == 1
    assert "admin key" in capsys.readouterr().err


async def test_a_call_that_would_be_refused_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that no pool can serve is explained by the refusal, in words too."""
    path = tmp_path / "config.toml"
    content = """
    [[model]]
    name = "demo"
    [[pool]]
    name = "spec"
    model = "demo"
    kind = "speculative"
    window = 7
    [pool.embedded]
    [[tenant]]
    name = "t"
    anonymous = true
    """
    await asyncio.to_thread(path.write_text, content)
    body = tmp_path / "body.json"
    await asyncio.to_thread(body.write_text, json.dumps({**CHAT, "min_p": 0.2}))

    assert await run("--config", str(path), "--body", str(body)) == 1
    assert "refused     400" in capsys.readouterr().out
