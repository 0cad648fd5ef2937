"""Does routing pay: mixed prompts through the gateway, against either pool alone and against blind alternation.

Every family of prompts comes from an application of its own, with its own system prompt, as traffic does.

Arms are the same calls through the gateway, differing in the header by which the client chooses: `baseline`, `speculative`,
`alternate` (half of the calls to each, whatever they are) and `auto`. Each pool has its own half of the machine, so an arm
that uses both has more to use than one that does not; `alternate` is what that alone is worth. Arms take turns, block by
block. The gateway that routes learns from its own calls only, from nothing at first: forced arms have a gateway of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.study.figures import ALL, by_family, pool, ratio, shown, table
from bench.study.load import Job
from bench.study.prompts import requests
from bench.study.stand import POOLS, Kept, endpoint, engines, say
from gateway.measure.lab.front import KEY, FrontPool, gateway
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.session import measured, specs
from gateway.measure.load.sample import Sample
from gateway.measure.load.sending import Endpoint
from gateway.measure.load.trace import Request

ARMS: Final = ("baseline", "speculative", "alternate", "auto")
LEVELS: Final = {16: 4, 1: 2}  # rounds by calls at once
QUICK: Final = {16: 2, 1: 1}
TOKENS: Final = 128  # at most per answer


def run(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure what is not measured yet; return all figures, after printing them."""
    levels = QUICK if quick else LEVELS
    found = {}
    with engines() as urls:
        for concurrency, rounds in levels.items():
            say(f"routing at {concurrency} at once: the engines' pace is measured first")
            pools = measured(specs(), [urls[name] for name in POOLS])
            with Kept(
                folder / f"routing-{concurrency}.jsonl", {"study": "routing", "concurrency": concurrency}
            ) as kept:
                asyncio.run(_measure(concurrency, rounds, pools, kept))
                found[f"c{concurrency}"] = _told(concurrency, kept)
    return found


async def _measure(concurrency: int, rounds: int, pools: list[FrontPool], kept: Kept) -> None:
    """Play all rounds; at one call at a time arms take turns with every prompt, else with every block."""
    folder = Place.usual().run
    forced, routed = folder / "study-forced", folder / "study-routed"
    for each in (forced, routed):
        each.mkdir(exist_ok=True)
    asked = [_shortened(one) for one in requests(model=SERVED, roles=True)]
    with gateway(pools, forced) as first, gateway(pools, routed) as second:
        for repeat in range(rounds):
            arms = [ARMS[(place + repeat) % len(ARMS)] for place in range(len(ARMS))]
            for part in [[one] for one in asked] if concurrency == 1 else [asked]:
                for arm in arms:
                    if concurrency > 1:
                        say(f"{concurrency} at once, round {repeat + 1} of {rounds}, {arm}")
                    url = second if arm == "auto" else first
                    await kept.measure(list(_jobs(arm, url, part, repeat)), concurrency)
            if concurrency == 1:
                say(f"one at a time, round {repeat + 1} of {rounds} done")


def _jobs(arm: str, url: str, asked: Sequence[Request], repeat: int) -> Iterator[Job]:
    """Yield an arm's calls; the answers are labelled by the arm, whichever pool gave them."""
    for request in asked:
        route = POOLS[(request.line + repeat) % 2] if arm == "alternate" else arm
        yield Job(_through(arm, url, route), request, repeat)


def _through(arm: str, url: str, route: str) -> Endpoint:
    return endpoint(arm, url, key=KEY, headers=(("x-draftlane-route", route),))


def _shortened(request: Request) -> Request:
    return replace_body(request, max_tokens=min(TOKENS, int(request.body["max_tokens"])))


def replace_body(request: Request, **fields: Any) -> Request:
    """Return a request with changed fields of its body."""
    return Request(
        line=request.line,
        id=request.id,
        path=request.path,
        body={**request.body, **fields},
        category=request.category,
    )


def _told(concurrency: int, kept: Kept) -> dict[str, Any]:
    """Print and return an arm's decode time per token, its ratio to either pool alone, and where calls went."""
    groups = {arm: by_family(kept.of(arm)) for arm in ARMS}
    auto = groups["auto"]
    rows, facts = [], {}
    for arm in ARMS:
        every = groups[arm][ALL]
        against = ratio(every, auto[ALL])
        figures = pool(every)
        rows.append(
            (
                arm,
                f"{figures.tpot_ms:.1f}",
                f"{figures.acceptance:.2f}",
                f"{figures.ttft_ms:.0f}",
                _wall(every),
                shown(against),
            )
        )
        facts[arm] = {
            "tpot_ms": round(figures.tpot_ms, 2),
            "auto_over_it": _plain(against),
            "tokens_per_second": _wall(every),
        }
    print(f"### {concurrency} at once, {len(auto[ALL])} routed calls\n")
    print(
        table(("arm", "ms/token", "tokens/step", "TTFT ms", "tokens/s", "auto's ms/token over it (95 %)"), rows),
        end="\n\n",
    )
    shares = {family: _share(samples) for family, samples in auto.items()}
    reasons = Counter(sample.reason for sample in auto[ALL])
    by_round = [
        _share([one for one in auto[ALL] if one.repeat == repeat]) for repeat in sorted({s.repeat for s in auto[ALL]})
    ]
    print("routed to the speculative pool: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    print("round by round: " + ", ".join(f"{share:.0%}" for share in by_round))
    print("reasons: " + ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()), end="\n\n")
    return {"arms": facts, "speculated": shares, "by_round": by_round, "reasons": dict(reasons)}


def _share(samples: Sequence[Sample]) -> float:
    return round(sum(sample.pool == "speculative" for sample in samples) / max(1, len(samples)), 3)


def _wall(samples: Sequence[Sample]) -> float:
    """Return output tokens per second of wall time, over the blocks that the calls ran in."""
    seconds = 0.0
    for repeat in {sample.repeat for sample in samples}:
        block = [sample for sample in samples if sample.repeat == repeat]
        spans = sorted((sample.started, sample.started + sample.e2e_seconds) for sample in block)
        begun, ended = spans[0]
        for start, end in spans:  # calls of other arms may lie between
            if start > ended:
                seconds += ended - begun
                begun, ended = start, end
            ended = max(ended, end)
        seconds += ended - begun
    return round(sum(sample.completion_tokens or 0 for sample in samples) / max(seconds, 1e-9), 1)


def _plain(estimate: Any) -> list[float | None] | None:
    return (
        None
        if estimate is None
        else [round(value, 4) if value else None for value in (estimate.value, estimate.low, estimate.high)]
    )
