"""The Routing dashboard: where calls go and why, how good predictions are, and why break-even and threshold moved."""

from __future__ import annotations

from deploy.grafana.board import Board
from deploy.grafana.parts import (
    GREEN,
    RED,
    USD,
    YELLOW,
    Query,
    columns,
    heats,
    now,
    number,
    rows,
    series,
    states,
)

POOL = 'pool=~"$pool"'
WHERE = f'model=~"$model",{POOL}'
OBSERVED = f'pool_kind:draftlane_acceptance_length:mean15m{{{POOL},kind="observed"}}'
CONTROL = 'pool:draftlane_control_acceptance_length:mean15m{pool=~"$pool"}'


def by_decile(kind: str) -> str:
    """Return mean tokens per step over the range, by decile of the score."""
    chosen = f'{{{POOL},kind="{kind}"}}[$__range]'
    total = f"sum by (decile) (increase(draftlane_acceptance_length_by_score_sum{chosen}))"
    return f"{total} / (sum by (decile) (increase(draftlane_acceptance_length_by_score_count{chosen})) > 0)"


def build() -> Board:
    """Return the dashboard."""
    about = "Where calls go and why, how good the predictions are, and what moved break-even and threshold."
    board = Board("routing", "Routing", about, since="now-6h")
    _figures(board.row("At a glance"))
    _decisions(board.row("Where calls go, and why"))
    _balance(board.row("Break-even and threshold, and what moves them"))
    _predictions(board.row("How good the predictions are"))
    _learning(board.row("Learning and guards"))
    return board


def _figures(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    speculated = f'sum(rate(draftlane_acceptance_length_count{{{POOL},kind="predicted"}}[15m]))'
    board.add(
        number(
            "Calls that speculate",
            "Share of the calls of the last 15 minutes that went to a speculative pool.",
            "percentunit",
            now(f"{speculated} / (sum(rate(draftlane_decisions_total{{{WHERE}}}[15m])) > 0)"),
            digits=0,
        ),
        number(
            "Observed acceptance",
            "Tokens per verification step on speculative pools over 15 minutes; red below break-even's usual 2.33.",
            "none",
            now(f"avg({OBSERVED})"),
            edges=((None, RED), (2.33, GREEN)),
            digits=2,
        ),
        number(
            "Break-even",
            "Tokens per step from which speculation wins, at the load and price of now.",
            "none",
            now(f"max(draftlane_break_even_acceptance_length{{{WHERE}}})"),
            digits=2,
        ),
        number(
            "Threshold",
            "Score from which calls speculate: where the learned curve reaches break-even. 0: all win, 1: none does.",
            "none",
            now(f"max(draftlane_threshold{{{WHERE}}})"),
            digits=2,
        ),
        number(
            "Control",
            "The estimator of acceptance on pools without a draft must read 1.00; otherwise nothing it says is true.",
            "none",
            now(f"avg({CONTROL})"),
            edges=((None, RED), (0.95, GREEN), (1.05, RED)),
            digits=3,
        ),
        number(
            "Regret",
            "Dollars per hour by which calls cost more than estimated elsewhere: the price of exploring, of steadiness and"
            " of errors. Errors of the estimate count upwards only, so the truth is lower.",
            USD,
            now(f"3600 * sum(rate(draftlane_regret_usd_total{{{WHERE}}}[15m]))"),
        ),
    )


def _decisions(board: Board) -> None:
    board.add(
        series(
            "Share by pool",
            "Where calls went, as shares of all. A sudden change has its reason on the right.",
            "reqps",
            Query(
                expr=f"sum by (pool) (rate(draftlane_decisions_total{{{WHERE}}}[$__rate_interval]))", legend="{{pool}}"
            ),
            look="share",
            size=(8, 8),
        ),
        series(
            "Share by reason",
            "Why: predictable and unpredictable are the router's own; constraint, header, policy and affinity leave it no"
            " choice; pool_down, pool_full and guard say that the better pool was not to be had.",
            "reqps",
            Query(
                expr=f"sum by (reason) (rate(draftlane_decisions_total{{{WHERE}}}[$__rate_interval])) > 0",
                legend="{{reason}}",
            ),
            look="share",
            size=(8, 8),
        ),
        heats(
            "Scores",
            "How predictable the calls are, 0 to 1. By construction even over the reference data; a heap elsewhere means that"
            " this traffic is unlike it.",
            "none",
            'sum by (le) (increase(draftlane_score_bucket{model=~"$model"}[$__rate_interval]))',
            size=(8, 8),
        ),
    )


def _balance(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Break-even against acceptance",
            "Above break-even speculation wins. If the lines approach, see below which moved: acceptance, step times, price.",
            "none",
            Query(
                expr=f"max by (pool) (draftlane_break_even_acceptance_length{{{WHERE}}})", legend="{{pool}}, break-even"
            ),
            Query(expr=f"max by (pool) ({OBSERVED})", legend="{{pool}}, observed"),
            Query(
                expr=f'max by (pool) (pool_kind:draftlane_acceptance_length:mean15m{{{POOL},kind="predicted"}})',
                legend="{{pool}}, predicted",
            ),
            least=1,
        ),
        columns(
            "The learned curve",
            "Expected tokens per step by decile of the score, now, at temperature 0. Deciles above break-even speculate.",
            "none",
            "decile",
            {"A": "Expected", "B": "Break-even"},
            rows(f"avg by (decile) (draftlane_curve_acceptance_length{{{POOL}}})"),
            rows(
                f"avg by (decile) (0 * draftlane_curve_acceptance_length{{{POOL}}} + on (pool) group_left ()"
                f" max by (pool) (draftlane_break_even_acceptance_length{{{WHERE}}}))"
            ),
        ),
        series(
            "Threshold over time",
            "The score from which calls speculate. It moves by a decile in half a minute at most.",
            "none",
            Query(expr=f"max by (model, pool) (draftlane_threshold{{{WHERE}}})", legend="{{model}} on {{pool}}"),
            most=1,
            size=(8, 8),
        ),
        series(
            "Step times",
            "Seconds per verification step at the load of the moment. Break-even rises with the speculative one and falls"
            " with the baseline's.",
            "s",
            Query(expr=f"max by (pool) (draftlane_step_seconds{{{POOL}}})", legend="{{pool}}"),
            size=(8, 8),
        ),
        series(
            "Load",
            "Calls per slot. Above 1 calls wait, and the queue is part of the price of a pool.",
            "percentunit",
            Query(
                expr=f"sum by (pool) (draftlane_pool_running{{{POOL}}}) / max by (pool) (draftlane_pool_slots{{{POOL}}})",
                legend="{{pool}}",
            ),
            size=(8, 8),
        ),
    )


