"""What is wrong, in words, with what to do about it. Pure: a reading of what the overview holds anyway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Level = Literal["error", "warning", "note"]
ORDER: Final[tuple[Level, ...]] = ("error", "warning", "note")
STALE_SECONDS: Final = 60.0
NEARLY: Final = 0.8  # of a limit or budget
FAILING: Final = 0.05  # share of calls
FEWEST_CALLS: Final = 20  # below, a share says little
_OUT: Final = {
    "unhealthy": "fails its health checks; look at the engine's log",
    "open": "has failed several calls in a row and is tried again in a moment",
    "half-open": "is being tried again after failures",
    "cooling": "has asked to be left alone for a while",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: a sentence, and a sentence with what to do or what follows."""

    level: Level
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Used:
    """How far a limit or budget of a tenant is used, 0 to 1 and beyond."""

    tenant: str
    limit: str
    share: float


def problems(
    state: Mapping[str, Any],
    *,
    now: Mapping[str, Any],
    used: Iterable[Used],
    ages: Mapping[str, float],
    warnings: Iterable[str],
    trouble: str | None,
) -> list[dict[str, str]]:
    """Return what is wrong, gravest first.

    Args:
        state: what /draftlane/state says.
        now: what the last minutes came to.
        used: limits and budgets.
        ages: seconds since each replica's figures were read.
        warnings: what the configuration deserves a word about.
        trouble: why today's totals could not be read.
    """
    found = [*_pools(state["pools"]), *_books(state.get("settlement"), trouble), *_calls(now), *_limits(used)]
    found += [
        Problem("warning", f"Replica {name} has not told its figures for {age:.0f} s.", "Load by others is unseen.")
        for name, age in ages.items()
        if age > STALE_SECONDS
    ]
    if state["draining"]:
        found.append(Problem("note", "This gateway is draining.", "It ends once its calls have; no new traffic comes."))
    found += [Problem("note", "The configuration deserves a word.", warning) for warning in warnings]
    return [asdict(each) for each in sorted(found, key=lambda each: ORDER.index(each.level))]


def _pools(pools: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    for pool in pools:
        name = pool["name"]
        if not pool["enabled"]:
            yield Problem("note", f"Pool {name} is switched off.", "Its calls go to other pools. Enable it to use it.")
        elif not pool["available"] and pool["guard"] is None:
            yield Problem("error", f"Pool {name} is not available: {pool['why_unavailable']}.", "Calls go elsewhere.")
        if pool["guard"] is not None:
            said = f"Guard {pool['guard']} holds pool {name}."
            yield Problem("warning", said, f"{pool['guard_reason'].capitalize()}.")
        for replica in pool["replicas"]:
            if replica["state"] != "live":
                yield Problem(
                    "warning", f"Replica {replica['name']} is {replica['state']}.", f"It {_OUT[replica['state']]}."
                )


def _books(books: Mapping[str, Any] | None, trouble: str | None) -> Iterator[Problem]:
    for part, why in (books or {}).get("degraded", {}).items():
        yield Problem(
            "warning", f"The {part} fails: {why}.", "Nothing is lost; what is counted waits until it is back."
        )
    if trouble is not None:
        yield Problem("warning", "Today's totals cannot be read.", f"{trouble}.")


def _calls(now: Mapping[str, Any]) -> Iterator[Problem]:
    calls, failed = now["calls"], now["failed"]
    if calls >= FEWEST_CALLS and failed / calls > FAILING:
        said = f"{failed} of the last {calls} calls failed."
        yield Problem("error", said, "The decisions below tell where; the log tells why.")
    if now["free"]:
        said = f"{now['free']} answers of the last minutes cost nothing."
        yield Problem("warning", said, "A price is missing, or their usage; budgets do not see them.")


def _limits(used: Iterable[Used]) -> Iterator[Problem]:
    for each in used:
        what = each.limit.replace("_", " ")
        if each.share >= 1:
            said = f"Tenant {each.tenant} has used up its {what}."
            yield Problem(
                "warning", said, "Its calls are refused until there is room again, unless the budget is soft."
            )
        elif each.share >= NEARLY and not each.limit.endswith("per_minute"):
            said = f"Tenant {each.tenant} has used {each.share:.0%} of its {what}."
            yield Problem("warning", said, "Past 100 % its calls are refused, unless the budget is soft.")
