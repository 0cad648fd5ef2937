"""What a smaller window would have done, from what a larger one did. Pure.

Assumption: a draft proposes the same tokens for the same text before them, whatever the window. That is exact for a draft model
at temperature 0; with sampling it holds on average, and prompt lookup may find other places to copy from.

Then every token of an answer is one that the draft would have proposed, or one that it would not have, and the record says
which: a step that accepted a of K tokens shows a matches and, where a < K, a miss, the token that the target put in its place.
Such runs of matches up to a miss end alike for every window, and a window of k takes ceil(tokens / (k + 1)) steps for a run,
each with up to k matches and the target's own token. For k = K these are the steps that were recorded.

One thing is not in the record: whether the token after K accepted ones, the target's own, would have been proposed too. With a
smaller window it may have to be. It is taken to be with the probability that the last drafted token had in the same data, once
the ones before it were accepted, by a seeded draw; the fewest and the most steps that are possible are told as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
_PRIOR: Final = (1.0, 1.0)  # a Beta prior: without data the next token is as likely proposed as not


def last_match(records: Sequence[tuple[Sequence[int], int]]) -> float:
    """Return how often the last drafted token was accepted once all before it were, over records of (accepted, window)."""
    reached = full = 0
    for accepted, window in records:
        reached += sum(one >= window - 1 for one in accepted)
        full += sum(one >= window for one in accepted)
    return (full + _PRIOR[0]) / (reached + sum(_PRIOR))


def run_tokens(accepted: Sequence[int], window: int, matched: npt.NDArray[np.bool_]) -> Counts:
    """Return the tokens of each run of matches up to a miss; `matched` says which steps' own token would have been proposed.

    Only steps that accepted the whole window can have such a token.
    """
    steps = np.asarray(accepted, dtype=np.int64)
    if not len(steps):
        return steps
    goes_on = (steps >= window) & matched
    ends = ~goes_on
    ends[-1] = True
    run = np.concatenate(([0], np.cumsum(ends)[:-1]))
    return np.bincount(run, weights=steps + 1).astype(np.int64)


def steps_of(tokens: Counts, window: int) -> int:
    """Return how many steps a window takes for runs of so many tokens."""
    return int(np.sum(-(-tokens // (window + 1))))


class Truncated:
    """One answer's record, ready to be asked for any window up to its own.

    Args:
        accepted: accepted tokens of each step, in order.
        window: the window that was recorded.
        match: the probability that a token after a fully accepted window would have been proposed.
        chance: of the draw.
    """

    def __init__(self, accepted: Sequence[int], window: int, match: float, chance: np.random.Generator) -> None:
        none = np.zeros(len(accepted), dtype=np.bool_)
        self.tokens = sum(accepted) + len(accepted)
        self._likely = run_tokens(accepted, window, chance.random(len(accepted)) < match)
        self._most = run_tokens(accepted, window, none)
        self._fewest = run_tokens(accepted, window, ~none)

    def steps(self, window: int) -> int:
        """Return the steps that a window would have taken, as is likely."""
        return steps_of(self._likely, window)

    def bounds(self, window: int) -> tuple[int, int]:
        """Return the fewest and the most steps that are possible."""
        return steps_of(self._fewest, window), steps_of(self._most, window)
