"""A real engine whose acceptance is dictated, and changed while it runs: the gateway's threshold follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from e2e.lab.conftest import Fleet
from e2e.lab.stand import EXPLORES_NOT, SECONDS, STORY, Engine, Front, chat
from gateway.measure.lab.front import PRICE_PER_HOUR, FrontPool, gateway
from gateway.measure.lab.pace import pace

pytestmark = pytest.mark.timeout(SECONDS)
BODY = chat(STORY, stream=True, max_tokens=32)
NEEDED = 1.4


@pytest.fixture
def steered(
    fleet: Fleet, baseline: Engine, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """A gateway of its own before baseline and the engine whose acceptance is dictated.

    How long that one's steps take beside baseline's is the processor's affair: on some they take no longer. So it is priced to
    be the cheaper one from NEEDED tokens a step on.
    """
    folder = tmp_path_factory.mktemp("steered")
    fleet.ready("dictated")
    fleet.dictate(1.0)
    dictated = fleet.launched["dictated"].url
    plain, drafted = (
        asyncio.run(pace(url, model=fleet.specs[name].served_model, slots=1))
        for name, url in (("baseline", baseline.url), ("dictated", dictated))
    )
    price = PRICE_PER_HOUR * NEEDED * plain.step_seconds / drafted.step_seconds
    pools = [
        FrontPool(fleet.specs["baseline"], baseline.url, plain),
        FrontPool(fleet.specs["dictated"], dictated, drafted, price_per_hour=price),
    ]
    by_cost = {"routing": {**EXPLORES_NOT["routing"], "cost_weight": 1.0}}
    with gateway(pools, folder, by_cost) as url, ExitStack() as ending:
        yield Front(url, folder / "gateway.log", http, ending)


def chosen(answer: httpx.Response) -> tuple[str, str]:
    """Return where a call went, and why."""
    return answer.headers["x-draftlane-pool"], answer.headers["x-draftlane-reason"]


def threshold(answer: httpx.Response) -> float:
    """Return the score that a call like this would have to reach."""
    return float(answer.headers["x-draftlane-threshold"])


def asked(front: Front, wanted: tuple[str, str], *, teach: str = "auto") -> list[httpx.Response]:
    """Ask until the gateway chooses so, 25 times at most; before each time the pool `teach` gets a call by header.

    The call is the same each time, so it may go where its prefix is for a while before it goes there for its own sake.
    """
    answers: list[httpx.Response] = []
    while len(answers) < 25 and not (answers and chosen(answers[-1]) == wanted):
        if teach != "auto":
            front.ask(BODY, teach)
        answers.append(front.ask(BODY))
    return answers


def test_the_threshold_follows_what_the_engine_accepts(fleet: Fleet, steered: Front) -> None:
    """Four tokens a step, and calls go to the speculative pool; none accepted, and they leave it; four again, and they return.

    Nothing is configured anew: what changes the gateway's mind is what it measures. As nobody explores here, what happens
    on the pool that is left is learned from calls whose clients ask for it.
    """
    fleet.dictate(4.0)
    line = steered.settled(steered.ask(BODY, "speculative"))
    *_, generous = asked(steered, ("speculative", "predictable"), teach="speculative")
    assert 3.0 < line["acceptance"] < 5.0
    assert chosen(generous) == ("speculative", "predictable")

    fleet.dictate(1.0)
    *before, strict = asked(steered, ("baseline", "unpredictable"))
    speculated = [answer for answer in before if chosen(answer)[0] == "speculative"]
    assert speculated  # it remembers
    assert chosen(strict) == ("baseline", "unpredictable")
    assert steered.settled(speculated[-1])["acceptance"] < 1.3
    assert threshold(strict) > threshold(generous)

    fleet.dictate(4.0)
    *_, again = asked(steered, ("speculative", "predictable"), teach="speculative")
    assert chosen(again) == ("speculative", "predictable")
    assert threshold(again) < threshold(strict)
