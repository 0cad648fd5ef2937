"""The measuring of a comparison: which call goes where and when, and when there is enough.

Prompts are taken in a random order, in blocks: one prompt at concurrency 1, four times the concurrency above that. Each
block goes to one pool, then to the other, the first one in turn, so that drift hits both alike and pools on one machine do
not disturb each other. The order follows from the seed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gateway.measure.load.sample import ResultsError, Sample
from gateway.measure.load.sending import Endpoint, Timeouts, measure, open_client
from gateway.measure.load.trace import Request
from gateway.measure.paired import pairs
from gateway.measure.paired.compared import Terms
from gateway.measure.paired.groups import group, more_repeats_help
from gateway.measure.paired.intervals import FEWEST_PROMPTS
from gateway.measure.paired.result import Ended, Group

_BLOCK: Final = 4  # calls per call under way: the end of a block, where fewer are, is then a small part of it
_PATIENCE: Final = 5  # calls in a row without an answer, beyond those under way, after which an endpoint is given up
_FIRST_LOOK: Final = 20  # pairs before the first look at intervals within a pass; then after every quarter more
_KINDS: Final[tuple[Literal["tpot", "e2e"], ...]] = ("tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure: requests on two endpoints, at each level of concurrency, up to so many times, within a budget."""

    requests: Sequence[Request]
    endpoints: tuple[Endpoint, Endpoint]
    levels: tuple[int, ...] = (1,)
    repeats: int = 5
    budget_seconds: float | None = None
    budget_requests: int | None = None
    terms: Terms = field(default_factory=Terms)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def names(self) -> tuple[str, str]:
        """The endpoints' names, the one to compare with first."""
        return self.endpoints[0].name, self.endpoints[1].name


