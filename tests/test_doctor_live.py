"""Running engines visited: what they are, what they are taken for, and whether two of them are one target."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import PLAIN, engine
from harness import config_for, serving

from gateway.__main__ import main
from gateway.engine import Running
from gateway.measure.doctor.agreement import agree
from gateway.measure.doctor.finding import Checkup
from gateway.measure.doctor.live import Believed, judge
from gateway.measure.doctor.visit import Spoken, Visit, spoken, visit


async def visited(url: str, **options: Any) -> Visit:
    """Visit an engine."""
    async with httpx.AsyncClient(verify=PLAIN, timeout=30) as client:
        return await visit(client, url, **options)


def told(checkup: Checkup, severity: str) -> str:
    """Return all findings of one severity as text."""
    return "\n".join(str(found) for found in checkup.findings if found.severity == severity)


async def test_a_speculative_engine_is_what_it_says() -> None:
    """Version, length, window and its meaning, live counters, sampling, and what it refuses."""
    async with engine(kind="speculative", per_request_metrics=True) as (running, _):
        seen = await visited(running.url)
    found = judge(seen, Believed(window=7))

    assert found.ok
    assert told(found, "warn") == ""
    assert found.facts["window"] == 7
    assert found.facts["most_tokens_per_event"] == 8
    assert found.facts["greedy_only"] is False
    assert found.facts["max_model_len"] == 32768
    assert 1.0 < found.facts["tokens_per_event"] <= 8.0
    assert "up to 8 tokens a step, as in vLLM" in told(found, "ok")
    assert "speculation counters live" in told(found, "ok")
    assert "logit_bias, min_p" in told(found, "note")


async def test_baseline_reads_one() -> None:
    """The control: tokens per event of an engine without speculation are 1.00."""
    async with engine() as (running, _):
        found = judge(await visited(running.url), Believed(speculative=False))

    assert found.ok
    assert found.facts["tokens_per_event"] == pytest.approx(1.0)
    assert found.facts["window"] is None


@pytest.mark.parametrize(
    ("settings", "believed", "severity", "words"),
    [
        ({"kind": "speculative"}, Believed(speculative=False), "fix", "of an engine without speculation"),
        ({"kind": "speculative"}, Believed(window=3), "fix", "are up to 8, over a window of 3 and one"),
        ({}, Believed(speculative=True, window=7), "warn", "nothing that was drafted was accepted"),
        (
            {"kind": "speculative", "spec_counters": False},
            Believed(window=7, speculative=True),
            "note",
            "absent or zero",
        ),
        ({"kind": "speculative", "greedy_only": True}, Believed(greedy_only=False), "fix", "temperature is ignored"),
        ({"kind": "speculative", "greedy_only": True}, Believed(), "note", "set greedy_only = true"),
        ({"kind": "speculative"}, Believed(greedy_only=True), "warn", "temperature is heard"),
        ({"max_model_len": 2048}, Believed(max_model_len=4096), "fix", "is 2048, and 4096 is believed"),
        ({}, Believed(version="0.9.1"), "fix", "not 0.9.1"),
        ({"metrics_style": "v0", "kind": "speculative"}, Believed(), "ok", "speculation counters live"),
    ],
)
async def test_what_is_believed_is_checked(
    settings: dict[str, Any], believed: Believed, severity: str, words: str
) -> None:
    """Every setting that does not hold is found by asking the engine itself."""
    async with engine(**settings) as (running, _):
        found = judge(await visited(running.url), believed)

    assert words in told(found, severity)


async def test_merged_events_of_baseline_are_found() -> None:
    """An engine that merges steps into events would be read as one that speculates."""
    async with engine(stream_interval=4) as (running, _):
        found = judge(await visited(running.url), Believed(speculative=False))

    assert "--stream-interval merges events" in told(found, "fix")


async def test_engines_of_one_target_agree() -> None:
    """The same tokens and the same answers on both kinds."""
    async with engine(kind="speculative") as (fast, _), engine() as (plain, _):
        found = agree(await visited(fast.url), await visited(plain.url))

    assert found.ok
    assert found.facts["equal"] == found.facts["prompts"] == 6


async def test_engines_of_two_targets_do_not() -> None:
    """Other weights give other answers from the start."""
    async with engine(kind="speculative") as (fast, _), engine(seed=5) as (plain, _):
        found = agree(await visited(fast.url), await visited(plain.url))

    assert "part at their start" in told(found, "fix")


def test_late_differences_are_rounding() -> None:
    """Answers that part late are told, and left to judge; other tokens for a text, and a shorter length, are told too."""
    answers = tuple(Spoken(text="word " * 20, tokens=20, events=20) for _ in range(6))
    late = (replace(answers[0], text="word " * 18 + "other"), *answers[1:])
    one = Visit(url="a", models={"m": 1024}, model="m", spoken=answers, token_ids=(1, 2))
    other = Visit(url="b", models={"m": 2048}, model="m", spoken=late, token_ids=(1, 3))
    found = agree(one, other)

    assert "the same for 5 of 6 prompts" in told(found, "warn")
    assert "other tokens on each engine" in told(found, "fix")
    assert "is 1024 beside 2048" in told(found, "note")
    assert not agree(one, Visit(url="c", trouble="gone")).ok


def test_windows_of_nxd_inference_are_told_by_their_steps() -> None:
    """Steps that are often k tokens and never more mean that k is the most."""
    answer = Spoken(text="1 2 3", tokens=29, events=5, per_event=(7, 7, 7, 7))
    found = judge(Visit(url="a", models={"m": 8}, model="m", spoken=(answer,)), Believed(window=7, speculative=True))

    assert "up to 7 tokens a step here, as in NxD Inference" in told(found, "note")


def test_streams_are_read_with_and_without_usage() -> None:
    """Tokens of each event where usage comes along, events alone where it does not, and an engine's own error."""
    head = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'

    def event(text: str, total: int | None = None) -> str:
        usage = "" if total is None else f', "usage": {{"completion_tokens": {total}}}'
        return f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]{usage}}}\n\n'

    end = 'data: {"choices": [], "usage": {"completion_tokens": 6}}\n\ndata: [DONE]\n\n'
    telling = spoken((head + event("a", 1) + event("bc", 4) + event("d", 6) + end).encode())
    silent = spoken((head + event("a") + event("bc") + event("d") + end).encode())
    broken = spoken((event("a", 1) + 'data: {"error": {"message": "out of memory"}}\n\n').encode())

    assert (telling.text, telling.tokens, telling.events, telling.per_event) == ("abcd", 6, 3, (3, 2))
    assert (silent.text, silent.tokens, silent.per_event) == ("abcd", 6, ())
    assert "out of memory" in broken.error


