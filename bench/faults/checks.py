"""What is checked of a case, from the caller's view and from the engines'. Pure: each check reads a `Seen`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.faults.caller import Result
from gateway.engine.record import Entry
from gateway.record import Finished

Verdict = Literal["pass", "partial", "safe", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One case in one mode: what its callers have, what both engines received, what the gateway booked."""

    mode: str
    results: Sequence[Result]
    right: str  # the whole answer, as a sound engine gives it
    first: Sequence[Entry]  # requests at the engine with the fault
    second: Sequence[Entry]  # and at the other one
    second_pool: str
    booked: Sequence[Finished]
    alive: bool  # a call afterwards, the faults lifted, was answered in full
    down_seconds: float = 0.0  # of an engine that flaps
    began: float = 0.0  # when it went down, monotonic seconds

    @property
    def result(self) -> Result:
        """What the only, or the last, caller has."""
        return self.results[-1]

    def whole(self, result: Result) -> bool:
        """Whether a caller has the complete answer."""
        return result.outcome == "success" and result.text == self.right


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold; an `advisory` one that does not makes a pass partial instead of failed."""

    name: str
    holds: Callable[[Seen], bool]
    advisory: bool = False
    mode: str | None = None  # where it means something; None: in both


def ended() -> Check:
    """Every call came to an end."""
    return Check("no hang", lambda seen: all(result.outcome != "hang" for result in seen.results))


def never_half() -> Check:
    """No truncated or altered answer passed for a success."""
    return Check("never half", lambda seen: all(r.outcome != "success" or seen.whole(r) for r in seen.results))


def attempts(least: int, most: int, *, advisory: bool = False) -> Check:
    """The failing engine was asked so many times."""
    name = f"asked {least}" if least == most else f"asked {least} to {most} times"
    return Check(name, lambda seen: least <= len(seen.first) <= most, advisory)


def pause(seconds: float) -> Check:
    """The failing engine was left alone for so long before it was asked again."""

    def kept(seen: Seen) -> bool:
        return len(seen.first) >= 2 and seen.first[1].arrived - seen.first[0].arrived >= seconds

    return Check(f"pause of {seconds:g} s kept", kept, advisory=True)


def gentle(most: int, seconds: float) -> Check:
    """The failing engine was not hammered: at most so many requests in its first seconds."""

    def held(seen: Seen) -> bool:
        return sum(entry.arrived - seen.first[0].arrived < seconds for entry in seen.first) <= most

    return Check(f"at most {most} requests in {seconds:g} s", held)


def within(seconds: float, *, advisory: bool = False, mode: str | None = None) -> Check:
    """The caller had its end in time."""
    return Check(f"ended in {seconds:g} s", lambda seen: seen.result.seconds <= seconds, advisory, mode)


def alive() -> Check:
    """A sound call is answered afterwards: nothing was poisoned."""
    return Check("alive after", lambda seen: seen.alive)


def usage_told() -> Check:
    """The caller was told the usage."""
    return Check("usage told", lambda seen: bool(seen.result.usage), advisory=True)


def reason_told(code: str) -> Check:
    """The engine's own reason reached the caller."""
    return Check("reason told", lambda seen: seen.result.status == 400 and seen.result.code == code)


def second_not_asked() -> Check:
    """Nobody else was asked."""
    return Check("not routed around", lambda seen: not seen.second)


def second_reported() -> Check:
    """The pool that answered is the one that is reported and billed."""
    return Check(
        "answering pool reported",
        lambda seen: seen.result.pool == seen.second_pool and [call.pool for call in seen.booked] == [seen.second_pool],
    )


def failures_not_billed() -> Check:
    """Tokens and slot time are those of the answer alone."""

    def held(seen: Seen) -> bool:
        tokens = sum(call.completion_tokens for call in seen.booked)
        answer = [entry for entry in seen.second if entry.finished]
        return tokens == sum(e.tokens for e in answer) and all(c.slot_seconds <= c.duration for c in seen.booked)

    return Check("failures not billed", held)


def not_masked() -> Check:
    """What the caller is told is not that the second engine takes no prefill."""
    return Check("no masking", lambda seen: "go on from a message" not in seen.result.message)


def served_while_down() -> Check:
    """Every call that came while the first engine was down was answered."""

    def held(seen: Seen) -> bool:
        during = [r for r in seen.results if r.sent_at - seen.began < seen.down_seconds]
        return bool(during) and all(seen.whole(result) for result in during)

    return Check("served while down", held)


def back_within(seconds: float) -> Check:
    """The first engine serves again soon after it has recovered."""

    def held(seen: Seen) -> bool:
        served = [entry.arrived for entry in seen.first if entry.status == 200]
        return bool(served) and min(served) - seen.began - seen.down_seconds <= seconds

    return Check(f"back within {seconds:g} s", held)


def probed_seldom() -> Check:
    """A down engine is probed, not tried by every call: at most one attempt for two calls."""

    def held(seen: Seen) -> bool:
        during = sum(r.sent_at - seen.began < seen.down_seconds for r in seen.results)
        tried = sum(entry.status == 503 for entry in seen.first)
        return tried <= max(3, during / 2)

    return Check("probed seldom", held)


def verdict(seen: Seen, checks: Sequence[Check], ideal: Literal["success", "error"]) -> tuple[Verdict, list[str]]:
    """Return the verdict of a case, and the checks that do not hold.

    pass: the caller has what it should, and all checks hold. partial: but for an advisory one. safe: it has a clean error
    where it should have the answer, and no check fails that must hold. fail: anything else.
    """
    broken = [check for check in checks if check.mode in (None, seen.mode) and not check.holds(seen)]
    names = [check.name for check in broken]
    if any(not check.advisory for check in broken):
        return "fail", names
    reached = seen.result.outcome == "error"
    if ideal == "success":
        reached = all(seen.whole(result) for result in seen.results)
    if not reached:
        return "safe", [*names, f"not answered: {seen.result.message[:80]}"]
    return ("partial" if broken else "pass"), names
