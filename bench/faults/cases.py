"""The sixteen cases: what goes wrong, what a sound gateway does about it, and what is checked.

The catalogue follows Failover Bench (methodology 0.1), a public suite that scores gateways by such faults: what its fallback
model is there, the second pool of the model is here. `full` has its waits, `fast` shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bench.faults import checks as c
from bench.faults.checks import Check

Spec = Mapping[str, Any]  # a fault in the words of the engine's admin call


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds: what faults take, what the gateway allows, what the caller allows, and how a flapping engine is called."""

    retry_after: float
    slow: float
    down: float
    calls: int
    every: float
    first_token: float
    idle: float
    total: float
    health: float
    limit: float
    speed: float  # of the engines

    @property
    def limits(self) -> dict[str, float]:
        """The gateway's limits."""
        return {
            "first_byte_seconds": self.first_token,
            "idle_seconds": self.idle,
            "total_seconds": self.total,
            "health_seconds": self.health,
        }


FULL: Final = Timing(
    retry_after=2, slow=20, down=60, calls=24, every=4, first_token=10, idle=10, total=30, health=3, limit=120, speed=3
)
FAST: Final = Timing(
    retry_after=0.5,
    slow=2.4,
    down=2.0,
    calls=18,
    every=0.2,
    first_token=0.8,
    idle=0.8,
    total=3.2,
    health=0.6,
    limit=30,
    speed=40,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault on the first pool's engine, perhaps one on the second's, and what must hold."""

    id: str
    title: str
    fault: Spec
    right: str  # conduct, in words
    checks: Sequence[Check]
    second: Spec | None = None
    ideal: Literal["success", "error"] = "success"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the first pool
    flaps: bool = False
    speed: float | None = None  # of its engines, where it is not that of all


def cases(t: Timing) -> tuple[Case, ...]:
    """Return all cases in these timings; long because they stand here as one table, so that they can be read as one."""
    sound = (c.ended(), c.never_half())
    return (
        Case(
            id="S01",
            title="429 with Retry-After",
            fault={"fault": "429", "count": 1, "retry_after": t.retry_after},
            right="keep the pause, then ask again: the other pool would be later",
            checks=(*sound, c.attempts(2, 2, advisory=True), c.pause(0.9 * t.retry_after), c.gentle(2, t.retry_after)),
            speed=0.5 / t.retry_after,  # slow engines: the other pool would take longer than the pause
        ),
        Case(
            id="S02",
            title="429 without Retry-After, for good",
            fault={"fault": "429"},
            right="fail over, never hammer",
            checks=(*sound, c.gentle(4, 3), c.attempts(1, 6)),
        ),
        Case(
            id="S03",
            title="500 once, then well",
            fault={"fault": "500", "count": 1},
            right="ask the same engine once more",
            checks=(*sound, c.attempts(2, 2, advisory=True)),
        ),
        Case(
            id="S04",
            title="503 for good",
            fault={"fault": "503"},
            right="fail over within the retry budget",
            checks=(*sound, c.attempts(1, 6)),
        ),
        Case(
            id="S05",
            title="TCP reset before the headers",
            fault={"fault": "reset", "count": 1},
            right="ask again or fail over",
            checks=(*sound, c.attempts(1, 6)),
        ),
        Case(
            id="S06",
            title="No response at all",
            fault={"fault": "silent"},
            right="give up at the limit and fail over: a silent engine stays silent",
            checks=(*sound, c.within(100), c.attempts(1, 1, advisory=True)),
        ),
        Case(
            id="S07",
            title="Slow first token",
            fault={"fault": "slow", "seconds": t.slow},
            right="fail over at the first-token limit; a JSON answer may take its time",
            checks=(*sound, c.within(0.75 * t.slow, advisory=True, mode="sse")),
        ),
        Case(
            id="S08",
            title="Stream cut in the middle",
            fault={"fault": "cut", "after_events": 4},
            right="the whole answer from elsewhere, or a clear error; never a short success",
            checks=sound,
        ),
        Case(
            id="S09",
            title="Stream stalls",
            fault={"fault": "stall", "after_events": 4},
            right="notice within the idle limit; the whole answer from elsewhere, or a clear error",
            checks=(*sound, c.within(4.5 * t.idle), c.alive()),
        ),
        Case(
            id="S10",
            title="Malformed event",
            fault={"fault": "malformed", "after_events": 4},
            right="pass it on or fail cleanly; the next call is served",
            checks=(*sound, c.alive()),
        ),
        Case(
            id="S11",
            title="Stream ends without [DONE]",
            fault={"fault": "no_done"},
            right="end at once, with the usage",
            checks=(*sound, c.within(8), c.usage_told()),
        ),
        Case(
            id="S12",
            title="Context length exceeded",
            fault={"fault": "context_length"},
            right="never again on this pool; one with a longer context takes it",
            checks=(*sound, c.attempts(1, 1)),
            settings={"max_model_len": 4096},
        ),
        Case(
            id="S13",
            title="Content filter",
            fault={"fault": "content_filter"},
            right="tell the engine's reason; ask nobody else",
            checks=(c.ended(), c.attempts(1, 1), c.reason_told("content_filter"), c.second_not_asked()),
            ideal="error",
        ),
        Case(
            id="S14",
            title="The other engine takes no prefill",
            fault={"fault": "cut", "after_events": 4},
            second={"fault": "prefill"},
            right="begin anew instead of continuing; never tell the refusal of a prefill",
            checks=(*sound, c.not_masked()),
        ),
        Case(
            id="S15",
            title="Down, then well again",
            fault={"fault": "flap", "seconds": t.down},
            right="serve from elsewhere, probe, return",
            checks=(c.ended(), c.served_while_down(), c.back_within(min(30, t.down)), c.probed_seldom()),
            flaps=True,
        ),
        Case(
            id="S16",
            title="Fail-over accounting",
            fault={"fault": "503"},
            right="report the pool that answered; bill it alone",
            checks=(*sound, c.second_reported(), c.failures_not_billed(), c.usage_told(), c.attempts(1, 6)),
        ),
    )
