"""Engines that a sweep starts itself, one after another: by any command, or in the lab.

A command is given what to serve by `{window}`, `{draft}` and `{port}` in it, and is up when its /health answers. It runs in a
process group of its own, which is ended with the block that it runs for.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import httpx

from gateway.measure.lab.processes import free_port, stop, tail
from gateway.measure.windows.candidate import Candidate

Starter = Callable[[Candidate], AbstractContextManager[str]]
STOP_SECONDS: Final = 30.0
_POLL: Final = 0.2
_LINES: Final = 8  # of an engine's log that are told when it ends


class StartError(Exception):
    """An engine did not come up; the message has the end of its log."""


def by_command(template: str, *, baseline: str | None = None, seconds: float = 1800.0) -> Starter:
    """Return what starts engines by a command; `baseline` is the one without speculation.

    Raises:
        StartError: a command cannot be split into words.
    """
    commands = {True: _words(template), False: _words(baseline) if baseline is not None else []}

    @contextmanager
    def start(candidate: Candidate) -> Iterator[str]:
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="draftlane-") as folder:
            log = Path(folder) / "log"
            process = _launch(_filled(commands[candidate.window > 0], candidate, port), log)
            try:
                url = f"http://127.0.0.1:{port}"
                _await(process, url, candidate, log, seconds)
                yield url
            finally:
                stop(process.pid, seconds=STOP_SECONDS, reap=process)

    return start


def by_lab() -> Starter:
    """Return what starts the lab's engines: prompt lookup, or the drafts that `make lab-draft` distilled."""

    @contextmanager
    def start(candidate: Candidate) -> Iterator[str]:
        from gateway.measure.lab import engines
        from gateway.measure.lab.errors import LabError
        from gateway.measure.lab.place import Place

        config: dict[str, object] | None = None
        if candidate.window and candidate.draft:
            model = Path(candidate.draft) if Path(candidate.draft).exists() else Place.usual().models / candidate.draft
            config = {"method": "draft_model", "model": str(model)}
        elif candidate.window:
            config = dict(engines.NGRAM)
        if config is not None:
            config["num_speculative_tokens"] = candidate.window
        name = candidate.label.replace("/", "-").replace(":", "-")
        try:
            with engines.start(engines.EngineSpec(name=name, speculative_config=config)) as url:
                yield url
        except LabError as error:
            raise StartError(str(error)) from None

    return start


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise StartError(f"--start: {error}: {command}") from None


def _filled(words: list[str], candidate: Candidate, port: int) -> list[str]:
    values = {"{window}": str(candidate.window), "{draft}": candidate.draft, "{port}": str(port)}
    for name, value in values.items():  # not str.format: commands carry JSON, whose braces mean themselves
        words = [word.replace(name, value) for word in words]
    return words


def _launch(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with log.open("wb") as written:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
            )
    except (OSError, IndexError) as error:
        raise StartError(f"{' '.join(words)}: {getattr(error, 'strerror', None) or error}") from None


def _await(process: subprocess.Popen[bytes], url: str, candidate: Candidate, log: Path, seconds: float) -> None:
    """Wait until the engine is well."""
    until = time.monotonic() + seconds
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while not _well(client, url):
            if process.poll() is not None:
                end = tail(log, _LINES).rpartition("\n")[0]
                told = f":\n{end}" if end else " and said nothing"
                raise StartError(f"{candidate}: the engine has ended with {process.returncode}{told}")
            if time.monotonic() > until:
                raise StartError(f"{candidate}: no answer from {url}/health in {seconds:.0f} s:\n{tail(log, _LINES)}")
            time.sleep(_POLL)


def _well(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url + "/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