def _predictions(board: Board) -> None:
    kinds = ("predicted", "observed")
    board.add(
        columns(
            "Predicted and observed acceptance by decile",
            "Pairs of equal height are right. Observed is seen only where calls speculated: low deciles rest on exploration.",
            "none",
            "decile",
            {"A": "Predicted", "B": "Observed"},
            *(rows(by_decile(kind)) for kind in kinds),
            size=(12, 8),
        ),
        series(
            "Predicted over observed",
            "1.00 is right on average. The curve learns this away within its half-life.",
            "none",
            Query(
                expr=f'max by (pool) (pool_kind:draftlane_acceptance_length:mean15m{{{POOL},kind="predicted"}})'
                f" / max by (pool) ({OBSERVED})",
                legend="{{pool}}",
            ),
            edges=((None, RED), (0.8, YELLOW), (0.95, GREEN), (1.05, YELLOW), (1.2, RED)),
            size=(6, 8),
        ),
        series(
            "Control over time",
            "The same estimator where nothing is drafted: 1.00 ± 0.05, or a guard stops the learning.",
            "none",
            Query(expr=CONTROL, legend="{{pool}}"),
            least=0.9,
            most=1.1,
            edges=((None, RED), (0.95, GREEN), (1.05, RED)),
            size=(6, 8),
        ),
    )


def _learning(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Exploration",
            "Share of calls that went elsewhere to learn: 3 % near break-even and 1 % else, unless configured otherwise.",
            "percentunit",
            Query(
                expr=f"sum by (pool) (rate(draftlane_exploration_total{{{POOL}}}[$__rate_interval]))"
                f" / ignoring (pool) group_left () (sum(rate(draftlane_decisions_total{{{WHERE}}}[$__rate_interval])) > 0)",
                legend="to {{pool}}",
            ),
            size=(8, 8),
        ),
        series(
            "Observations by source",
            "How acceptance was seen. engine is best, then events; timing is rough; biased ones teach nothing.",
            "reqps",
            Query(
                expr=f"sum by (source) (rate(draftlane_observations_total{{{POOL}}}[$__rate_interval]))",
                legend="{{source}}",
            ),
            look="stack",
            size=(8, 8),
        ),
        series(
            "Regret by pool",
            "Dollars per hour beyond the estimate for the other kind of pool, by where the call ran.",
            USD,
            Query(
                expr=f"3600 * sum by (pool) (rate(draftlane_regret_usd_total{{{WHERE}}}[$__rate_interval]))",
                legend="{{pool}}",
            ),
            size=(8, 8),
        ),
        states(
            "Guards",
            "Red while a guard holds a pool: it falls back to the prior or to baseline.",
            "none",
            Query(expr=f"max by (guard, pool) (draftlane_guard_active{{{POOL}}})", legend="{{pool}}: {{guard}}"),
        ),
        series(
            "Shadow decisions",
            "Where calls of tenants with policy shadow would have gone, had they been routed.",
            "reqps",
            Query(
                expr=f"sum by (pool) (rate(draftlane_shadow_decisions_total{{{WHERE}}}[$__rate_interval]))",
                legend="{{pool}}",
            ),
            look="stack",
            size=(12, 6),
        ),
    )
