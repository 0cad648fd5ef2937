"""`draftlane fleet`: compares routing policies on a simulated fleet whose acceptance comes from labelled requests.

The policy called draftlane is the gateway's own routing code, fed as a gateway would feed it. Everything follows from the data,
the arguments and the seed: there is no wall clock in it, so the same command prints the same figures.

Rows that the artefact was trained on flatter its scores, and with them every policy that reads them; `--artefact` takes one
that was trained elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classifier.scorer import ArtefactError, Scorer
from gateway.measure.fleet_policies import POLICIES, Draftlane, Policy, build
from gateway.measure.fleet_report import (
    calls_to_adapt,
    calls_to_foresee,
    draw,
    figures,
    largest_move,
    table,
    template_calls_to_adapt,
)
from gateway.measure.fleet_rows import DataError, Row, read
from gateway.measure.fleet_run import Run, Tally
from gateway.measure.fleet_traffic import SCENARIOS, Call, Scenario, Shape, acceptance, calls, shaped
from gateway.routing import PoolView

CHANGING = ("acceptance-drop", "new-tenant", "price-change", "half-pool")
COMPARED = ("baseline", "draftlane", "oracle")  # always run: the others are measured against them
PESSIMISM = tuple(1.1 + 0.05 * bin_ for bin_ in range(10))  # a prior by which nothing is worth speculating


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("fleet", help="compare routing policies on a simulated fleet")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="labelled requests, *.jsonl")
    parser.add_argument("--scenario", choices=(*SCENARIOS, "all"), default="templated")
    parser.add_argument("--requests", type=_positive, default=20_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--policies",
        type=_policies,
        default=POLICIES,
        metavar="A,B",
        help="only these, and what they are compared with",
    )
    parser.add_argument("--replicas", type=_positive, default=4, help="of each pool (default 4)")
    parser.add_argument("--slots", type=_positive, default=4, help="of each replica (default 4)")
    parser.add_argument("--drafter", choices=("draft", "ngram"), default="draft", help="which labels to draw from")
    parser.add_argument(
        "--windows", type=_windows, default=(7,), metavar="K,K", help="a speculative pool each, of the windows labelled"
    )
    parser.add_argument(
        "--ratio", type=_ratio, default=105 / 45, help="R, speculative over baseline step (default 2.33)"
    )
    parser.add_argument("--cost-weight", type=_share, default=0.5, help="0 soonest … 1 cheapest (default 0.5)")
    parser.add_argument(
        "--prior", choices=("artefact", "pessimistic"), default="artefact", help="what is believed at first"
    )
    parser.add_argument(
        "--artefact", type=Path, metavar="FILE", help="score with this artefact instead of the shipped one"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the objective of every policy")


def run(args: argparse.Namespace) -> int:
    """Run the simulation; returns 0, or 2 when the data or the artefact cannot be used."""
    try:
        scorer = Scorer.load(args.artefact)
        rows = read(args.data, scorer)
        reports = [_scenario(name, args, rows, scorer) for name in _names(args.scenario)]
        if args.plot is not None:
            draw(reports, args.plot)
    except (DataError, ArtefactError, OSError) as error:
        sys.stderr.write(f"draftlane fleet: {error}\n")
        return 2
    except ImportError:
        sys.stderr.write("draftlane fleet: --plot needs matplotlib; pip install 'draftlane[train]' brings it\n")
        return 2
    if args.json:
        sys.stdout.write(json.dumps(reports[0] if args.scenario != "all" else {"scenarios": reports}) + "\n")
    else:
        sys.stdout.write("\n\n".join(table(report) for report in reports) + "\n")
    return 0


def _scenario(name: Any, args: argparse.Namespace, rows: Sequence[Row], scorer: Scorer) -> dict[str, Any]:
    shape = Shape(
        replicas=args.replicas, slots=args.slots, ratio=args.ratio, windows=args.windows, drafter=args.drafter
    )
    for window in shape.windows:
        if any((shape.drafter, window) not in row.acceptance for row in rows):
            raise DataError(f"not every row has a label for drafter {shape.drafter}, window {window}")
    scenario = Scenario(name, shaped(name, shape), args.requests, args.seed)
    reference = PESSIMISM if args.prior == "pessimistic" else scorer.prior_curve

    def truth(call: Call, pool: PoolView) -> float:
        return acceptance(call, shape.drafter, pool.window)

    tallies: dict[str, Tally] = {}
    policies: dict[str, Policy] = {}
    for policy in POLICIES:
        if policy in args.policies or policy in COMPARED:
            sys.stderr.write(f"{name}: {policy}\n")
            policies[policy] = build(
                policy, reference=reference, seed=args.seed, cost_weight=args.cost_weight, truth=truth
            )
            tallies[policy] = Run(scenario, policies[policy]).all(rows)
    return _report(scenario, args, rows, scorer, tallies, policies)


def _report(
    scenario: Scenario,
    args: argparse.Namespace,
    rows: Sequence[Row],
    scorer: Scorer,
    tallies: dict[str, Tally],
    policies: dict[str, Policy],
) -> dict[str, Any]:
    base, mine, oracle = (tallies[name] for name in COMPARED)
    routing = policies["draftlane"]
    assert isinstance(routing, Draftlane)
    shape = scenario.shape
    report: dict[str, Any] = {
        "scenario": scenario.name,
        "requests": scenario.requests,
        "seed": scenario.seed,
        "artefact": scorer.version,
        "prior": args.prior,
        "cost_weight": args.cost_weight,
        "judged_by": "relative_objective",
        "fleet": {
            "replicas": shape.replicas,
            "slots": shape.slots,
            "drafter": shape.drafter,
            "windows": list(shape.windows),
            "step_ratio": shape.ratio,
            "step_growth": {"baseline": shape.base_growth, "speculative": shape.spec_growth},
        },
        "policies": {name: figures(tally, base, oracle, args.cost_weight) for name, tally in tallies.items()},
        "exploration_price": sum(mine.lost) / sum(mine.decode),
        "threshold": {"last": routing.history[-1][1], "largest_move_in_30_s": largest_move(routing.history)},
    }
    if scenario.name in CHANGING:
        change = scenario.change_at
        report["time_to_adapt"] = {
            "overall_requests": calls_to_adapt(mine, oracle, change),
            "template_requests": template_calls_to_adapt(mine, oracle, calls(scenario, rows), change),
            "foresight_requests": calls_to_foresee(mine, change),
        }
    return report


def _names(scenario: str) -> Sequence[str]:
    return SCENARIOS if scenario == "all" else (scenario,)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _windows(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _ratio(text: str) -> float:
    number = float(text)
    if not number > 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return number


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(POLICIES)}")
    return names