async def run(*words: str) -> int:
    """Run the command where no event loop runs yet."""
    return await asyncio.to_thread(main, ["doctor", *words])


async def test_the_command_visits(capsys: pytest.CaptureFixture[str]) -> None:
    """0 for engines that agree, 1 when one is not there or fails, 2 for what is no address or key."""
    async with engine(kind="speculative") as (fast, _), engine(api_key="sesame") as (plain, _):
        assert await run("live", fast.url, "--json") == 0
        assert json.loads(capsys.readouterr().out)["ok"]
        assert await run("live", fast.url, "--baseline", plain.url) == 1  # it asks for a key
        assert "HTTP 401" in capsys.readouterr().out
        assert await run("live", fast.url, "--model", "other") == 1
        assert "is not among demo" in capsys.readouterr().out
    assert await run("live", fast.url, "--timeout", "5") == 1
    assert "cannot be used" in capsys.readouterr().out
    assert await run("live", "localhost") == 2
    assert await run("live", fast.url, "--key-env", "DRAFTLANE_NO_SUCH_KEY") == 2


async def test_a_gateway_is_no_engine() -> None:
    """Visited by its address, a gateway is told for what it is."""
    async with engine() as (plain, _), serving(config_for({"base": [plain.url]}, tenant=ANYONE)) as gateway:
        found = judge(await visited(gateway.url), Believed())

    assert "is a Draftlane gateway" in told(found, "warn")


ANYONE = [{"name": "anyone", "anonymous": True}]


def configuration(path: Path, fast: str, plain: str, **extra: str) -> str:
    """Write a configuration of two pools."""
    more = "\n".join(f"{name} = {value}" for name, value in extra.items())
    (path / "config.toml").write_text(
        f"""
[[model]]
name = "demo"
[[pool]]
name = "fast"
model = "demo"
kind = "speculative"
window = 7
{more}
[[pool.replica]]
url = "{fast}"
[[pool]]
name = "plain"
model = "demo"
kind = "baseline"
[[pool.replica]]
url = "{plain}"
[[tenant]]
name = "anyone"
anonymous = true
"""
    )
    return str(path / "config.toml")


async def both(path: Path, fast: Running, plain: Running, **extra: str) -> int:
    """Run the doctor on a configuration of two engines."""
    return await run("--config", configuration(path, fast.url, plain.url, **extra))


async def test_a_configuration_is_looked_at_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every engine is visited with what its pool says of it, pools of a model are compared, folders too."""
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": 8 if name == "draft" else 16}))
    folders = {name: f'"{tmp_path / name}"' for name in ("target", "draft")}
    async with engine(kind="speculative") as (fast, _), engine() as (plain, _):
        assert await both(tmp_path, fast, plain) == 0
        assert "the same on both for 6 of 6" in capsys.readouterr().out
        assert await both(tmp_path, fast, plain, supports='["min_p", "sampling"]', greedy_only="true") == 1
        said = capsys.readouterr().out
        assert "lists min_p, which the engine refuses" in said
        assert "set greedy_only = false" in said
        assert await both(tmp_path, fast, plain, **folders, engine='"vllm-0.9.1"') == 1
        said = capsys.readouterr().out
        assert "config.vocab_size: is 16 of the target and 8" in said
        assert "not 0.9.1" in said
        assert await both(tmp_path, fast, plain, target='"Large-8B"', draft='"Small-1B"') == 0
        assert "are no folders here" in capsys.readouterr().out


async def test_a_configuration_that_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems of the file itself are what to fix; an embedded pool has nothing to look at."""
    assert await run("--config", configuration(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9")) == 1
    assert "belongs to one pool" in capsys.readouterr().out
    assert await run("--config", str(Path(__file__).parent.parent / "config.toml")) == 0
    assert "are embedded" in capsys.readouterr().out
