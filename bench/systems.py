"""What stands between the load and the engine: each system with its pinned version, its installation and its command line.

Every peer gets one worker and no logging, the settings its own manual gives for speed. All is installed into
bench/.cache/NAME, nothing on the machine itself; what cannot be installed raises `Absent` with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parent / ".cache"
KEY: Final = "sk-bench-0123456789abcdef0123456789abcdef"  # LiteLLM refuses shorter ones
VERSIONS: Final = {
    "litellm": "1.108.7",
    "vllm-router": "0.1.17",
    "sglang-router": "0.3.2",
    "tensorzero": "2026.6.0",
    "portkey": "1.15.2",
    "production-stack": "089c51baedac7f3a1aec219afd5559bae4e75e31",  # a commit: its router is in no registry
}
_INSTALL_SECONDS: Final = 900


class Absent(Exception):
    """A system that cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a system is to run: its port, the engine's port, and a directory for its files."""

    port: int
    engine: int
    directory: Path

    def write(self, name: str, text: str) -> str:
        """Write a file of the system's and return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way from the load to the engine.

    `command` makes the command line, after `install` has made what it needs and returned the version. `announces`: the
    system chooses its own port and prints a line "listening PORT". `rewrites`: it does not pass the
    engine's bytes on unchanged. `light`: it is so slow that heavy workloads would only measure its queue.
    `own`: it is a module of this project.
    """

    name: str
    install: Callable[[], str]
    command: Callable[[Place], list[str]]
    path: str = "/v1/chat/completions"
    model: str = "demo"
    headers: Callable[[Place], Mapping[str, str]] = field(default=lambda _: {})
    env: Mapping[str, str] = field(default_factory=dict)
    announces: bool = False
    rewrites: bool = False
    light: bool = False
    own: bool = False


def _run(command: list[str], directory: Path) -> None:
    """Run one step of an installation; its last line of complaint is the reason if it fails."""
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).strip().splitlines()] or ["no message"]
        told = [line for line in lines if line.lower().startswith(("error", "fatal", "×"))] or lines
        raise Absent(f"`{' '.join(command[:3])} …` failed: {told[-1][:200]}")


def _once(name: str, version: str, steps: Callable[[Path], None]) -> str:
    """Install into the cache unless this version is there already."""
    directory = CACHE / name
    stamp = directory / ".installed"
    if not stamp.exists() or stamp.read_text() != version:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        steps(directory)
        stamp.write_text(version)
    return version


def _python(name: str, requirement: str) -> Callable[[], str]:
    def steps(directory: Path) -> None:
        _run([sys.executable, "-m", "venv", "."], directory)
        _run(["bin/pip", "install", "--quiet", "--disable-pip-version-check", requirement], directory)

    return lambda: _once(name, VERSIONS[name], steps)


def _portkey() -> str:
    def steps(directory: Path) -> None:
        wanted = {
            "dependencies": {"@portkey-ai/gateway": VERSIONS["portkey"]},
            "overrides": {"@hono/node-server": "1.13.8"},  # with later ones its streams fail: "Headers are immutable"
        }
        (directory / "package.json").write_text(json.dumps(wanted))
        _run([shutil.which("npm") or "npm", "install", "--silent", "--no-audit", "--no-fund"], directory)

    return _once("portkey", VERSIONS["portkey"], steps)


