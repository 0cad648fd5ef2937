"""`draftlane engine` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import httpx
import pytest
from engines import PLAIN, chat

from gateway.engine import EngineSettings
from gateway.engine.cli import _HELP


@contextmanager
def process(*flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run an engine; give its process and the line it printed when it listened."""
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", "--speed", "500", *flags]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    with started:
        try:
            assert started.stdout is not None
            yield started, json.loads(started.stdout.readline())
        finally:
            started.kill()


def story(url: str, **headers: str) -> str:
    """Return a greedy story of the engine."""
    body = chat("Tell me a story about rain.", max_tokens=60)
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, verify=PLAIN)
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def test_it_listens_and_ends_on_sigterm():
    """It prints one line when it listens, takes its key from the environment, and ends with status 0 on SIGTERM."""
    with process("--kind", "speculative", "--model", "demo", VLLM_API_KEY="secret") as (running, line):
        refused = httpx.get(f"{line['url']}/v1/models", verify=PLAIN)
        told = story(line["url"], authorization="Bearer secret")
        running.send_signal(signal.SIGTERM)

        assert running.wait(10) == 0
    assert {key: line[key] for key in ("event", "kind", "model")} == {
        "event": "listening",
        "kind": "speculative",
        "model": "demo",
    }
    assert refused.status_code == 401
    assert told


def test_answers_are_the_same_in_every_process_and_end_with_the_parent():
    """Answers follow from seed and prompt, not from the process; `--with-parent` ends an engine with its standard input."""
    with (
        process("--with-parent", PYTHONHASHSEED="1") as (first, one),
        process("--kind", "speculative", "--with-parent", PYTHONHASHSEED="2") as (second, two),
    ):
        assert story(one["url"]) == story(two["url"])
        for running in (first, second):
            assert running.stdin is not None
            running.stdin.close()
            assert running.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "status"),
    [(["--speed", "0"], 2), (["--kind", "magic"], 2), (["--draft-quality", "3"], 2), (["--host", "256.0.0.1"], 1)],
)
def test_wrong_use(flags: list[str], status: int):
    """Wrong flags end with status 2, an address that cannot be had with status 1, and a sentence that says why."""
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == status
    assert ended.stderr.strip()
    assert "Traceback" not in ended.stderr


def test_every_setting_is_explained():
    """Each setting is a flag, and each flag has its words."""
    assert set(_HELP) == {field.name for field in fields(EngineSettings)}
