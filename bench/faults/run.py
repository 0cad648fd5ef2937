"""Running the cases: each on a model of its own with two engines of its own, all side by side, behind one gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

import httpx

from bench.faults import cases as catalogue
from bench.faults.caller import Result, call
from bench.faults.cases import Case, Timing
from bench.faults.checks import Seen, Verdict, verdict
from bench.stand import Stand, configured, pair, serving
from gateway.engine import EngineSettings, Running, serve
from gateway.engine.faults import of

Mode = Literal["json", "sse"]
MODES: tuple[Mode, ...] = ("json", "sse")


@dataclass(frozen=True, slots=True)
class Cell:
    """One case in one mode, judged; `seconds` is the (last) caller's."""

    case: Case
    mode: Mode
    verdict: Verdict
    broken: Sequence[str]
    first: int
    second: int
    seconds: float


async def run(timing: Timing, mode: Mode, *, resume: bool, only: Collection[str] = ()) -> list[Cell]:
    """Run all cases, or those named only, in one mode, side by side; `resume` leaves routing.resume_streams as shipped, on."""
    found = [case for case in catalogue.cases(timing) if not only or case.id in only]
    async with AsyncExitStack() as opened:
        engines = [await _engines(opened, case.speed or timing.speed) for case in found]
        pools = [
            table
            for case, (first, second) in zip(found, engines, strict=True)
            for table in pair(case.id, first.url, second.url, speed=case.speed or timing.speed, **case.settings)
        ]
        routing = {"explore_near": 0.0, "explore_far": 0.0, "cost_weight": 0.0}
        if not resume:  # else as shipped
            routing["resume_streams"] = False
        stand = await opened.enter_async_context(serving(configured(pools, limits=timing.limits, routing=routing)))
        client = await opened.enter_async_context(httpx.AsyncClient())
        runs = [_judge(case, mode, timing, pair_, stand, client) for case, pair_ in zip(found, engines, strict=True)]
        return list(await asyncio.gather(*runs))


async def _engines(opened: AsyncExitStack, speed: float) -> tuple[Running, Running]:
    first = await opened.enter_async_context(serve(EngineSettings(kind="speculative", speed=speed)))
    second = await opened.enter_async_context(serve(EngineSettings(kind="baseline", speed=speed)))
    return first, second


async def _judge(
    case: Case, mode: Mode, timing: Timing, engines: tuple[Running, Running], stand: Stand, client: httpx.AsyncClient
) -> Cell:
    first, second = engines
    stream = mode == "sse"
    sound = await call(client, first.url, "demo", stream=False, limit=timing.limit)
    first.record.clear()
    began = time.monotonic()
    first.faults.set(of(case.fault), asyncio.get_running_loop().time())
    if case.second is not None:
        second.faults.set(of(case.second), asyncio.get_running_loop().time())
    if case.flaps:
        results = await _sequence(case, timing, stand, client, stream=stream)
    else:
        results = [await call(client, stand.url, case.id, stream=stream, limit=timing.limit)]
    asked = tuple(first.record), tuple(second.record)
    booked = [await stand.settled(result.request_id) for result in results if result.request_id]
    for engine in engines:
        engine.faults.clear()
    after = await call(client, stand.url, case.id, stream=stream, limit=timing.limit)
    seen = Seen(
        mode=mode,
        results=results,
        right=sound.text,
        first=asked[0],
        second=asked[1],
        second_pool=f"{case.id}-baseline",
        booked=[record for record in booked if record is not None],
        alive=after.outcome == "success" and after.text == sound.text,
        down_seconds=timing.down,
        began=began,
    )
    judged, broken = verdict(seen, case.checks, case.ideal)
    return Cell(case, mode, judged, broken, len(seen.first), len(seen.second), seen.result.seconds)


async def _sequence(
    case: Case, timing: Timing, stand: Stand, client: httpx.AsyncClient, *, stream: bool
) -> list[Result]:
    """Call again and again, at a steady pace whatever becomes of each."""
    calls = []
    for _ in range(timing.calls):
        calls.append(asyncio.create_task(call(client, stand.url, case.id, stream=stream, limit=timing.limit)))
        await asyncio.sleep(timing.every)
    return list(await asyncio.gather(*calls))
