"""Real engines for a while: `with start(EngineSpec(name="ngram", speculative_config=NGRAM)) as url: …`.

An engine belongs to the process that started it and ends with it, whatever happens. Only this machine can reach it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import httpx

from gateway.measure.lab import dictated, plugin
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.processes import free_port, stop, tail

# Prompt lookup as the lab tries it: an accepted guess brings up to five tokens more, a step without one costs next to nothing.
NGRAM: Final[Mapping[str, object]] = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
START_SECONDS: Final = 300.0  # 35 to 60 s on two idle cores; several engines and a busy machine take their time
STOP_SECONDS: Final = 15.0
MEMORY_GIB: Final = 2.5  # that an engine takes beside its KV cache: three processes with torch, and 135 M parameters
POLL_SECONDS: Final = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine: vLLM's settings that matter in the lab.

    `speculative_config` is vLLM's own (`NGRAM`, or a draft model's with `method`, `model`, `num_speculative_tokens`), None
    for an engine that does not speculate. `port` 0 takes a free one. `model` None is the lab's target. `processors`
    confines the engine to some ("0", "0,1"), empty leaves all to it. `acceptance` names a file with the acceptance length
    that the engine shall have, for a configuration with `rejection_sample_method` "synthetic"; it is followed while the engine
    runs. `flags` are further ones of the server.
    """

    name: str
    speculative_config: Mapping[str, object] | None = None
    port: int = 0
    max_num_seqs: int = 16
    max_model_len: int = 4096
    model: Path | None = None
    served_model: str = SERVED
    kv_cache_gib: int = 1
    processors: str = ""
    acceptance: Path | None = None
    flags: tuple[str, ...] = ()

    @property
    def window(self) -> int | None:
        """Drafted tokens per verification step; None without speculation."""
        if self.speculative_config is None:
            return None
        return int(str(self.speculative_config["num_speculative_tokens"]))

    def arguments(self, model: Path, port: int) -> list[str]:
        """Return the server's arguments."""
        speculation = (
            ()
            if self.speculative_config is None
            else (
                *("--speculative-config", json.dumps(dict(self.speculative_config))),
                *("--per-request-spec-decode-metrics", "summary"),
            )
        )
        return [
            *("--model", str(model), "--served-model-name", self.served_model),
            *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
            *("--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs)),
            "--enforce-eager",
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *speculation,
            *self.flags,
        ]

    def environment(self, plugins: Path | None = None) -> dict[str, str]:
        """Return the process's environment: nothing is fetched, reported or put on a GPU; `plugins` lie on the path."""
        own = {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }
        if self.processors:
            own["VLLM_CPU_OMP_THREADS_BIND"] = self.processors
        if self.acceptance is not None:
            own[dictated.VARIABLE] = str(self.acceptance)
        if plugins is not None:
            own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(plugins), os.environ.get("PYTHONPATH"))))
        return {**os.environ, **own}


@dataclass(slots=True)
class Launched:
    """An engine's process, which may not answer yet."""

    spec: EngineSpec
    url: str
    log: Path
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        """End the engine and its children."""
        stop(self.process.pid, seconds=STOP_SECONDS, reap=self.process)
        if self.process.stdin is not None:
            self.process.stdin.close()


def launch(spec: EngineSpec, place: Place, *, log: Path, detached: bool = False) -> Launched:
    """Start an engine's process without waiting for it; `detached` lets it outlive this process.

    Raises:
        LabError: there is no lab, no such model, or too little memory.
    """
    model = place.model(spec.model)
    _require_memory(spec)
    port = spec.port or free_port()
    plugins = plugin.install(place.run / "plugins")
    module = "vllm.entrypoints.openai.api_server" if detached else "gateway.measure.lab.served"
    # vLLM binds only the threads that calculate; what serves them is confined, too, so that engines leave each other alone.
    confined = ["taskset", "--cpu-list", spec.processors] if spec.processors else []
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*confined, str(place.python), "-m", module, *spec.arguments(model, port)],
            cwd=Path(__file__).resolve().parents[3],
            env=spec.environment(plugins),
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Launched(spec, f"http://127.0.0.1:{port}", log, process)


def await_ready(engines: Sequence[Launched], say: Say = lambda _: None, *, seconds: float = START_SECONDS) -> None:
    """Wait until all engines have answered a call; `say` is told of each, and now and then of those that have not.

    Raises:
        LabError: one has ended or takes too long; the message has the end of its log.
    """
    waiting = list(engines)
    until = time.monotonic() + seconds
    spoke = time.monotonic()
    with httpx.Client(timeout=60.0, trust_env=False) as client:
        while waiting:
            for one in list(waiting):
                if one.process.poll() is not None:
                    raise LabError(f"engine {one.spec.name} has ended with {one.process.returncode}:\n{tail(one.log)}")
                if _answers(client, one):
                    waiting.remove(one)
                    say(f"{one.spec.name} answers on {one.url} after {time.monotonic() - one.began:.0f} s")
            if not waiting:
                return
            now = time.monotonic()
            if now > until:
                names = ", ".join(one.spec.name for one in waiting)
                raise LabError(f"no answer from {names} in {seconds:.0f} s:\n{tail(waiting[0].log)}")
            if now - spoke >= 10.0:
                spoke = now
                say(f"waiting for {', '.join(one.spec.name for one in waiting)}, {now - waiting[0].began:.0f} s so far")
            time.sleep(POLL_SECONDS)


@contextmanager
def start(spec: EngineSpec, *, place: Place | None = None, say: Say = lambda _: None) -> Iterator[str]:
    """Run one engine while the block runs; gives its address once it answers.

    Raises:
        LabError: it does not come up; the message says why and what to do.
    """
    with started([spec], place=place, say=say) as urls:
        yield urls[spec.name]


@contextmanager
def started(
    specs: Sequence[EngineSpec], *, place: Place | None = None, say: Say = lambda _: None
) -> Iterator[dict[str, str]]:
    """Run several engines, started side by side, while the block runs; gives their addresses by name.

    Raises:
        LabError: one does not come up; the others are stopped again.
    """
    place = place or Place.usual()
    launched = []
    with ExitStack() as ending:
        for spec in specs:
            one = launch(spec, place, log=place.run / f"{spec.name}-{os.getpid()}.log")
            ending.callback(one.stop)
            launched.append(one)
        await_ready(launched, say)
        yield {one.spec.name: one.url for one in launched}
    for one in launched:  # a log is kept only where something went wrong
        one.log.unlink(missing_ok=True)


def _answers(client: httpx.Client, engine: Launched) -> bool:
    """Whether an engine is up and has generated something, which compiles what the first call needs."""
    try:
        if client.get(engine.url + "/health").status_code != 200:
            return False
        body = {"model": engine.spec.served_model, "prompt": "1 2 3 1 2 3 1 2", "max_tokens": 12, "temperature": 0}
        return client.post(engine.url + "/v1/completions", json=body).status_code == 200
    except httpx.TransportError:
        return False


def _require_memory(spec: EngineSpec) -> None:
    needed = MEMORY_GIB + spec.kv_cache_gib
    free = _available_gib()
    if free < needed:
        raise LabError(
            f"engine {spec.name} needs about {needed:.0f} GiB of memory and {free:.1f} GiB are available: "
            "stop other programs, or other engines (`make lab-stop`)"
        )


def _available_gib(meminfo: IO[str] | None = None) -> float:
    """Return the memory that processes may still take, by the kernel's estimate."""
    with meminfo or Path("/proc/meminfo").open() as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return float("inf")
