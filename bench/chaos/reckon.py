"""The reckoning: what clients hold, what engines have journalled, and what the ledger says, tenant by tenant. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.chaos.load import Call
from gateway.store import Row


@dataclass(slots=True)
class Reckoning:
    """What came of it; `wrong` holds every discrepancy, in words, and is empty when all is right.

    Tokens are of prompts and answers together. A call that was cut at the very moment when its answer was whole is booked or
    not; either is right, and such calls are counted as `undelivered` when they are booked.
    """

    calls: int = 0
    whole: int = 0
    whole_tokens: int = 0
    ledger_tokens: int = 0
    undelivered: int = 0
    estimated_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by why
    wrong: list[str] = field(default_factory=list)


def reckon(calls: Iterable[Call], done: Mapping[str, Sequence[int]], rows: Iterable[Row]) -> Reckoning:
    """Compare calls with `done`, the tokens of each whole answer of engines by request id, and with the ledger's rows."""
    found = Reckoning()
    by_tenant: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_tenant[call.tenant].append(call)
    booked: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for measure, amount in row.measures.items():
            booked[row.tenant][measure] += round(amount) if measure.endswith(("tokens", "_ok")) else 0
    for tenant, its in sorted(by_tenant.items()):
        _tenant(found, tenant, its, done, booked[tenant])
    found.wrong += [f"{tenant}: the ledger knows a tenant that has not called" for tenant in booked.keys() - by_tenant]
    return found


def _tenant(
    found: Reckoning, tenant: str, calls: Sequence[Call], done: Mapping[str, Sequence[int]], booked: Mapping[str, int]
) -> None:
    whole = [call for call in calls if call.tokens is not None]
    for call in whole:
        if call.tokens not in done.get(call.request_id, ()):
            found.wrong.append(f"{call.request_id}: told {call.tokens} tokens, generated {done.get(call.request_id)}")
    held = sum(call.tokens or 0 for call in whole)
    exact = booked["prompt_tokens"] + booked["completion_tokens"] - booked["estimated_tokens"]
    # What an engine finished and its client never got whole may be on the bill, once: of a call that was asked again after
    # an engine died with the whole answer in hand, whichever of its answers the gateway had in full.
    maybe = [sorted({*done[call.request_id]}) for call in calls if call.tokens is None and call.request_id in done]
    extra = _among(maybe, exact - held)
    if extra is None:
        found.wrong.append(f"{tenant}: clients hold {held} tokens, the ledger {exact}, perhaps of {maybe}")
    found.calls += len(calls)
    found.whole += len(whole)
    found.whole_tokens += held
    found.ledger_tokens += exact
    found.undelivered += extra or 0
    found.estimated_tokens += booked["estimated_tokens"]
    for call in calls:
        if call.why:
            found.failures[call.why] = found.failures.get(call.why, 0) + 1


def _among(choices: Sequence[Sequence[int]], total: int) -> int | None:
    """Return the fewest of the choices of which one number each add up to the total, None when none do."""
    fewest = {0: 0}
    for numbers in choices:
        for reached, count in list(fewest.items()):
            for number in numbers:
                if reached + number <= total:
                    fewest[reached + number] = min(fewest.get(reached + number, count + 1), count + 1)
    return fewest.get(total)
