"""From measured calls to the curve over windows: figures with intervals, the best window, and what to be wary of. Pure.

Windows are compared on the same prompts: a prompt counts where every window answered it, and a resample draws prompts with the
calls of all windows, so that what makes a prompt slow everywhere cancels in their ratio.

Goodput is of the whole engine at the load that was asked for. With so many calls under way at once it is that number times the
tokens of calls that met their promise, over the time that all calls took (Little's law); at a rate it is the rate times such
tokens per call. At a rate that every window carries, goodput is the callers' own, and time per token decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Final, Literal

import msgspec
import numpy as np

from gateway.measure.paired.intervals import FEWEST_PROMPTS, Floats, Resamples
from gateway.measure.windows.candidate import NOTHING, Candidate
from gateway.measure.windows.result import ALL, ALL_WORDS, Best, Figure, Row, StepModel

CALLS, TOKENS, MET_CALLS, MET, SECONDS, DECODE, DECODED, STEPPED, STEPPING, STEPS = range(10)
COLUMNS: Final = 10
FEW: Final = 20  # prompts of a category below which a best window is a hint
UNNAMED: Final = "uncategorised"
WIDE: Final = 0.15  # half an interval's width, as a share, from which on a figure is a hint


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as far as it counts: times are seconds, `tokens` those of the answer, 0 of one that failed.

    `decode_seconds` and `decode_tokens` are of all after the first token; `steps` are verification steps among them.
    """

    candidate: Candidate
    prompt: int
    category: str
    tokens: float
    met: bool
    seconds: float
    decode_seconds: float | None
    decode_tokens: float
    steps: float | None

    def row(self) -> Sequence[float]:
        """Return the sums that it adds to."""
        timed = self.decode_seconds is not None and self.decode_tokens > 0
        stepped = timed and self.steps is not None and self.steps > 0
        return (
            1.0,
            self.tokens,
            float(self.met),
            self.tokens if self.met else 0.0,
            self.seconds,
            (self.decode_seconds or 0.0) if timed else 0.0,
            self.decode_tokens if timed else 0.0,
            self.decode_tokens if stepped else 0.0,
            (self.decode_seconds or 0.0) if stepped else 0.0,
            (self.steps or 0.0) if stepped else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load at which goodput is told: so many calls at once, or so many a second."""

    at_once: int | None = 1
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.rate:g} calls per second" if self.rate is not None else f"{self.at_once} calls at once"

    def goodput(self, sums: Floats, at: int) -> Floats:
        """Return tokens a second from sums whose columns of one window begin at `at`."""
        if self.rate is not None:
            return self.rate * sums[..., at + MET] / sums[..., at + CALLS]
        return (self.at_once or 1) * sums[..., at + MET] / sums[..., at + SECONDS]


@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of every category, its best windows, and warnings."""

    rows: tuple[Row, ...]
    best: Mapping[str, Best]
    warnings: tuple[str, ...]


def curve(measured: Iterable[Measured], candidates: Sequence[Candidate], load: Load, *, seed: int = 0) -> Curve:
    """Work the curve out; `candidates` that answered too little are told of and left out."""
    kept = list(measured)
    rows: list[Row] = []
    best: dict[str, Best] = {}
    warnings: list[str] = []
    for name, own in _grouped(kept):
        group = _Group(name, own, candidates, load, seed)
        rows += group.rows()
        if (found := group.best()) is not None:
            best[name] = found
        warnings += group.warnings(found)
    return Curve(tuple(rows), best, tuple(warnings))


def _grouped(measured: Sequence[Measured]) -> list[tuple[str, Sequence[Measured]]]:
    """Return the calls of each category, where there are any, and all of them."""
    own: dict[str, list[Measured]] = {}
    for one in measured:
        own.setdefault(one.category or UNNAMED, []).append(one)
    categories = sorted(own.items()) if own.keys() != {UNNAMED} else []
    return [*categories, (ALL, measured)]


class _Group:
    """The prompts of one category, on all windows that answered enough of them."""

    def __init__(
        self, name: str, measured: Sequence[Measured], candidates: Sequence[Candidate], load: Load, seed: int
    ) -> None:
        self.name, self._load = name, load
        self._called = name or ALL_WORDS
        answered = {one: {call.prompt for call in measured if call.candidate == one} for one in candidates}
        most = max((len(prompts) for prompts in answered.values()), default=0)
        # One that ended half-way would take its missing prompts from all the others.
        self.candidates = [one for one in candidates if len(answered[one]) * 10 >= most * 9 and most]
        self._left = [one for one in candidates if one not in self.candidates]
        common = set.intersection(*(answered[one] for one in self.candidates)) if self.candidates else set()
        self.prompts = len(common)
        self.sums = Resamples([self._table(measured, common)], seed=seed) if common else None

    def _table(self, measured: Sequence[Measured], common: set[int]) -> Floats:
        place = {prompt: at for at, prompt in enumerate(sorted(common))}
        column = {one: at * COLUMNS for at, one in enumerate(self.candidates)}
        table: Floats = np.zeros((len(common), len(self.candidates) * COLUMNS))
        for call in measured:
            if call.prompt in place and call.candidate in column:
                at = column[call.candidate]
                table[place[call.prompt], at : at + COLUMNS] += call.row()
        return table

    def rows(self) -> list[Row]:
        """The figures of each window."""
        return [self._row(one, at * COLUMNS) for at, one in enumerate(self.candidates)] if self.sums else []

    def _row(self, one: Candidate, at: int) -> Row:
        assert self.sums is not None
        totals = self.sums.totals
        return Row(
            window=one.window,
            draft=one.draft or None,
            category=self.name,
            n=self.prompts,
            calls=int(totals[at + CALLS]),
            met_share=float(totals[at + MET_CALLS] / totals[at + CALLS]),
            acceptance_length=self._ratio(at + STEPPED, at + STEPS),
            step_seconds=self._ratio(at + STEPPING, at + STEPS),
            tpot_seconds=self._ratio(at + DECODE, at + DECODED),
            goodput_tokens_per_s=self._figure(lambda sums: self._load.goodput(sums, at)) or Figure(value=0.0),
        )

    def _ratio(self, top: int, bottom: int) -> Figure | None:
        return self._figure(lambda sums: sums[..., top] / sums[..., bottom])

    def _figure(self, figure: Callable[[Floats], Floats]) -> Figure | None:
        assert self.sums is not None
        found = self.sums.estimate(figure)
        if found is None:
            return None
        interval = (found.low, found.high) if found.low is not None and found.high is not None else None
        return Figure(value=found.value, interval=interval)

    def best(self) -> Best | None:
        """The window with the most goodput; at a rate that several carry, the one of these with the least time per token."""
        if self.sums is None or len(self.candidates) < 2:
            return None
        totals = self.sums.totals
        places = range(len(self.candidates))
        goodput = [float(self._load.goodput(totals, at * COLUMNS)) for at in places]
        top = max(places, key=lambda at: goodput[at])
        if not goodput[top]:
            return None
        even = [at for at in places if at != top and self._as_good(top, at, self._goods)]
        by: Literal["goodput", "tpot"] = "goodput"
        if self._load.rate is not None and even:
            by, tied = "tpot", [top, *even]
            top = min(tied, key=lambda at: float(self._times(totals, at)))
            even = [at for at in tied if at != top and self._as_good(at, top, self._times)]
        return Best(
            window=self.candidates[top].window,
            draft=self.candidates[top].draft or None,
            by=by,
            flat_with=tuple(str(self.candidates[at]) for at in sorted(even)),
            gain_over_baseline=self._gain(top, by),
        )

    def _goods(self, sums: Floats, at: int) -> Floats:
        return self._load.goodput(sums, at * COLUMNS)

    def _times(self, sums: Floats, at: int) -> Floats:
        return sums[..., at * COLUMNS + DECODE] / sums[..., at * COLUMNS + DECODED]

    def _as_good(self, more: int, less: int, of: Callable[[Floats, int], Floats]) -> bool:
        """Whether the larger of two figures may as well be the smaller one."""
        ratio = self._figure(lambda sums: of(sums, more) / of(sums, less))
        if ratio is None:
            return False  # the smaller one is nothing
        return ratio.interval is None or ratio.interval[0] <= 1.0

    def _gain(self, top: int, by: str) -> Figure | None:
        """How many times the goodput, or fewer the seconds per token, of no speculation."""
        if NOTHING not in self.candidates or self.candidates[top] == NOTHING:
            return None
        base = self.candidates.index(NOTHING)
        if by == "tpot":
            return self._figure(lambda sums: self._times(sums, base) / self._times(sums, top))
        return self._figure(lambda sums: self._goods(sums, top) / self._goods(sums, base))

    def warnings(self, best: Best | None) -> list[str]:
        """What the figures cannot tell."""
        found = [
            f"{self._called}: {one} answered too few of the prompts that others did, and is not compared"
            for one in self._left
        ]
        if self.sums is None:
            return [*found, f"{self._called}: no prompt was answered by all windows"]
        if self.prompts < FEWEST_PROMPTS:
            found.append(f"{self._called}: {self.prompts} prompt(s) are too few for intervals; any order may be chance")
        elif self.prompts < FEW:
            found.append(f"{self._called}: {self.prompts} prompts are a small sample; take {FEW} or more")
        if best is None:
            return (
                [*found, f"{self._called}: no call met what was asked, so no window is best"]
                if len(self.candidates) > 1
                else found
            )
        chosen = Candidate(best.window, best.draft or "")
        row = self._row(chosen, self.candidates.index(chosen) * COLUMNS)
        figure = row.tpot_seconds if best.by == "tpot" else row.goodput_tokens_per_s
        width = figure.half_width if figure is not None else None
        if width is not None and width > WIDE:
            found.append(
                f"{self._called}: the best window's {best.by} is known to ±{width:.0%} only; add prompts or repeats"
            )
        if best.flat_with:
            found.append(f"{self._called}: the optimum is flat: {', '.join(best.flat_with)} may be as good as {chosen}")
        return [*found, *self._edge(chosen)]

    def _edge(self, chosen: Candidate) -> list[str]:
        """Whether the best window is the last one that was tried."""
        tried = sorted(one.window for one in self.candidates if one.draft == chosen.draft and one.window)
        if not chosen.window or len(tried) < 2 or chosen.window not in (tried[0], tried[-1]) or chosen.window == 1:
            return []
        beyond = f"smaller than {tried[0]}" if chosen.window == tried[0] else f"larger than {tried[-1]}"
        return [f"{self._called}: the best window is the last that was tried; one {beyond} may be better"]


def step_models(rows: Iterable[Row]) -> dict[str, StepModel]:
    """Fit base + per token · window to the step times of all prompts, for each draft with two windows or more.

    A fit by which drafting costs less than nothing is none.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.category == ALL and row.window and row.step_seconds is not None:
            points.setdefault(row.draft or "", []).append((row.window, row.step_seconds.value))
    found = {}
    for draft, pairs in points.items():
        if len({window for window, _ in pairs}) > 1:
            line = linear_regression(*zip(*pairs, strict=True))
            if line.slope < 0 or line.intercept <= 0:
                continue  # noise: no step is shorter for drafting more
            found[draft] = StepModel(base_seconds=line.intercept, per_token_seconds=line.slope, source="fitted")
    return found