def debian(package: str, program: str, *more: str) -> Path:
    """Return a program of a Debian package, of the system if it is there, else unpacked into the cache with `more` packages."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found:
        return Path(found)

    def steps(directory: Path) -> None:
        _run(["apt-get", "download", package, *more], directory)
        for archive in directory.glob("*.deb"):
            _run(["dpkg-deb", "--extract", archive.name, "root"], directory)

    _once(package, "", steps)
    program_path = next((CACHE / package / "root").glob(f"usr/*bin/{program}"), None)
    if program_path is None:
        raise Absent(f"Debian's package {package} holds no {program}")
    return program_path


def _nginx_version() -> str:
    told = subprocess.run([debian("nginx", "nginx"), "-v"], capture_output=True, text=True, check=False)
    return told.stderr.strip().rpartition("/")[2]


def _nginx(place: Place) -> list[str]:
    config = f"""
    daemon off; worker_processes 1; pid {place.directory}/nginx.pid; error_log stderr crit;
    events {{ worker_connections 8192; }}
    http {{
      access_log off; tcp_nodelay on; keepalive_requests 1000000000; client_max_body_size 0; client_body_buffer_size 2m;
      client_body_temp_path {place.directory}/body; proxy_temp_path {place.directory}/proxy;
      fastcgi_temp_path {place.directory}/f; uwsgi_temp_path {place.directory}/u; scgi_temp_path {place.directory}/s;
      upstream engine {{ server 127.0.0.1:{place.engine}; keepalive 4096; keepalive_requests 1000000000; }}
      server {{
        listen 127.0.0.1:{place.port} backlog=4096;
        location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
      }}
    }}"""
    return [
        str(debian("nginx", "nginx")),
        "-e",
        "stderr",
        "-p",
        str(place.directory),
        "-c",
        place.write("nginx.conf", config),
    ]


def _draftlane_config(place: Place, policy: str, log: str, workers: int) -> str:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    pools = "".join(
        f'[[pool]]\nname = "{kind}"\nmodel = "demo"\nkind = "{kind}"\nprice_per_hour = 17.88\nslots = 4096\n{more}'
        f'[[pool.replica]]\nurl = "http://127.0.0.{host}:{place.engine}"\n'
        for host, kind, more in ((1, "speculative", 'window = 7\ndrafter = "draft_model"\n'), (2, "baseline", ""))
    )
    return (
        f'[server]\nhost = "127.0.0.1"\nport = {place.port}\nworkers = {workers}\nlog = "{log}"\n'
        f'[[model]]\nname = "demo"\n{pools}'
        f'[[tenant]]\nname = "bench"\nkey_sha256 = ["{digest}"]\npolicy = "{policy}"\n'
    )


def draftlane(name: str = "draftlane", *, policy: str = "auto", log: str = "json", workers: int = 1) -> System:
    """Return Draftlane as a system, with a tenant of this policy."""

    def command(place: Place) -> list[str]:
        config = place.write("draftlane.toml", _draftlane_config(place, policy, log, workers))
        return [sys.executable, "-m", "gateway", "serve", "--config", config]

    return System(name=name, install=_own_version, command=command, own=True)


def _own_version() -> str:
    described = subprocess.run(
        [shutil.which("git") or "git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "here"


def _litellm(place: Place) -> list[str]:
    config = f"""
    model_list:
      - model_name: demo
        litellm_params: {{model: openai/demo, api_base: "http://127.0.0.1:{place.engine}/v1", api_key: none}}
    general_settings: {{master_key: {KEY}}}
    litellm_settings: {{telemetry: false}}
    """
    port = ["--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"]
    return [str(CACHE / "litellm/bin/litellm"), "--config", place.write("litellm.yaml", config), *port]


def _router(name: str, *before: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        workers = [
            "--worker-urls",
            f"http://127.0.0.1:{place.engine}",
            "--policy",
            "round_robin",
            "--log-level",
            "error",
        ]
        ports = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.port + 1)]
        return [str(CACHE / name / "bin" / name), *before, *workers, *ports]

    return command


def _production_stack(place: Place) -> list[str]:
    backend = ["--static-backends", f"http://127.0.0.1:{place.engine}", "--static-models", "demo"]
    routing = ["--service-discovery", "static", "--routing-logic", "roundrobin", "--log-level", "error"]
    ports = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(CACHE / "production-stack/bin/vllm-router"), *ports, *backend, *routing]


_TENSORZERO: Final = """
import sys, threading, tensorzero
gateway = tensorzero._start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False)
print("listening", gateway.base_url.rpartition(":")[2].partition("/")[0], flush=True)
threading.Event().wait()
"""


def _tensorzero(place: Place) -> list[str]:
    config = f"""
    [gateway]
    disable_pseudonymous_usage_analytics = true
    observability.enabled = false
    [models.demo]
    routing = ["engine"]
    [models.demo.providers.engine]
    type = "vllm"
    model_name = "demo"
    api_base = "http://127.0.0.1:{place.engine}/v1/"
    api_key_location = "none"
    """
    return [str(CACHE / "tensorzero/bin/python"), "-c", _TENSORZERO, place.write("tensorzero.toml", config)]


def _to_engine(place: Place) -> dict[str, str]:
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{place.engine}/v1"}


_PORTKEY: Final = CACHE / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"

_STACK: Final = "git+https://github.com/vllm-project/production-stack"  # needs Python 3.12

SYSTEMS: Final = (
    System(name="nginx", install=_nginx_version, command=_nginx),
    draftlane(),
    draftlane("draftlane-relay", policy="baseline", log="off"),  # not scored: see the gateway's routing.plain
    System(
        name="vllm-router",
        install=_python("vllm-router", f"vllm-router=={VERSIONS['vllm-router']}"),
        command=_router("vllm-router"),
    ),
    System(
        name="sglang-router",
        install=_python("sglang-router", f"sglang-router=={VERSIONS['sglang-router']}"),
        command=_router("sglang-router", "launch"),
    ),
    System(
        name="tensorzero",
        install=_python("tensorzero", f"tensorzero=={VERSIONS['tensorzero']}"),
        command=_tensorzero,
        path="/openai/v1/chat/completions",
        model="tensorzero::model_name::demo",
        announces=True,
        rewrites=True,
    ),
    System(
        name="production-stack",
        install=_python("production-stack", f"vllm-router @ {_STACK}@{VERSIONS['production-stack']}"),
        command=_production_stack,
    ),
    System(
        name="portkey",
        install=_portkey,
        command=lambda place: ["node", str(_PORTKEY), f"--port={place.port}", "--headless"],
        headers=_to_engine,
        env={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1", "NODE_ENV": "production"},
    ),
    System(
        name="litellm",
        install=_python("litellm", f"litellm[proxy]=={VERSIONS['litellm']}"),
        command=_litellm,
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        rewrites=True,
        light=True,
    ),
)
BY_NAME: Final = {system.name: system for system in SYSTEMS}
