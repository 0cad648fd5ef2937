"""The Cost dashboard: what a million output tokens cost, what they would have cost, who spends, and what lies idle."""

from __future__ import annotations

from deploy.grafana.board import Board
from deploy.grafana.parts import GREEN, RED, USD, YELLOW, Query, bars, columns, listing, now, number, rows, series

WHO = 'tenant=~"$tenant",model=~"$model",pool=~"$pool"'
WHOSE = 'tenant=~"$tenant",model=~"$model"'
SPENT = f"increase(draftlane_cost_usd_total{{{WHO}}}[$__range])"
WRITTEN = f'increase(draftlane_tokens_total{{{WHO},kind="completion"}}[$__range])'
PAID = f"sum(increase(draftlane_cost_usd_total{{{WHOSE}}}[$__range]))"
BAND = ("baseline_low", "baseline_high", "speculative_low", "speculative_high")


def elsewhere(policy: str) -> str:
    """Return the dollars that the calls of the range would have cost under a policy."""
    return f'sum(increase(draftlane_counterfactual_cost_usd_total{{{WHOSE},policy="{policy}"}}[$__range]))'


def pace(policy: str) -> str:
    """Return the dollars per hour that the calls would cost under a policy."""
    chosen = f'{WHOSE},policy="{policy}"'
    return f"3600 * sum(rate(draftlane_counterfactual_cost_usd_total{{{chosen}}}[$__rate_interval]))"


def per_million(label: str) -> str:
    """Return dollars per million output tokens over the range, by a label."""
    return f"1e6 * sum by ({label}) ({SPENT}) / (sum by ({label}) ({WRITTEN}) > 0)"


def per_million_over_time(label: str) -> str:
    """Return dollars per million output tokens as they change, by a label."""
    money = f"sum by ({label}) (rate(draftlane_cost_usd_total{{{WHO}}}[$__rate_interval]))"
    tokens = f'sum by ({label}) (rate(draftlane_tokens_total{{{WHO},kind="completion"}}[$__rate_interval]))'
    return f"1e6 * {money} / ({tokens} > 0)"


def build() -> Board:
    """Return the dashboard."""
    about = "Dollars: per million output tokens, by tenant, model and pool, against other policies, busy and idle."
    board = Board("cost", "Cost", about, since="now/M")
    _figures(board.row("At a glance"))
    _prices(board.row("A million output tokens"))
    _policies(board.row("What it would have cost"))
    _spending(board.row("Who spends, and what lies idle"))
    return board


def _figures(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        number(
            "$ per 1M output tokens, now",
            "Slot time at the pools' prices, over the last 15 minutes. Idle slots are not in it; see Idle.",
            USD,
            now(
                f"1e6 * sum(rate(draftlane_cost_usd_total{{{WHO}}}[15m]))"
                f' / (sum(rate(draftlane_tokens_total{{{WHO},kind="completion"}}[15m])) > 0)'
            ),
            digits=2,
        ),
        number(
            "$ per 1M output tokens",
            "The same over the time that is chosen above: this month unless changed.",
            USD,
            now(f"1e6 * sum({SPENT}) / (sum({WRITTEN}) > 0)"),
            digits=2,
        ),
        number("Spent", "What all chosen calls cost: slot time at the pools' prices.", USD, now(f"sum({SPENT})")),
        number(
            "Saved against all-baseline",
            "What the same answers would have cost had every call gone to a baseline pool, less what they cost. Negative:"
            " speculation did not pay. Pools are not told apart here, as calls would have gone to others.",
            USD,
            now(f"{elsewhere('baseline')} - {PAID}"),
            edges=((None, RED), (0, GREEN)),
        ),
        number(
            "Idle",
            "What the chosen pools cost and no call paid for. It belongs to nobody and is in no tenant's price.",
            USD,
            now(
                'clamp_min(sum(max by (pool) (increase(draftlane_pool_capacity_usd_total{pool=~"$pool"}[$__range])))'
                ' - sum(increase(draftlane_cost_usd_total{pool=~"$pool"}[$__range])), 0)'
            ),
        ),
        number(
            "Answers charged nothing",
            "Complete answers without a price, without usage or without slot time. Anything but 0 makes the books too low.",
            "short",
            now("sum(increase(draftlane_zero_cost_requests_total[$__range]))"),
            edges=((None, GREEN), (1, RED)),
            digits=0,
        ),
    )


