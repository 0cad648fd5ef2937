"""Kills under load: what clients hold, what engines have done and what the ledger says agree to the token."""

from __future__ import annotations

import pytest

from bench.chaos.__main__ import chaos
from bench.chaos.load import Call
from bench.chaos.reckon import reckon
from gateway.store import Row


@pytest.mark.timeout(240)
async def test_the_ledger_is_right_to_the_token_after_kills_at_random() -> None:
    """Engines, Redis and workers are killed, and Redis is cut off, under load: no token is missing, none counted twice."""
    found = await chaos(
        4.0, seed=2, clients=8, pause=(0.2, 0.5), replicas=1, what=("engine", "redis", "freeze", "worker")
    )

    assert found["wrong"] == []
    assert found["ledger_tokens"] >= found["whole_tokens"] > 0
    assert sum(found["kills"].values()) >= 3


def call(number: int, tokens: int | None, why: str = "") -> Call:
    """Return a call of tenant "a"."""
    return Call(f"a-{number}", "a", tokens, why, 1.0)


def row(exact: int, estimated: int = 0) -> Row:
    """Return the ledger of tenant "a"."""
    measures = {
        "prompt_tokens": float(exact),
        "completion_tokens": float(estimated),
        "estimated_tokens": float(estimated),
    }
    return Row("2026-11-30", "a", "demo", "fast", measures)


@pytest.mark.parametrize(
    ("exact", "wrong"),
    [(300, 0), (370, 0), (301, 1), (299, 1), (400, 1), (440, 1), (0, 1)],
    ids=["all", "and one undelivered", "one more", "one less", "one twice", "undelivered twice", "nothing"],
)
def test_the_reckoning_notices_every_token(exact: int, wrong: int) -> None:
    """The ledger must hold each whole answer once, and may hold one that was cut when it was whole, once."""
    calls = [call(1, 100), call(2, 200), call(3, None, "cut"), call(4, None, "cut")]
    done = {"a-1": [100], "a-2": [200], "a-3": [70]}

    assert len(reckon(calls, done, [row(exact, estimated=33)]).wrong) == wrong


def test_a_call_that_was_answered_twice_may_be_billed_for_either_answer_once() -> None:
    """An engine that dies with a whole answer in hand is followed by another, whose answer may be of another length."""
    calls = [call(1, 100), call(2, None, "cut")]
    done = {"a-1": [100], "a-2": [43, 57]}

    assert [len(reckon(calls, done, [row(exact)]).wrong) for exact in (100, 143, 157, 200)] == [0, 0, 0, 1]


def test_the_reckoning_notices_what_engines_did_not_do() -> None:
    """A client that was told other tokens than its engine has journalled is a discrepancy, and so is a bill for nobody."""
    assert len(reckon([call(1, 100)], {"a-1": [99]}, [row(100)]).wrong) == 1
    assert len(reckon([], {}, [row(100)]).wrong) == 1
