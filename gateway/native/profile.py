"""Finds out which ways calls take through the compiled modules, so that the compiler lays those ways out best.

    python -m gateway.native.profile

In a clone's root: builds the modules with counters, serves some thousand calls of all kinds with them on two embedded pools,
and leaves what was counted in build/profile, where the next build finds it (`gateway.native.build`). The ways that calls take
lie together then, which matters most where they find caches cold (docs/performance.md). Only GCC; with another compiler, or if
anything goes wrong, it says so and the build goes on without. Exit status: 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx

from gateway.native.build import COUNTING, PROFILE, profile_of, sources

TREE: Final = Path("build", "counted")  # a copy of both packages, with counters
CALLS: Final = 1500
_AT_ONCE: Final = (1, 32)  # calls find caches cold, then warm
_SECONDS: Final = 120.0  # for the calls, and for the gateway to come up
_KEYS: Final = {"auto": "profile-auto", "baseline": "profile-baseline"}  # by policy: scored, and not


class NotCounted(Exception):
    """No profile could be made; the message says why."""


def main() -> int:
    """Make the profile, or say why there is none."""
    try:
        _build()
        asyncio.run(serve())
        found = _counted()
    except (NotCounted, OSError, httpx.HTTPError, TimeoutError) as error:
        sys.stderr.write(f"compiling without a profile: {error or type(error).__name__}\n")
        return 0
    finally:
        shutil.rmtree(TREE, ignore_errors=True)
    sys.stderr.write(f"profile of {found} modules in {PROFILE}\n")
    return 0


def compiler() -> list[str]:
    """Return the command that extensions are compiled with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def is_gcc(command: list[str]) -> bool:
    """Whether this compiler is GCC, by its own word; raises NotCounted where there is none."""
    plain = os.environ | {"LC_ALL": "C"}
    try:
        said = subprocess.run(
            [*command, "-v"], env=plain, capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCounted(f"no compiler: {error}") from None
    return "gcc version" in said


def _build() -> None:
    """Build with counters, into a tree of its own; what Cython translates is used again by the build that follows."""
    if not is_gcc(compiler()):
        raise NotCounted(f"{compiler()[0]} is not GCC")
    shutil.rmtree(PROFILE, ignore_errors=True)
    PROFILE.mkdir(parents=True)
    words = ["build_ext", "--build-lib", str(TREE), "--build-temp", str(TREE)]
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", *words],
        env=os.environ | {COUNTING: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotCounted(f"the build with counters failed: {done.stderr[-400:]}")
    for package in ("gateway", "classifier"):
        left_out = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(package, TREE / package, dirs_exist_ok=True, ignore=left_out)


async def serve() -> None:
    """Run the gateway for all calls, and end it in peace: counters are written when the process ends."""
    path = TREE / "profile.toml"
    path.write_text(config())
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", path.name),
        cwd=TREE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TREE.resolve()), *sys.path])},  # its modules go first
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            await _call_all(await _url(gateway))
    finally:
        if gateway.returncode is None:
            gateway.send_signal(signal.SIGTERM)
        await gateway.wait()


def config() -> str:
    """Return the configuration: a model on two embedded pools that answer at once, and a tenant for each policy."""
    pools = "".join(
        f'[[pool]]\nname = "{kind}"\nmodel = "demo"\nkind = "{kind}"\nprice_per_hour = 1.0\nslots = 64\n{more}'
        "[pool.embedded]\nspeed = 1000.0\n"
        for kind, more in (("speculative", 'window = 7\ndrafter = "draft_model"\n'), ("baseline", ""))
    )
    tenants = "".join(
        f'[[tenant]]\nname = "{policy}"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\npolicy = "{policy}"\n'
        for policy, key in _KEYS.items()
    )
    return f'[server]\nhost = "127.0.0.1"\nport = 0\n[[model]]\nname = "demo"\n{pools}{tenants}'


async def _url(gateway: asyncio.subprocess.Process) -> str:
    """Read what the gateway says until it says where it serves."""
    assert gateway.stderr is not None
    said = b""
    async for line in gateway.stderr:
        said += line
        if b"serving" in line:
            return line.split()[-1].decode()
    raise NotCounted(f"the gateway with counters did not come up: {said.decode(errors='replace')[-400:]}")


async def _call_all(url: str) -> None:
    """Make all calls, one at a time and many at once; raises NotCounted if one fails."""
    kinds = itertools.cycle(bodies())
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=30.0) as client:
        for at_once in _AT_ONCE:
            share = CALLS // (5 if at_once == 1 else 1)
            calls = iter([next(kinds) for _ in range(share)])
            await asyncio.gather(*(_call_in_turn(client, calls) for _ in range(at_once)))


async def _call_in_turn(client: httpx.AsyncClient, calls: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    for policy, path, body in calls:
        answer = await client.post(path, json=body, headers={"authorization": f"Bearer {_KEYS[policy]}"})
        if answer.status_code != httpx.codes.OK:
            raise NotCounted(f"a call failed: {answer.status_code} {answer.text[:200]}")


def bodies() -> list[tuple[str, str, dict[str, Any]]]:
    """Return calls of the kinds that gateways see: whose policy, where to, and the body; each whole and as a stream."""
    material = "Revenue grew by 12 percent in the second quarter, above all in the north. " * 12
    system = {"role": "system", "content": "You are an assistant who answers briefly and in plain words."}
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    user = [
        "Count from 1 to 60, separated by commas.",
        "Tell me a story of a lighthouse keeper who finds a letter.",
        f"Summarise this for those who were not there.\n\n{material}",
        "Rename x to total:\n```python\ndef add(values):\n    x = 0\n    for v in values:\n        x += v\n    return x\n```",
        'Give the three largest cities of Spain as JSON: [{"name": …, "people": …}].',
        "Übersetze ins Polnische: Der Zug nach Lyon fährt um acht.",
    ]
    turns = [{"role": "user", "content": user[1]}, {"role": "assistant", "content": "Once there was one."}]
    chats: list[dict[str, Any]] = [{"messages": [system, {"role": "user", "content": text}]} for text in user]
    chats.append({"messages": [system, *turns, {"role": "user", "content": "Go on."}], "temperature": 0.8})
    chats.append({"messages": [{"role": "user", "content": user[4]}], "tools": [tool], "temperature": 0.0})
    calls = [(policy, "/chat/completions", chat) for chat in chats for policy in ("auto", "auto", "baseline")]
    calls.append(("auto", "/completions", {"prompt": user[0]}))
    common = {"model": "demo", "max_tokens": 64}
    return [(policy, path, common | body | more) for policy, path, body in calls for more in ({}, {"stream": True})]


def _counted() -> int:
    """Return of how many modules there are counts."""
    found = sum(profile_of(path).exists() for path in sources())
    if not found:
        raise NotCounted("the gateway with counters left none")
    return found


if __name__ == "__main__":
    sys.exit(main())
