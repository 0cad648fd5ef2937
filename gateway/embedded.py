"""Embedded engines: the pools' look-alike engines that `draftlane serve` starts beside itself and stops again."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Self

from gateway.config import Config, Embedded, PoolConfig, Replica


class EmbeddedError(Exception):
    """An embedded engine did not start; the message has what it said."""


class EmbeddedEngines:
    """The engine processes of a configuration's embedded pools, alive inside the `with` block.

    The engines end with their standard input, so they do not outlive this process however it ends.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, config: Config) -> dict[str, tuple[str, ...]]:
        """Start the engines side by side; return the origins of each embedded pool's replicas.

        Raises:
            EmbeddedError: one did not come up.
        """
        starting = [
            (pool, self._spawn(pool, pool.embedded))
            for pool in config.pools
            if pool.embedded
            for _ in range(pool.embedded.replicas)
        ]
        urls: dict[str, tuple[str, ...]] = {}
        for pool, process in starting:
            line = process.stdout.readline() if process.stdout else ""
            try:
                url = json.loads(line)["url"]
            except (ValueError, KeyError):
                raise EmbeddedError(
                    f"the embedded engine of pool {pool.name!r} did not start: {line.strip()!r}"
                ) from None
            urls[pool.name] = (*urls.get(pool.name, ()), url)
        return urls

    def _spawn(self, pool: PoolConfig, embedded: Embedded) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "engine", *_flags(pool, embedded)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process


def with_urls(config: Config, urls: dict[str, tuple[str, ...]]) -> Config:
    """Return the configuration with the embedded pools' replicas filled in."""
    pools = tuple(
        pool.model_copy(update={"replicas": tuple(Replica(url=url) for url in urls[pool.name])})
        if pool.name in urls
        else pool
        for pool in config.pools
    )
    return config.model_copy(update={"pools": pools})


def _flags(pool: PoolConfig, embedded: Embedded) -> list[str]:
    flags = [
        "--kind",
        pool.kind,
        "--port",
        "0",
        "--with-parent",
        "--model",
        pool.served_model,
        "--slots",
        str(pool.slots),
    ]
    flags += ["--step-seconds", str(pool.step_seconds), "--step-growth", str(pool.step_growth)]
    flags += ["--ttft-seconds", str(pool.ttft_seconds), "--speed", str(embedded.speed), "--seed", str(embedded.seed)]
    if pool.window is not None and pool.speculative:
        flags += ["--window", str(pool.window)]
    if pool.max_model_len is not None:
        flags += ["--max-model-len", str(pool.max_model_len)]
    return flags
