"""Two gateways, Valkey and the engines on hosts of their own: one gateway is killed, the other parted from Valkey in silence.

The hosts are network namespaces inside of new user and mount namespaces, so that this needs no rights and leaves nothing.
What happens is in `machines`; here is what must hold of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.machines import BUDGET

ROOT = Path(__file__).parent.parent.parent
LARGEST = 200  # tokens of a call of the scenario, prompt and answer together


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Everything that was seen, from one run of the scenario."""
    done = subprocess.run(
        ["unshare", "-rnm", "--propagation", "private", "--kill-child", sys.executable, "-m", "e2e.machines"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=110,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_call_was_answered_while_a_gateway_was_there(seen: dict[str, Any]) -> None:
    """Both together, one alone, and one that is parted from Valkey all serve every call; none waits for Valkey."""
    assert seen["ready"] == [True, True]
    for phase in ("both", "stories", "only one sees", "while one is dead", "while two is parted"):
        assert set(seen[phase]) == {200}, phase
    assert seen["slowest while parted"] < 2.0  # redis would time out later than that


def test_no_stream_of_a_killed_gateway_looks_whole(seen: dict[str, Any]) -> None:
    """Streams that were cut by the kill end without [DONE]."""
    assert seen["cut streams"] == [False] * 4


def test_what_one_gateway_saw_the_other_knows(seen: dict[str, Any]) -> None:
    """Learning meets: while both run, after one comes back from being killed, and after the parted one is heard again."""
    assert seen["learned by one"] > 0
    assert seen["two learns of it"]
    assert seen["one is back"]
    assert seen["one remembers"]
    assert seen["one learns what two saw"]


def test_the_ledger_holds_every_whole_answer_once(seen: dict[str, Any]) -> None:
    """To the token, over a kill, a restart and a partition, what clients were told is what is booked, and no more."""
    assert seen["books agree"]
    assert {tenant: seen["booked"][tenant] for tenant in ("free", "tight")} == seen["answered"]


def test_a_budget_holds_over_both_though_one_is_parted(seen: dict[str, Any]) -> None:
    """Both sides together admit no more than the budget, 5 % and a call per gateway beyond; then both refuse."""
    spent = seen["answered"]["tight"]

    assert 0.5 * BUDGET < spent <= 1.05 * BUDGET + 2 * LARGEST
    assert set(seen["tight while parted"]) == {200, 429}
    assert set(seen["tight afterwards"]) == {429}


def test_a_gateway_that_is_parted_says_so_and_recovers(seen: dict[str, Any]) -> None:
    """The state of the parted gateway tells of it; when all is well again, both are healthy."""
    assert seen["two knows that it is parted"]
    assert seen["healthy"] == [True, True]