class Stopped(Exception):
    """Measuring cannot or need not go on; `ended` says why."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.text)
        self.ended = ended


class Session:
    """Measures a plan, once.

    Args:
        plan: what to measure.
        keep: takes each new sample as soon as it is there; what it raises ends the session.
        kept: samples of the same plan that are there already; whole answers among them are not asked for again.
        clock: seconds, for the budget.

    Attributes:
        samples: the latest of each call, kept ones included.
        endings: why each level ended, where it has.
        ended: calls that have given a sample in this session; `errors`, those of them without a whole answer.
        in_flight: calls under way.
        stopped: why the session ended early, or None.
    """

    def __init__(
        self,
        plan: Plan,
        keep: Callable[[Sample], None],
        kept: Iterable[Sample] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self._keep, self._clock = plan, keep, clock
        self._calls = {sample.key: sample for sample in kept}
        self.endings: dict[int | None, Ended] = {}
        self._began = clock()
        self.ended = self.errors = self.in_flight = 0
        self.stopped: str | None = None
        self._silent: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._answered: set[str] = {pairs.level_of(sample.target)[0] for sample in self.samples if sample.ok}
        self._whole = Counter(pairs.level_of(sample.target)[1] for sample in self.samples if sample.ok)
        self._looked: Counter[int] = Counter()
        self._client = open_client()

    @property
    def samples(self) -> list[Sample]:
        """What has been measured so far."""
        return list(self._calls.values())

    @property
    def left(self) -> int:
        """Calls that the plan still has at most."""
        done = sum(sample.ok for sample in self._calls.values())
        return max(0, 2 * len(self.plan.requests) * len(self.plan.levels) * self.plan.repeats - done)

    async def run(self) -> Ended:
        """Measure until intervals are tight, repetitions or the budget are used up, or an endpoint stops answering.

        Raises:
            ResultsError: a sample could not be kept.
        """
        async with self._client:
            try:
                for endpoint in self.plan.endpoints:
                    await self._warm_up(endpoint)
                for repeat in range(self.plan.repeats):
                    for level in self.plan.levels:
                        if level not in self.endings:
                            await self._pass(level, repeat)
                    if len(self.endings) == len(self.plan.levels):
                        break
            except Stopped as stopped:
                self.stopped = stopped.ended.text
                return stopped.ended
        for level in self.plan.levels:
            self.endings.setdefault(level, Ended(by="repeats", text=f"all {self.plan.repeats} repetitions are done"))
        endings = list(self.endings.values())
        return next((ended for ended in endings if ended.by != "precision"), endings[0])

    async def _warm_up(self, endpoint: Endpoint) -> None:
        """Send one call whose answer does not count: connections, caches and lazily built kernels are ready after it."""
        sample = await measure(self._client, endpoint, self.plan.requests[0], timeouts=self.plan.timeouts)
        if not sample.answered:
            raise Stopped(Ended(by="endpoint", text=f"{endpoint.name} at {endpoint.url}: {sample.error}"))

    async def _pass(self, level: int, repeat: int) -> None:
        for block, endpoints in self._blocks(level, repeat):
            todo = [self._missing(block, endpoint, level, repeat) for endpoint in endpoints]
            self._check_budget(sum(map(len, todo)))
            for endpoint, requests in zip(endpoints, todo, strict=True):
                await self._send(requests, endpoint, level, repeat)
            if any(todo) and self._time_to_look(level) and (ended := self._precise(level)):
                self.endings[level] = ended
                return
        if ended := self._precise(level) or self._hopeless(level):
            self.endings[level] = ended

    def _blocks(self, level: int, repeat: int) -> Iterator[tuple[Sequence[Request], tuple[Endpoint, ...]]]:
        chance = random.Random(f"{self.plan.terms.seed}/{level}/{repeat}")
        requests = list(self.plan.requests)
        chance.shuffle(requests)
        size = 1 if level == 1 else _BLOCK * level
        turn = chance.randrange(2)
        for place, start in enumerate(range(0, len(requests), size), turn):
            yield requests[start : start + size], self.plan.endpoints if place % 2 else self.plan.endpoints[::-1]

    def _missing(self, block: Sequence[Request], endpoint: Endpoint, level: int, repeat: int) -> list[Request]:
        target = pairs.label(endpoint.name, level)
        done = {request.line: self._calls.get((target, request.line, repeat)) for request in block}
        return [request for request in block if (sample := done[request.line]) is None or not sample.ok]

    def _check_budget(self, calls: int) -> None:
        plan = self.plan
        if plan.budget_seconds is not None and self._clock() - self._began >= plan.budget_seconds:
            raise Stopped(
                Ended(by="budget_seconds", text=f"the budget of {plan.budget_seconds:g} s is spent; --resume goes on")
            )
        if plan.budget_requests is not None and self.ended + calls > plan.budget_requests:
            raise Stopped(
                Ended(
                    by="budget_requests",
                    text=f"the budget of {plan.budget_requests} requests is spent; --resume goes on",
                )
            )

    async def _send(self, requests: Sequence[Request], endpoint: Endpoint, level: int, repeat: int) -> None:
        """Send requests to one pool, so many at a time."""
        todo = iter(requests)

        async def worker() -> None:
            for request in todo:
                await self._one(request, endpoint, level, repeat)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(level, len(requests))):
                    tasks.create_task(worker())
        except ExceptionGroup as several:  # early releases of Python 3.11 put what `except*` raises into another group
            for kind in (ResultsError, Stopped):
                if (found := several.subgroup(kind)) is not None:
                    raise found.exceptions[0] from None
            raise

    async def _one(self, request: Request, endpoint: Endpoint, level: int, repeat: int) -> None:
        labelled = _labelled(endpoint, level)
        self.in_flight += 1
        try:
            sample = await measure(self._client, labelled, request, repeat=repeat, timeouts=self.plan.timeouts)
        finally:
            self.in_flight -= 1
        self.ended += 1
        self.errors += not sample.ok
        self._calls.pop(sample.key, None)  # one that failed in an earlier session
        self._calls[sample.key] = sample
        self._whole[level] += sample.ok
        self._keep(sample)
        self._count(endpoint.name, sample, level)

    def _count(self, name: str, sample: Sample, level: int) -> None:
        """Give an endpoint up that has fallen silent, or that has refused everything so far."""
        self._silent[name] = 0 if sample.answered else self._silent[name] + 1
        self._refused[name] += not sample.ok
        if sample.ok:
            self._answered.add(name)
        if self._silent[name] >= _PATIENCE + level:
            raise Stopped(Ended(by="endpoint", text=f"{name} stopped answering ({sample.error}); --resume goes on"))
        if name not in self._answered and self._refused[name] >= _PATIENCE + level:
            raise Stopped(Ended(by="endpoint", text=f"{name} refuses every call ({sample.error})"))

    def _run(self, level: int) -> pairs.Run | None:
        found = pairs.runs((s for s in self.samples if pairs.level_of(s.target)[1] == level), self.plan.names)
        return found[0] if found and found[0].pairs else None

    def _time_to_look(self, level: int) -> bool:
        count = self._whole[level] // 2
        if count < max(_FIRST_LOOK, 1.25 * self._looked[level]):
            return False
        self._looked[level] = count
        return True

    def _groups(self, run: pairs.Run) -> list[Group]:
        """Return the groups whose intervals count: all together, and each category that has prompts enough for one."""
        prompts = Counter(request.category for request in self.plan.requests)
        names = [name for name in sorted(prompts) if name and prompts[name] >= FEWEST_PROMPTS]
        return [
            group(run, name, precision=self.plan.terms.precision, seed=self.plan.terms.seed) for name in ("", *names)
        ]

    def _precise(self, level: int) -> Ended | None:
        run = self._run(level)
        if run is None or any(_excess(each, self.plan.terms.precision) for each in self._groups(run)):
            return None
        return Ended(
            by="precision",
            text=f"intervals are within ±{self.plan.terms.precision:.1%} of the ratios of decode time and of E2E",
        )

    def _hopeless(self, level: int) -> Ended | None:
        run = self._run(level)
        if run is None or self.plan.terms.precision <= 0:
            return None
        wide = [(each, _excess(each, self.plan.terms.precision)) for each in self._groups(run)]
        if any(
            more_repeats_help(run, each.category, kind, over=over)
            for each, excess in wide
            for kind, over in excess.items()
        ):
            return None
        return Ended(
            by="prompts",
            text="prompts differ more than repetitions could even out: more prompts are needed for tighter intervals",
        )


def _excess(found: Group, precision: float) -> dict[Literal["tpot", "e2e"], float]:
    """Return by how much intervals are wider than wanted, of those that are."""
    excess: dict[Literal["tpot", "e2e"], float] = {}
    for kind in _KINDS:
        estimate = found.ratios.tpot if kind == "tpot" else found.ratios.e2e
        if estimate is None and kind == "tpot":
            continue  # answers in one piece have no decode time
        width = None if estimate is None else estimate.half_width
        if width is None or width > precision:
            excess[kind] = float("inf") if width is None or precision <= 0 else width / precision
    return excess


def _labelled(endpoint: Endpoint, level: int) -> Endpoint:
    return replace(endpoint, name=pairs.label(endpoint.name, level))
