"""What a comparison's figures amount to, in words, each with the interval that carries it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.measure.paired.intervals import FEWEST_PROMPTS, Estimate
from gateway.measure.paired.result import Group, Level, Verdict

_CARRIERS: Final = {"tpot": "decode time per token", "e2e": "time from sending to the last byte"}
_MOST_NAMED: Final = 8
_MOST_PROMPTS: Final = 1_000_000


def verdict(overall: Group, categories: Sequence[Group], names: tuple[str, str], precision: float) -> Verdict:
    """Judge one level: adopt, adopt for some categories, don't, or not enough samples to say."""
    gains = [each for each in categories if each.finding == "gain"]
    losses = [each for each in categories if each.finding == "loss"]
    new = names[1]
    if overall.finding == "gain" and not losses:
        return Verdict(answer="adopt", text=f"Adopt {new}: {_ratio(overall, names)}.{_money(overall, names)}")
    if gains:
        rest = [each for each in categories if each.finding != "gain"]
        text = f"Adopt {new} for {_listed(gains)}."
        if rest:
            text += f" Not for {_listed(rest)}."
        return Verdict(
            answer="adopt_for",
            text=f"{text} All together: {_ratio(overall, names)}.{_money(overall, names)}",
            categories=tuple(each.category for each in gains),
        )
    if overall.finding in ("loss", "even"):
        why = (
            f"{_ratio(overall, names)}, no difference worth having"
            if overall.finding == "even"
            else _ratio(overall, names)
        )
        return Verdict(answer="dont", text=f"Don't adopt {new}: {why}.{_money(overall, names)}")
    return Verdict(answer="not_enough", text=f"Not enough samples to say: {_missing(overall, names, precision)}.")


def across(levels: Sequence[Level]) -> Verdict:
    """Judge all levels together: a sign that flips with load is said first."""
    if len(levels) == 1:
        return levels[0].verdict
    told = " ".join(f"At concurrency {level.concurrency}: {level.verdict.text}" for level in levels)
    flips = flipped(levels)
    if flips:
        told = f"The sign flips with load ({'; '.join(flips)}): route by load. {told}"
    answers = {level.verdict.answer for level in levels}
    if len(answers) == 1 and not flips:
        categories = set.intersection(*(set(level.verdict.categories) for level in levels))
        return Verdict(answer=levels[0].verdict.answer, text=told, categories=tuple(sorted(categories)))
    return Verdict(answer="adopt_for" if answers & {"adopt", "adopt_for"} else "not_enough", text=told)


def flipped(levels: Sequence[Level]) -> list[str]:
    """Return, in words, each group that gains at one level and loses at another."""
    found = []
    for name in ["", *sorted({each.category for level in levels for each in level.categories})]:
        groups = [(level.concurrency, group) for level in levels for group in _groups(level) if group.category == name]
        if {"gain", "loss"} <= {group.finding for _, group in groups}:
            steps = ", ".join(f"{interval(group.judged)} at {level}" for level, group in groups)
            found.append(f"{name or 'all together'}: {steps}")
    return found


def _groups(level: Level) -> tuple[Group, ...]:
    return (level.overall, *level.categories)


def warnings(level: Level, precision: float) -> list[str]:
    """Return what a reader must know before they rely on a level's figures."""
    at = "" if level.concurrency is None else f" at concurrency {level.concurrency}"
    shown = level.categories or (level.overall,)
    found = [
        f"{each.category or 'all together'}{at}: {_missing(each, None, precision)}"
        for each in shown
        if each.finding == "unclear"
    ]
    if few := [each for each in shown if each.finding == "few"]:
        named = ", ".join(f"{each.category or 'all together'} {each.prompts}" for each in few[:_MOST_NAMED])
        more = f" and {len(few) - _MOST_NAMED} more" if len(few) > _MOST_NAMED else ""
        found.append(f"too few prompts for an interval{at} ({named}{more}): {FEWEST_PROMPTS} are needed")
    for pool in level.overall.pools:
        if pool.failed:
            found.append(f"{pool.name}{at}: {pool.failed} of {pool.failed + pool.calls} calls failed and are left out")
        if pool.calls and pool.tpot_seconds is None:
            found.append(f"{pool.name}{at}: no time to first token or no token counts; E2E carries the verdict")
        under_way = level.reached.get(pool.name)
        if level.concurrency and under_way and under_way < 0.7 * level.concurrency:
            found.append(
                f"{pool.name}: {under_way:.1f} calls under way on average where {level.concurrency} were meant;"
                " more prompts keep it busy"
            )
    equality = level.equality
    if equality is not None and equality.share is not None and equality.temperature == 0:
        floor = min((same / of for same, of in equality.repeated.values() if of), default=1.0)
        if equality.share < min(floor, 0.95):
            found.append(
                f"outputs{at}: only {equality.share:.0%} are equal at temperature 0; speculation should not change them"
                " (batching can, see how often each pool repeats itself)"
            )
    return found


def interval(found: Estimate | None, form: str = ".2f") -> str:
    """Return a figure with its interval: "0.41 (0.38–0.44)"."""
    if found is None:
        return "unknown"
    if found.low is None or found.high is None:
        return format(found.value, form)
    return f"{found.value:{form}} ({found.low:{form}}–{found.high:{form}})"


def prompts_needed(group: Group, precision: float) -> int | None:
    """Return about how many prompts would bring the interval to the precision; None where there is none to go by."""
    width = None if group.judged is None else group.judged.half_width
    if width is None or precision <= 0:
        return None
    return min(_MOST_PROMPTS, max(group.prompts + 1, round(group.prompts * (width / precision) ** 2)))


def _ratio(group: Group, names: tuple[str, str]) -> str:
    found = group.judged
    said = f"{_CARRIERS[group.carrier]} is {interval(found)} of {names[0]}'s"
    if found is not None and found.value < 1:
        said += f", {1 / found.value:.2f} times as fast"
    e2e = group.ratios.e2e
    if group.carrier == "tpot" and e2e is not None:
        said += f"; E2E {interval(e2e)}"
    return f"{said}; {_prompts(group)}"


def _money(group: Group, names: tuple[str, str]) -> str:
    cost = group.ratios.cost
    if cost is None:
        return ""
    if cost.low is not None and cost.low > 1:
        return f" It costs more: {interval(cost)} of {names[0]}'s per output token."
    if cost.high is not None and cost.high < 1:
        return f" It costs less: {interval(cost)} of {names[0]}'s per output token."
    return f" Cost per output token: {interval(cost)} of {names[0]}'s."


def _missing(group: Group, names: tuple[str, str] | None, precision: float) -> str:
    if group.finding == "few":
        return f"{_prompts(group)} with answers on both sides, and {FEWEST_PROMPTS} are needed for an interval"
    whose = "" if names is None else f" of {names[0]}'s"
    needed = prompts_needed(group, precision)
    count = "more than a million" if needed == _MOST_PROMPTS else f"about {needed}"
    enough = "" if needed is None else f"; {count} prompts would tell it to ±{100 * precision:.3g}%"
    return (
        f"{_CARRIERS[group.carrier]} is {interval(group.judged)}{whose}, {_prompts(group)},"
        f" which holds gain and loss{enough}"
    )


def _prompts(group: Group) -> str:
    return f"{group.prompts} prompt{'s' * (group.prompts != 1)}"


def _listed(groups: Iterable[Group]) -> str:
    said = {"few": "too few prompts", "unclear": "unclear"}
    return ", ".join(
        f"{each.category} ({said[each.finding] + ': ' if each.finding in said else ''}{interval(each.judged)})"
        for each in groups
    )
