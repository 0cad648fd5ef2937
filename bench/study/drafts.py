"""Drafts of two sizes and windows, for real: the study compared a 1.7B with a 0.6B draft and swept the window.

Engines run one after another, each on one half of the machine, beside a baseline on the other half that stays. Each takes turns
with that baseline, prompts in blocks of four times the study's four calls at once, so that both meet the same hours of the
machine. The quickest of a prompt's repetitions counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.study.figures import ALL, Pair, by_group, pair, quickest, shown, table
from bench.study.load import Job, blocks
from bench.study.prompts import FAMILIES, KINDS, requests
from bench.study.routing import replace_body
from bench.study.stand import Kept, endpoint, engines, say
from gateway.measure.lab.engines import NGRAM
from gateway.measure.lab.model import STAMP
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.session import specs
from gateway.measure.load.trace import Request

DRAFTS: Final = ("SmolLM2-draft-4", "SmolLM2-draft-2")
WINDOWS: Final = (1, 2, 4)
NGRAM_WINDOWS: Final = (2, 5, 10)
CONCURRENCY: Final = 4
PROMPTS: Final = 2  # of each family
TOKENS: Final = 64
REPEATS: Final = 2  # of each prompt


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine to measure: what drafts, and its window."""

    name: str
    config: dict[str, object]

    @property
    def beside(self) -> str:
        """The label of the baseline's calls that took turns with it."""
        return f"baseline beside {self.name}"


def arms(place: Place, *, quick: bool) -> list[Arm]:
    """Return all engines in the order in which they run.

    Raises:
        LabError: the drafts are not distilled.
    """
    for draft in DRAFTS:
        place.model(place.models / draft)
    windows, lookups = ((2,), (5,)) if quick else (WINDOWS, NGRAM_WINDOWS)
    drafted = [
        Arm(
            f"{draft.removeprefix('SmolLM2-')} window {window}",
            {"method": "draft_model", "model": str(place.models / draft), "num_speculative_tokens": window},
        )
        for draft in DRAFTS
        for window in windows
    ]
    looked_up = [Arm(f"lookup window {window}", {**NGRAM, "num_speculative_tokens": window}) for window in lookups]
    return [*drafted, *looked_up]


def run(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure what is not measured yet; return all figures, after printing them."""
    place = Place.usual()
    wanted = arms(place, quick=quick)
    made = {draft: json.loads((place.models / draft / STAMP).read_text())["draft"] for draft in DRAFTS}
    with Kept(folder / "drafts.jsonl", {"study": "drafts", "drafts": made}) as kept:
        _measure_missing([arm for arm in wanted if not _whole(kept, arm)], kept)
        found = {arm.name: pairs for arm in wanted if (pairs := _compared(kept, arm))}
    print(_shown(found, made))
    return {
        "drafts": made,
        "arms": {name: {group: asdict(one) for group, one in pairs.items()} for name, pairs in found.items()},
    }


def _asked() -> list[Request]:
    families = tuple(replace(family, prompts=family.prompts[:PROMPTS]) for family in FAMILIES)
    return [
        replace_body(one, max_tokens=min(TOKENS, int(one.body["max_tokens"])))
        for one in requests(families, model=SERVED)
    ]


def _whole(kept: Kept, arm: Arm) -> bool:
    return all(len(kept.of(name)) >= REPEATS * len(_asked()) for name in (arm.name, arm.beside))


def _measure_missing(missing: Sequence[Arm], kept: Kept) -> None:
    if not missing:
        return
    base, half = specs()
    with engines([base]) as stays:
        for number, arm in enumerate(missing, 1):
            say(f"engine {number} of {len(missing)}: {arm.name}")
            with engines([replace(half, name="drafting", speculative_config=arm.config)]) as urls:
                asyncio.run(_measure(arm, stays["baseline"], urls["drafting"], kept))


async def _measure(arm: Arm, base: str, url: str, kept: Kept) -> None:
    """Let the arm and the baseline take turns, block by block, each going first in turn."""
    sides = [endpoint(arm.beside, base), endpoint(arm.name, url)]
    asked = blocks(_asked(), CONCURRENCY)
    for repeat in range(REPEATS):
        for block in asked:
            for target in sides:
                await kept.measure([Job(target, one, repeat) for one in block], CONCURRENCY)
            sides.reverse()


def _compared(kept: Kept, arm: Arm) -> dict[str, Pair]:
    base, own = (by_group(quickest(kept.of(name)), KINDS) for name in (arm.beside, arm.name))
    return {group: pair(base[group], samples) for group, samples in own.items() if group in base}


def _shown(found: dict[str, dict[str, Pair]], made: dict[str, Any]) -> str:
    kinds = tuple(dict.fromkeys(KINDS.values()))
    head = (
        "engine",
        "ms/token",
        "baseline beside it",
        "tokens/step",
        "break-even",
        "ratio, all (95 %)",
        *(f"ratio, {kind}" for kind in kinds),
        "tokens/step by family",
    )
    rows = []
    for name, pairs in found.items():
        every = pairs[ALL]
        rows.append(
            (
                *(name, f"{every.second.tpot_ms:.1f}", f"{every.first.tpot_ms:.1f}", f"{every.second.acceptance:.2f}"),
                *(f"{every.second.step_ms / every.first.step_ms:.2f}", shown(every.tpot)),
                *(shown(pairs[kind].tpot) for kind in kinds),
                ", ".join(f"{family} {pairs[family].second.acceptance:.2f}" for family in KINDS if family in pairs),
            )
        )
    told = "\n".join(
        f"{name}: {facts['parameters'] / 1e6:.0f} M parameters, agrees on {facts['agreement']:.1%} of held-out tokens after "
        f"{facts['seconds'] / 60:.0f} minutes on {facts['corpus_tokens']} tokens of the target's answers"
        for name, facts in made.items()
    )
    return f"### Drafts and windows, {CONCURRENCY} at once, temperature 0\n\n{table(head, rows)}\n\n{told}\n"
