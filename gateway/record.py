"""The one fact that a finished call leaves behind; sinks (metrics, ledger, log, learning) read it and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.trace import Trace

if TYPE_CHECKING:
    from classifier.scorer import Score

Outcome = Literal[
    "ok",  # the whole answer reached the client
    "engine_error",  # the engine's own 4xx or 5xx passed through
    "rejected",  # the gateway refused it: key, limits, bad input
    "unavailable",  # no pool could take it
    "upstream_failed",  # connection refused, reset or nonsense before the first byte, on every replica tried
    "upstream_timeout",  # the engine stayed silent before the first byte
    "truncated",  # the engine broke off after the first byte
    "stalled",  # the engine fell silent after the first byte, or passed the total limit
    "client_gone",  # the client left
    "client_stalled",  # the client stopped reading and was cut
    "internal",  # a defect of the gateway
]
Source = Literal["engine", "events", "timing", "none"]
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined]
SOURCES: tuple[Source, ...] = Source.__args__  # type: ignore[attr-defined]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """All that a finished call leaves: who, where, why, how long, how many tokens, what it cost and what it taught.

    Times are seconds, `time` is a Unix time, money is US dollars.
    """

    request_id: str
    time: float
    endpoint: str  # chat, completions, responses, messages, other
    tenant: str
    model: str  # a configured model's name, or "" when none was resolved; never a client's free string
    stream: bool
    status: int
    outcome: Outcome
    error: str | None = None
    pool: str = ""
    replica: str = ""
    revision: str = ""
    resumed_from: str = ""  # the pool whose stream broke off, where `pool` has gone on with it from the beginning
    speculative: bool = False
    attempts: int = 0
    running: int = 0  # requests on the replica when this one was sent, itself included
    reason: str = ""
    detail: str = ""
    score: float | None = None
    scored: Score | None = None  # all that the classifier said
    artefact: str = ""
    threshold: float | None = None
    break_even: float | None = None
    expected: float | None = None  # predicted acceptance length on the speculative pool
    propensity: float = 1.0
    explored: bool = False
    shadow: str = ""  # the pool that policy "shadow" would have chosen
    template: str = ""
    conversation: str = ""  # fingerprint of its beginning, "" where there is none
    trace: Trace | None = None  # its place in a trace, where calls are traced
    copy_of: str = ""  # the request id of the call that this is a shadow copy of
    temperature: float | None = None
    prompt: str = ""  # the request's body, only where the operator has switched it on
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_source: Literal["engine", "events", "none"] = "none"
    duration: float = 0.0
    queued: float = 0.0  # of it, waiting at the gateway for a place
    ttft: float | None = None
    overhead: Mapping[str, float] = msgspec.field(default_factory=dict)  # phase → seconds: parse, score, plan, total
    acceptance: float | None = None  # observed tokens per verification step
    steps: float | None = None
    step_seconds: float | None = None
    source: Source = "none"
    biased: str = ""  # why the observation teaches nothing, or ""
    slot_seconds: float = 0.0
    cost_usd: float = 0.0
    counterfactual: Mapping[str, float] = msgspec.field(default_factory=dict)  # policy → US dollars
