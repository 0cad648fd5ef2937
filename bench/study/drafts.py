"""Drafts of two sizes and windows, for real: the study compared a 1.7B with a 0.6B draft and swept the window.

Engines run one after another, each on the half of the machine that the lab gives a pool, at the study's four calls at once.
Before them and after them runs the baseline: what drifts shows in the difference.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.study.figures import ALL, Pair, by_group, pair, quickest, shown, table
from bench.study.load import Job
from bench.study.prompts import FAMILIES, KINDS, requests
from bench.study.routing import replace_body
from bench.study.stand import Kept, endpoint, engines, say
from gateway.measure.lab.engines import NGRAM, EngineSpec
from gateway.measure.lab.model import STAMP
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.session import specs

DRAFTS: Final = ("SmolLM2-draft-4", "SmolLM2-draft-2")
WINDOWS: Final = (1, 2, 4)
NGRAM_WINDOWS: Final = (2, 5, 10)
CONCURRENCY: Final = 4
PROMPTS: Final = 3  # of each family
TOKENS: Final = 64
REPEATS: Final = 2  # of each prompt, of which the quicker counts


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine to measure: with a draft and a window, or without."""

    name: str
    config: dict[str, object] | None


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
    return [Arm("baseline", None), *drafted, *looked_up, Arm("baseline again", None)]


def run(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure what is not measured yet; return all figures, after printing them."""
    place = Place.usual()
    wanted = arms(place, quick=quick)
    made = {draft: json.loads((place.models / draft / STAMP).read_text())["draft"] for draft in DRAFTS}
    with Kept(folder / "drafts.jsonl", {"study": "drafts", "drafts": made}) as kept:
        for number, arm in enumerate(wanted, 1):
            asyncio.run(_measure(arm, f"{number} of {len(wanted)}", kept))
        base = by_group(quickest([*kept.of("baseline"), *kept.of("baseline again")]), KINDS)
        found = {
            arm.name: {
                group: pair(base[group], samples)
                for group, samples in by_group(quickest(kept.of(arm.name)), KINDS).items()
            }
            for arm in wanted
        }
    print(_shown(found, made))
    return {
        "drafts": made,
        "arms": {name: {group: asdict(one) for group, one in pairs.items()} for name, pairs in found.items()},
    }


async def _measure(arm: Arm, place: str, kept: Kept) -> None:
    families = tuple(replace(family, prompts=family.prompts[:PROMPTS]) for family in FAMILIES)
    asked = [
        replace_body(one, max_tokens=min(TOKENS, int(one.body["max_tokens"])))
        for one in requests(families, model=SERVED)
    ]
    if len(kept.of(arm.name)) >= REPEATS * len(asked):
        return
    say(f"engine {place}: {arm.name}")
    half = specs()[1].processors
    spec = EngineSpec(name="study", processors=half, speculative_config=arm.config)
    with engines([spec]) as urls:
        target = endpoint(arm.name, urls["study"])
        for repeat in range(REPEATS):
            await kept.measure([Job(target, one, repeat) for one in asked], CONCURRENCY)


def _shown(found: dict[str, dict[str, Pair]], made: dict[str, Any]) -> str:
    kinds = tuple(dict.fromkeys(KINDS.values()))
    head = (
        "engine",
        "ms/token",
        "step ms",
        "tokens/step",
        "ratio, all (95 %)",
        *(f"ratio, {kind}" for kind in kinds),
        "tokens/step by family",
    )
    rows = []
    for name, pairs in found.items():
        every = pairs[ALL]
        rows.append(
            (
                *(name, f"{every.second.tpot_ms:.1f}", f"{every.second.step_ms:.1f}", f"{every.second.acceptance:.2f}"),
                shown(every.tpot),
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