def _prices(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    for label, title in (("tenant", "By tenant"), ("model", "By model"), ("pool", "By pool")):
        board.add(
            bars(
                f"{title}, over the chosen time",
                f"Dollars per million output tokens, {title.lower()}. Long prompts with short answers look dear here.",
                USD,
                now(f"sort_desc({per_million(label)})", f"{{{{{label}}}}}"),
                digits=2,
            )
        )
    board.add(
        series(
            "Price over time, by pool",
            "Attributed: what calls paid for their slots. A pool that is slower per token is dearer at the same price.",
            USD,
            Query(expr=per_million_over_time("pool"), legend="{{pool}}"),
        ),
        series(
            "Attributed and loaded price, by pool",
            "Loaded spreads idle slots over the tokens that were made: it falls as the pool fills and ends at the"
            " attributed price when all slots are busy.",
            USD,
            Query(
                expr='pool:draftlane_usd_per_million_output_tokens:rate5m{pool=~"$pool"}', legend="{{pool}}, attributed"
            ),
            Query(
                expr='pool:draftlane_loaded_usd_per_million_output_tokens:rate5m{pool=~"$pool"}',
                legend="{{pool}}, loaded",
            ),
        ),
        listing(
            "By tenant, in figures",
            "Over the chosen time. The ledger (draftlane ledger, draftlane report) has the same by day and for good.",
            "short",
            "tenant",
            {"A": "Output tokens", "B": "Spent", "C": "$ per 1M output tokens", "D": "Would cost all-baseline"},
            rows(f"sum by (tenant) ({WRITTEN})"),
            rows(f"sum by (tenant) ({SPENT})"),
            rows(per_million("tenant")),
            rows(
                "sum by (tenant) (increase(draftlane_counterfactual_cost_usd_total"
                f'{{{WHOSE},policy="baseline"}}[$__range]))'
            ),
            units=(("Spent", USD), ("$ per 1M output tokens", USD), ("Would cost all-baseline", USD)),
            size=(24, 8),
        ),
    )


def _policies(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Dollars per hour under each policy",
            "As routed, and as the same answers would cost elsewhere, by the curve and step times of their moment. The low"
            " and high lines bound 80 % of what the uncertainty of acceptance leaves.",
            USD,
            Query(expr=f"3600 * sum(rate(draftlane_cost_usd_total{{{WHOSE}}}[$__rate_interval]))", legend="as routed"),
            Query(expr=pace("baseline"), legend="all baseline"),
            Query(expr=pace("speculative"), legend="all speculative"),
            Query(expr=pace("threshold"), legend="fixed threshold 0.5"),
            *(Query(expr=pace(policy), legend=policy.replace("_", ", ")) for policy in BAND),
            size=(14, 9),
        ),
        bars(
            "In all, under each policy",
            "Over the chosen time. As routed should be the shortest: what it exceeds the next one by is the price of"
            " exploring and of errors in the curve.",
            USD,
            now(PAID, "as routed"),
            now(elsewhere("baseline"), "all baseline"),
            now(elsewhere("speculative"), "all speculative"),
            now(elsewhere("threshold"), "fixed threshold 0.5"),
            size=(10, 9),
        ),
        number(
            "Estimate against shadow copies",
            "Estimated over paid for calls that were copied to another pool: 1.00 is right, and by how much it is off the"
            " savings above are off too. Tenants with policy shadow have such copies.",
            "none",
            now(
                'sum(increase(draftlane_shadow_pair_cost_usd_total{kind="estimated"}[$__range]))'
                ' / (sum(increase(draftlane_shadow_pair_cost_usd_total{kind="paid"}[$__range])) > 0)'
            ),
            edges=((None, RED), (0.8, YELLOW), (0.95, GREEN), (1.05, YELLOW), (1.2, RED)),
            digits=2,
            nothing="no shadow traffic",
            size=(24, 3),
        ),
    )


def _spending(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Spend by day",
            "Each bar is the day that ends there, stacked by tenant.",
            USD,
            Query(expr=f"sum by (tenant) (increase(draftlane_cost_usd_total{{{WHO}}}[1d]))", legend="{{tenant}}"),
            look="bars",
        ).interval("1d"),
        bars(
            "Budgets",
            "Used share of each budget in its period; past 100 % a hard budget refuses calls.",
            "percentunit",
            now(
                'max by (tenant, limit) (draftlane_limit_used_ratio{tenant=~"$tenant",limit=~"(usd|tokens)_per_(day|month)"})',
                "{{tenant}}, {{limit}}",
            ),
            edges=((None, GREEN), (0.8, YELLOW), (1, RED)),
            most=1,
            size=(6, 8),
        ),
        columns(
            "Budgets of the month in dollars",
            "What may be spent, and what has been.",
            USD,
            "tenant",
            {"A": "Budget", "B": "Spent"},
            rows('max by (tenant) (draftlane_budget_usd{tenant=~"$tenant",period="month"})'),
            rows('max by (tenant) (draftlane_budget_spent_usd{tenant=~"$tenant",period="month"})'),
            size=(6, 8),
        ),
        series(
            "Busy and idle, dollars per hour",
            "What the chosen pools cost per hour: the part that calls pay for, and the part that lies idle.",
            USD,
            Query(
                expr='3600 * sum by (pool) (tenant_model_pool:draftlane_cost_usd:rate5m{pool=~"$pool"})',
                legend="{{pool}}, busy",
            ),
            Query(expr='3600 * pool:draftlane_idle_usd:rate5m{pool=~"$pool"}', legend="{{pool}}, idle"),
            look="stack",
        ),
        series(
            "Configured price per replica and hour",
            "A step here explains a step in every price above.",
            USD,
            Query(expr='max by (pool) (draftlane_pool_price_usd_per_hour{pool=~"$pool"})', legend="{{pool}}"),
        ),
    )
