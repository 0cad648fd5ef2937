"""What scoring costs has a ceiling: as many calls for a request of any size, and nothing large looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from classifier.artifact import load
from classifier.conversation import SEEN_IN_ALL
from classifier.scorer import Scorer, View


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, of Python or of C, `work` calls."""
    count = 0

    def count_one(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def chat(size: int) -> dict[str, Any]:
    """A conversation in which everything that can be long is long."""
    text = "word, 12 " * 100 * size
    part = {"type": "text", "text": text}
    turns = [{"role": role, "content": [part] * 40} for role in ("system", "user", "assistant", "tool", "user")] * size
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}
    return {"messages": turns, "tools": [tool] * size, "stop": ["x"] * size, "prediction": {"content": [part] * 40}}


@pytest.mark.parametrize("arithmetic", ["compiled", "numpy"])
def test_a_request_ten_times_as_large_costs_no_more(arithmetic: str):
    """Past the caps more turns, parts, tools, stops and text add not a single call, compiled or not."""
    scorer = Scorer(*load(), compiled=arithmetic == "compiled")

    def cost(body: dict[str, Any]) -> int:
        scorer.score(View.of(body))  # what is kept between calls is warm
        return calls_of(lambda: scorer.score(View.of(body)))

    assert cost(chat(1000)) == cost(chat(100))


@pytest.mark.parametrize("leaf", ["a", {}, {"type": "x", "content": "a", "output": ["b"] * 32, "arguments": [{}] * 32}])
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_nesting_does_not_multiply_the_cost(leaf: object, kind: str):
    """Lists in lists in lists, in every turn, are read until the patience for one reading is used up."""
    nested = [[[leaf] * 32] * 32] * 32
    turns = [{"role": role, "content": nested} for role in ("user", "assistant", "system", "tool")] * 12
    body = {"messages": turns, "input": turns, "system": nested, "prediction": nested}

    assert calls_of(lambda: View.of(body, kind)) < 20 * 4 * SEEN_IN_ALL  # calls of a part, readings


def test_patience_goes_to_the_newest_turns_first():
    """A conversation of ordinary turns is read whole; in one of thousands of parts the last question still is."""
    turns = [{"role": "user", "content": [{"type": "text", "text": "x"}] * 10}] * 48
    crowd = [{"role": "user", "content": [{"type": "text", "text": "y"}] * 30}] * 48

    assert len(View.of({"messages": turns}).earlier) == 2 * 470 - 1
    assert View.of({"messages": [*crowd, {"role": "user", "content": "last"}]}).user == "last"


class Costly(list[object]):
    """A list that must not be written out, as one of megabytes would be."""

    def __repr__(self) -> str:
        raise AssertionError("a value of another type was made a string")


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": Costly()}},
        {"text": {"format": {"type": Costly()}}},
        {"tool_choice": {"type": Costly()}, "temperature": Costly(), "n": Costly(), "top_p": Costly()},
        {"messages": [{"role": Costly(), "content": "x", "type": Costly()}]},
        {"tools": [{"function": {"name": Costly(), "description": Costly()}}]},
    ],
)
def test_values_of_other_types_are_not_written_out(body: dict[str, Any]):
    """Where a word is expected a list of any size costs nothing: its type is looked at, not its items."""
    assert View.of(body).form == ""
