"""Guards: when what was learned, or a pool itself, must not be relied on. A pure state machine, stepped by windows of facts.

All transitions are in `advance`. A guard first makes a pool's decisions fall back to the prior, and if that does not help
takes the pool out of the choice, so that its calls go to baseline:

    below_break_even   five windows in a row below break-even: learned → prior → out; back after a pause that doubles
    control            the estimator, run on baseline, does not read 1.00 ± 0.05: prior, and nothing is learned meanwhile
    stale              the engine's signals are older than three scrapes: prior
    replicas           no live replica: out
    queue              more waiting than four times the slots: out, until it is less than one time the slots

The last two are facts of the moment and are followed from second to second (`now_is`): a pool that has recovered serves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gateway.routing.view import Belief

Guard = Literal["below_break_even", "control", "stale", "replicas", "queue"]
GUARDS: tuple[Guard, ...] = Guard.__args__  # type: ignore[attr-defined]

WINDOWS = 5  # windows below break-even that are no bad luck
FEWEST_CALLS = 5  # a window with fewer finished calls says nothing
PAUSE_WINDOWS = 10  # how long a pool stays out at first
LONGEST_PAUSE = 160
CONTROL_TOLERANCE = 0.05
STALE_SCRAPES = 3.0
QUEUE_OUT = 4.0  # waiting calls per slot at which a pool is out
QUEUE_BACK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The facts of one window of time (a minute, say) about one speculative pool; None is unknown.

    `acceptance` is tokens per step of the calls that finished in it, `break_even` the mean one they had to reach, `control`
    the same estimator's reading on the model's baseline pools over `control_calls` calls; ages are seconds.
    """

    calls: int = 0
    acceptance: float | None = None
    break_even: float | None = None
    control: float | None = None
    control_calls: int = 0
    signal_age: float | None = None
    scrape_seconds: float = 10.0
    live_replicas: int = 1
    queued: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a pool's guards stand. `rung` 0 relies on what was learned, 1 on the prior, 2 is out."""

    rung: int = 0
    below: int = 0
    above: int = 0
    left: int = 0  # windows of the pause that are left
    pause: int = PAUSE_WINDOWS
    misread: int = 0
    stale: bool = False
    dead: bool = False
    jammed: bool = False
    last: Window = Window()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pool's guards say: which one holds it (the gravest), and what follows, with a reason for people."""

    guard: Guard | None = None
    reason: str = ""
    belief: Belief = "learned"
    available: bool = True
    learns: bool = True


FREE = Verdict()
_BELOW = f"below break-even for {WINDOWS} windows in a row"


def advance(state: State, window: Window) -> State:
    """Return the state after one more window."""
    state = replace(
        now_is(state, live_replicas=window.live_replicas, queued=window.queued, slots=window.slots),
        last=window,
        stale=window.signal_age is not None and window.signal_age > STALE_SCRAPES * window.scrape_seconds,
        misread=_misread(state, window),
    )
    return _rung(state, window)


def now_is(state: State, *, live_replicas: int, queued: int, slots: int) -> State:
    """Return the state with the facts of this moment; no window has passed."""
    return replace(
        state,
        last=replace(state.last, live_replicas=live_replicas, queued=queued, slots=slots),
        dead=live_replicas <= 0,
        jammed=queued > (QUEUE_BACK if state.jammed else QUEUE_OUT) * max(1, slots),
    )


def _misread(state: State, window: Window) -> int:
    if window.control is None or window.control_calls < FEWEST_CALLS:
        return state.misread  # nothing new was read
    return state.misread + 1 if abs(window.control - 1.0) > CONTROL_TOLERANCE else 0


def _rung(state: State, window: Window) -> State:
    if state.rung == 2:
        if state.left > 1:
            return replace(state, left=state.left - 1)
        return replace(state, rung=1, left=0, below=0, above=0)
    if window.acceptance is None or window.break_even is None or window.calls < FEWEST_CALLS:
        return state
    if window.acceptance >= window.break_even:
        above = state.above + 1
        if above < WINDOWS:
            return replace(state, below=0, above=above)
        return replace(state, rung=0, below=0, above=0, pause=PAUSE_WINDOWS)
    below = state.below + 1
    if below < WINDOWS:
        return replace(state, below=below, above=0)
    if state.rung == 0:
        return replace(state, rung=1, below=0, above=0)
    return replace(state, rung=2, below=0, above=0, left=state.pause, pause=min(LONGEST_PAUSE, 2 * state.pause))


def verdict(state: State) -> Verdict:
    """Return what follows from a state; what takes a pool out comes before what only shakes the belief in it."""
    window = state.last
    if state.dead:
        return Verdict("replicas", "no replica is alive", available=False)
    if state.jammed:
        return Verdict("queue", f"{window.queued} calls wait for {window.slots} slots", available=False)
    if state.rung == 2:
        return Verdict("below_break_even", f"{_BELOW}; out for {state.left} more windows", available=False)
    if state.misread >= 2:  # one window may be chance
        said = f"the estimator reads {window.control or 0.0:.2f} instead of 1.00 on baseline, so acceptance is not believed"
        return Verdict("control", said, belief="prior", learns=False)
    if state.rung == 1:
        return Verdict("below_break_even", f"{_BELOW}; the prior decides", belief="prior")
    if state.stale:
        said = f"the engine's signals are {window.signal_age or 0.0:.0f} s old; the prior decides"
        return Verdict("stale", said, belief="prior")
    return FREE


class Guards:
    """The states of all pools by name."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._verdicts: dict[str, Verdict] = {}

    def __repr__(self) -> str:
        return f"<Guards {self.active() or 'free'}>"

    def window(self, pool: str, window: Window) -> Verdict:
        """Take in one window of a pool and return its verdict."""
        return self._judge(pool, advance(self._states.get(pool, State()), window))

    def moment(self, pool: str, *, live_replicas: int, queued: int, slots: int) -> Verdict:
        """Take in how a pool is at this moment and return its verdict."""
        state = self._states.get(pool, State())
        return self._judge(pool, now_is(state, live_replicas=live_replicas, queued=queued, slots=slots))

    def _judge(self, pool: str, state: State) -> Verdict:
        self._states[pool] = state
        found = self._verdicts[pool] = verdict(state)
        return found

    def of(self, pool: str) -> Verdict:
        """Return the verdict on a pool; one never heard of is free."""
        return self._verdicts.get(pool, FREE)

    def active(self) -> dict[str, Verdict]:
        """Return the verdicts that hold a pool."""
        return {pool: found for pool, found in self._verdicts.items() if found.guard is not None}

    def forget(self, pool: str) -> None:
        """Release a pool, as when its revision changed."""
        self._states.pop(pool, None)
        self._verdicts.pop(pool, None)
