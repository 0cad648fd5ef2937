"""What a fleet simulation found: figures per policy, time to adapt, price of exploration; as JSON, as a table, as a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.measure.fleet_run import Tally
    from gateway.measure.fleet_traffic import Call

WINDOW = 500  # calls over which an excess is measured when adaptation is timed
TOLERANCE = 0.01  # by which that excess may exceed the one before the change
FORESIGHT = 100  # speculated calls over which foreseen and observed acceptance are compared
NEAR = 0.05  # relative difference at which what was foreseen is right
RUN = 20  # calls of a template that show what has been learned of it
TURNED = (0.5, 0.35)  # shares of speculative choices of the oracle before and after that turn a template around
RIGHT = 0.8  # share of baseline choices among the run that is right then


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(tally: Tally, base: Tally, oracle: Tally, cost_weight: float) -> dict[str, float]:
    """Return what one policy achieved; the relative figures are relative to always-baseline, regret to the oracle.

    Decode time and `relative_decode_time` leave out queue and prefill; `relative_objective` mixes end-to-end time and cost by
    the tenants' cost weight, which is what routing minimises.
    """
    tokens = sum(tally.tokens)
    count = len(tally.e2e)
    tpot = [decode / tokens for decode, tokens in zip(tally.decode, tally.tokens, strict=True)]
    objective = _objective(tally, base, cost_weight)
    waits = sum(tally.e2e) - sum(tally.slot)
    return {
        "relative_decode_time": sum(tally.decode) / sum(base.decode),
        "relative_objective": objective,
        "relative_cost": sum(tally.cost) / sum(base.cost),
        "relative_e2e": sum(tally.e2e) / sum(base.e2e),
        "regret": sum(tally.decode) / sum(oracle.decode) - 1.0,
        "objective_regret": objective / _objective(oracle, base, cost_weight) - 1.0,
        "cost_usd_per_1m_output_tokens": 1e6 * sum(tally.cost) / tokens,
        "tpot_p50": quantile(tpot, 0.5),
        "tpot_p99": quantile(tpot, 0.99),
        "e2e_p50": quantile(tally.e2e, 0.5),
        "e2e_p99": quantile(tally.e2e, 0.99),
        "queue_mean": max(0.0, waits / count),
        "speculative_share": sum(tally.speculated) / count,
        "explored_share": sum(tally.explored) / count,
        "exploration_price": sum(tally.lost) / sum(tally.decode),
    }


def _objective(tally: Tally, base: Tally, cost_weight: float) -> float:
    cost = sum(tally.cost) / sum(base.cost)
    return cost_weight * cost + (1.0 - cost_weight) * sum(tally.e2e) / sum(base.e2e)


def calls_to_adapt(tally: Tally, oracle: Tally, change: int) -> int | None:
    """Return how many calls after a change the excess over the oracle is back where it was, None if it never is.

    Back means: over the next 500 calls it is at most one point above the second quarter of the run.
    """
    excess = _excess(tally, oracle, change // 2, change)
    last = len(tally.decode) - WINDOW
    step = WINDOW // 10
    for start in range(change, last + 1, step):
        if _excess(tally, oracle, start, start + WINDOW) <= excess + TOLERANCE:
            return start - change
    return None


def _excess(tally: Tally, oracle: Tally, start: int, stop: int) -> float:
    return sum(tally.decode[start:stop]) / sum(oracle.decode[start:stop]) - 1.0


def calls_to_foresee(tally: Tally, change: int) -> int | None:
    """Return how many calls after a change what is foreseen is right again, None if it never is.

    Right means: over the next 100 speculated calls, observed and foreseen acceptance lengths differ by at most 5 % in sum.
    """
    speculated = [index for index in range(change, len(tally.expected)) if tally.speculated[index]]
    for start in range(len(speculated) - FORESIGHT + 1):
        window = speculated[start : start + FORESIGHT]
        foreseen = sum(tally.expected[index] for index in window)
        if foreseen > 0.0 and abs(sum(tally.acceptance[index] for index in window) / foreseen - 1.0) <= NEAR:
            return window[0] - change
    return None


def template_calls_to_adapt(
    tally: Tally, oracle: Tally, calls: Iterable[Call], change: int
) -> dict[str, float | int] | None:
    """Return how many calls the templates that a change turned around needed until their choices were right.

    A template is turned around when most of the oracle's choices were speculative before the change and hardly a third after
    it. It has adapted where four fifths of its next 20 choices are baseline.
    """
    by_template: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        if call.template:
            by_template[call.template].append(call.index)
    needed = []
    for indices in by_template.values():
        before = [oracle.speculated[index] for index in indices if index < change]
        after = [index for index in indices if index >= change]
        if len(before) < RUN or len(after) < RUN or sum(before) < TURNED[0] * len(before):
            continue
        if sum(oracle.speculated[index] for index in after) <= TURNED[1] * len(after):
            needed.append(_until_right([tally.speculated[index] for index in after]))
    if not needed:
        return None
    return {"templates": len(needed), "median": quantile(needed, 0.5), "max": max(needed)}


def _until_right(speculated: Sequence[int]) -> int:
    for start in range(len(speculated) - RUN + 1):
        if sum(speculated[start : start + RUN]) <= (1.0 - RIGHT) * RUN:
            return start
    return len(speculated)


def largest_move(thresholds: Sequence[tuple[float, float]], seconds: float = 30.0) -> float:
    """Return by how much a threshold moved at most within so many seconds, from its values over time."""
    most = 0.0
    start = 0
    for end, (time, value) in enumerate(thresholds):
        while thresholds[start][0] < time - seconds:
            start += 1
        window = [value for _, value in thresholds[start : end + 1]]
        most = max(most, value - min(window), max(window) - value)
    return most


def table(report: Mapping[str, Any]) -> str:
    """Return one scenario's report as text for people."""
    columns = (
        ("relative_decode_time", "decode"),
        ("relative_objective", "objective"),
        ("regret", "regret"),
        ("cost_usd_per_1m_output_tokens", "$/1M"),
        ("tpot_p50", "tpot50"),
        ("e2e_p99", "e2e99"),
        ("speculative_share", "spec"),
        ("explored_share", "explored"),
    )
    lines = [f"{report['scenario']:<18}" + "".join(f"{title:>10}" for _, title in columns)]
    for name, found in report["policies"].items():
        lines.append(f"  {name:<16}" + "".join(f"{found[key]:>10.4f}" for key, _ in columns))
    adapted = report.get("time_to_adapt")
    if adapted:
        lines.append("  after the change: " + ", ".join(f"{name} {found}" for name, found in adapted.items()))
    return "\n".join(lines)


def draw(reports: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the objective by scenario and policy; needs matplotlib, raises ImportError without it."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    names = list(reports[0]["policies"])
    figure, axes = plt.subplots(figsize=(1.6 + 1.9 * len(reports), 4.2), layout="constrained")
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        heights = [report["policies"][name]["relative_objective"] for report in reports]
        offsets = [index + (place - (len(names) - 1) / 2) * width for index in range(len(reports))]
        axes.bar(offsets, heights, width, label=name)
    axes.set_xticks(range(len(reports)), [report["scenario"] for report in reports])
    axes.set_ylabel("objective relative to always-baseline")
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_ylim(0.6, 1.4)  # an overloaded pool's queue has no bound, and nobody compares how far a disaster went
    axes.legend(fontsize=7, ncols=3)
    figure.savefig(file, dpi=140)
    plt.close(figure)
