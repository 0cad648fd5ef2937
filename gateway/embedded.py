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
    """Say the pool's settings in the words of `draftlane engine`."""
    values: dict[str, object] = {
        "kind": pool.kind,
        "port": 0,
        "model": pool.served_model,
        "slots": pool.slots,
        "step-seconds": pool.step_seconds,
        "step-growth": pool.step_growth,
        "ttft-seconds": pool.ttft_seconds,
        "window": pool.window,
        "drafter": pool.drafter,
        "max-model-len": pool.max_model_len,
        "speed": embedded.speed,
        "seed": embedded.seed,
        "draft-quality": embedded.draft_quality,
        "default-temperature": embedded.default_temperature,
    }
    flags = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    switches = {"greedy-only": pool.greedy_only, "per-request-metrics": embedded.per_request_metrics}
    return [*flags, "--with-parent", *(f"--{name}" for name, on in switches.items() if on)]
