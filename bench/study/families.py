"""The study's own comparison: each family of prompts on both pools, which differ in speculation alone.

Blocks of prompts, four times as many as are under way at once, go to the pools in turn, in changing order, so that a slow
minute of the machine falls on both. At temperature 0 the quickest of a prompt's repetitions counts, on either pool.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.study.figures import ALL, Pair, by_group, pair, quickest, shown, table
from bench.study.load import Job, blocks
from bench.study.prompts import FAMILIES, KINDS, requests
from bench.study.stand import POOLS, Kept, endpoint, engines, say
from gateway.measure.lab.place import SERVED

# Milliseconds per token without and with a draft, on Trainium2 at concurrency 4: what the study found of each family.
STUDY: Final = {
    "repetition": "45 → 15",
    "sequence": "45 → 15",
    "json": "45 → 15",
    "code skeleton": "45 → 45, or a gain",
    "simple code": "45 → 15",
    "summary": "—",
    "open chat": "45 → 45",
    "story": "45 → 45",
    "predictable": "45 → 15",
    "open": "45 → 45",
    ALL: "—",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ask: so many at once, at a temperature, all prompts so many times."""

    concurrency: int
    temperature: float
    repeats: int

    @property
    def name(self) -> str:
        """A label of it."""
        return f"c{self.concurrency} t{self.temperature:g}"


CASES: Final = (Case(4, 0.0, 3), Case(16, 0.0, 2), Case(4, 1.0, 1))  # the study's own first
QUICK: Final = (Case(4, 0.0, 1), Case(16, 0.0, 1))


def run(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure what is not measured yet; return all figures, after printing them."""
    cases = QUICK if quick else CASES
    with Kept(folder / "families.jsonl", {"study": "families", "quick": quick}) as kept, engines() as urls:
        asyncio.run(_measure(cases, urls, kept))
        found = {case.name: _figures(kept, case) for case in cases}
    for case in cases:
        print(_shown(case, found[case.name]), end="\n\n")
    return {case: {family: asdict(one) for family, one in pairs.items()} for case, pairs in found.items()}


async def _measure(cases: tuple[Case, ...], urls: dict[str, str], kept: Kept) -> None:
    for case in cases:
        asked = requests(model=SERVED, temperature=case.temperature)
        for repeat in range(case.repeats):
            say(f"{case.name}, round {repeat + 1} of {case.repeats}")
            for number, block in enumerate(blocks(asked, case.concurrency)):
                for name in POOLS if (repeat + number) % 2 == 0 else POOLS[::-1]:
                    target = endpoint(f"{name} {case.name}", urls[name])
                    await kept.measure([Job(target, one, repeat) for one in block], case.concurrency)


def _figures(kept: Kept, case: Case) -> dict[str, Pair]:
    answers = [kept.of(f"{name} {case.name}") for name in POOLS]
    first, second = (by_group(each if case.temperature else quickest(each), KINDS) for each in answers)
    names = [*(family.name for family in FAMILIES), *dict.fromkeys(KINDS.values()), ALL]
    return {name: pair(first[name], second[name]) for name in names if name in first and name in second}


def _shown(case: Case, pairs: dict[str, Pair]) -> str:
    head = (
        *("family", "ms/token without", "with draft", "ratio (95 %)", "E2E ratio", "tokens/step", "TTFT ms"),
        *("with draft", "TTFT ratio", "same answer", "study, ms/token"),
    )
    rows = [
        (
            *(name, f"{one.first.tpot_ms:.1f}", f"{one.second.tpot_ms:.1f}", shown(one.tpot)),
            *(shown(one.e2e), f"{one.second.acceptance:.2f}", f"{one.first.ttft_ms:.0f}", f"{one.second.ttft_ms:.0f}"),
            *(shown(one.ttft), f"{one.equal:.0%}", STUDY[name]),
        )
        for name, one in pairs.items()
    ]
    title = f"### {case.concurrency} at once, temperature {case.temperature:g}, {case.repeats} times each prompt\n\n"
    return title + table(head, rows)
