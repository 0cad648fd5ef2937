"""A real engine whose acceptance is dictated, and changed while it runs: the gateway's threshold follows."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from e2e.lab.conftest import Fleet
from e2e.lab.stand import EXPLORES_NOT, PACE, SECONDS, STORY, Engine, Front, chat
from gateway.measure.lab.front import FrontPool, gateway

pytestmark = pytest.mark.timeout(SECONDS)
BODY = chat(STORY, stream=True)


@pytest.fixture
def steered(
    fleet: Fleet, baseline: Engine, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """A gateway of its own before baseline and the engine whose acceptance is dictated."""
    folder = tmp_path_factory.mktemp("steered")
    fleet.ready("dictated")
    pools = [
        FrontPool(fleet.specs["baseline"], baseline.url, PACE),
        FrontPool(fleet.specs["dictated"], fleet.launched["dictated"].url, PACE),
    ]
    with gateway(pools, folder, EXPLORES_NOT) as url:
        yield Front(url, folder / "gateway.log", http)


def threshold(answer: httpx.Response) -> float:
    """Return the score that a call like this would have to reach."""
    return float(answer.headers["x-draftlane-threshold"])


def asked(front: Front, count: int, pool: str) -> list[httpx.Response]:
    """Ask until a pool answers, `count` times at most; return all answers."""
    answers: list[httpx.Response] = []
    while len(answers) < count and pool not in {answer.headers["x-draftlane-pool"] for answer in answers}:
        answers.append(front.ask(BODY))
    return answers


def test_the_threshold_follows_what_the_engine_accepts(fleet: Fleet, steered: Front) -> None:
    """Four tokens a step, and calls go to the speculative pool; none accepted, and they leave it; four again, and they return.

    Nothing is configured anew: what changes the gateway's mind is what it measures. As nobody explores here, what happens
    on the pool that is left is learned from calls whose clients ask for it.
    """
    fleet.dictate(4.0)
    taught = [steered.settled(steered.ask(BODY, "speculative")) for _ in range(3)]
    (generous,) = asked(steered, 1, "speculative")
    assert all(3.0 < line["acceptance"] < 5.0 for line in taught)
    assert (generous.headers["x-draftlane-pool"], generous.headers["x-draftlane-reason"]) == (
        "speculative",
        "predictable",
    )

    fleet.dictate(1.0)
    *before, strict = asked(steered, 20, "baseline")
    assert before  # it remembers
    assert (strict.headers["x-draftlane-pool"], strict.headers["x-draftlane-reason"]) == ("baseline", "unpredictable")
    assert all(steered.settled(answer)["acceptance"] < 1.3 for answer in before)
    assert threshold(strict) > threshold(generous)

    fleet.dictate(4.0)
    for _ in range(20):
        steered.ask(BODY, "speculative")
        if (again := steered.ask(BODY)).headers["x-draftlane-pool"] == "speculative":
            break
    assert again.headers["x-draftlane-pool"] == "speculative"
    assert threshold(again) < threshold(strict)
