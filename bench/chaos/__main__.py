"""Kill engines, Redis and gateway processes at random under load; then compare the ledger with what engines really did.

python -m bench.chaos --seconds 180       # prints one JSON object; exit 1 when a token is missing or counted twice
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.chaos.load import Call, Client
from bench.chaos.reckon import Reckoning, reckon
from bench.chaos.world import World
from gateway.ledger import Settlement, open_ledger
from gateway.store.redis import RedisStore

KILLS = ("engine", "engine", "redis", "freeze", "worker", "worker", "gateway")  # how often each, at random


async def chaos(
    seconds: float,
    *,
    seed: int,
    clients: int,
    pause: tuple[float, float],
    replicas: int = 2,
    what: Sequence[str] = KILLS,
) -> dict[str, Any]:
    """Run for so many seconds of kills of such things, with a pause between two of them; return figures and `wrong`."""
    chance = random.Random(seed)
    with World(clients, replicas) as world:
        crowd = [Client(f"t{number}", random.Random(f"{seed} {number}")) for number in range(clients)]
        stop = asyncio.Event()
        running = [asyncio.create_task(client.run(world.url, stop)) for client in crowd]
        kills = await _kill(world, chance, time.monotonic() + seconds, pause, what)
        await asyncio.sleep(1.0)  # the last ones recover
        stop.set()
        await asyncio.gather(*running)
        await _bring_home(world)
        calls = [call for client in crowd for call in client.calls]
        found = reckon(calls, _done(world), await _rows(world))
        found.wrong += [f"{call.request_id}: took {call.seconds:.0f} s" for call in calls if call.seconds > 30]
    return _shown(found, kills, calls)


async def _kill(
    world: World, chance: random.Random, until: float, pause: tuple[float, float], targets: Sequence[str]
) -> Counter[str]:
    kills: Counter[str] = Counter()
    while time.monotonic() < until:
        await asyncio.sleep(chance.uniform(*pause))
        what = chance.choice(targets)
        kills[what] += 1
        await asyncio.to_thread(_strike, world, what, chance)
    return kills


def _strike(world: World, what: str, chance: random.Random) -> None:
    """Kill one thing, and bring it back after a while."""
    away = chance.uniform(0.2, 1.5)
    if what == "worker":
        for pid in chance.sample(pids, 1) if (pids := world.worker_pids()) else ():
            os.kill(pid, signal.SIGKILL)  # its supervisor starts another
    elif what == "freeze":
        world.processes["redis"].send_signal(signal.SIGSTOP)  # as a network that swallows everything
        time.sleep(2 * away)
        world.processes["redis"].send_signal(signal.SIGCONT)
    else:
        name = chance.choice(world.engines) if what == "engine" else what
        world.kill(name)
        time.sleep(away)
        world.start(name)
        if name == "gateway":
            world.wait_ready()


async def _bring_home(world: World) -> None:
    """Stop the gateway in order, and deliver what those who were killed left behind, as the next one to start would."""
    await asyncio.to_thread(world.wait_ready)
    await asyncio.to_thread(world.stop_gateway)
    ledger, outbox = open_ledger(world.directory / "outbox")
    books = Settlement(store=RedisStore(world.redis_url), ledger=ledger, outbox=outbox)
    await books.start()
    await books.stop()


def _done(world: World) -> dict[str, list[int]]:
    """Return the tokens of each whole answer that engines have journalled, by request id."""
    done: dict[str, list[int]] = defaultdict(list)
    for path in world.journals:
        for line in path.read_bytes().splitlines():
            told = json.loads(line)
            done[told["request"]].append(told["total_tokens"])
    return done


async def _rows(world: World) -> Any:
    store = RedisStore(world.redis_url)
    try:
        return await store.totals("2000-01-01", "2100-01-01")
    finally:
        await store.aclose()


def _shown(found: Reckoning, kills: Counter[str], calls: Sequence[Call]) -> dict[str, Any]:
    longest = max((call.seconds for call in calls), default=0.0)
    return {**asdict(found), "kills": dict(kills), "longest_seconds": round(longest, 2)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; 0 when the ledger is right."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=16, help="tenants that call at once (default: %(default)s)")
    args = parser.parse_args(argv)
    found = asyncio.run(chaos(args.seconds, seed=args.seed, clients=args.clients, pause=(0.5, 3.0)))
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
