"""The Latency dashboard: first token, tokens, whole answers, the gateway's own time, queues, and calls that failed."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries

from deploy.grafana.board import Board
from deploy.grafana.parts import GREEN, RED, YELLOW, Query, bars, heats, now, number, series, states

WHO = 'tenant=~"$tenant",model=~"$model",pool=~"$pool"'
QUANTILES = (0.5, 0.95, 0.99)


def quantile(share: float, name: str, by: str, window: str = "$__rate_interval") -> str:
    """Return a quantile of one of the calls' histograms, by a label."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate(draftlane_{name}_bucket{{{WHO}}}[{window}])))"


def spread(title: str, why: str, name: str) -> tuple[timeseries.Panel, timeseries.Panel]:
    """Return a histogram's quantiles by pool, and its p95 by tenant."""
    return (
        series(
            f"{title}, by pool",
            f"{why} p50, p95 and p99; points are examples of single calls with their request ids.",
            "s",
            *(
                Query(expr=quantile(share, name, "pool"), legend=f"{{{{pool}}}}, p{share * 100:g}", examples=True)
                for share in QUANTILES
            ),
        ),
        series(
            f"{title}, p95 by tenant",
            f"{why} A tenant apart from the others has other prompts, or waits for its own limits.",
            "s",
            Query(expr=quantile(0.95, name, "tenant"), legend="{{tenant}}"),
        ),
    )


def build() -> Board:
    """Return the dashboard."""
    about = "How long calls take: first token, each token, the whole; the gateway's own share; queues; and failures."
    board = Board("latency", "Latency", about, since="now-6h")
    _figures(board.row("At a glance"))
    board.row("First token, each token, whole answer").add(
        *spread(
            "Time to first token", "Queue and prefill; speculation does not change it.", "time_to_first_token_seconds"
        ),
        *spread(
            "Time per output token",
            "What speculation is for: about 45 ms without and 15 ms at its best, in the study on Trainium2.",
            "time_per_output_token_seconds",
        ),
        *spread(
            "Whole answer", "From arrival to the last byte, so it grows with the answers.", "request_duration_seconds"
        ),
        heats(
            "Durations of whole answers",
            "All calls by how long they took.",
            "s",
            f"sum by (le) (increase(draftlane_request_duration_seconds_bucket{{{WHO}}}[$__rate_interval]))",
            size=(24, 7),
        ),
    )
    _inside(board.row("The gateway's own time, and queues"))
    _failures(board.row("How calls end"))
    return board


def _figures(board: Board) -> None:
    for title, why, name, good, bad in (
        ("First token, p95", "Over 5 minutes, all chosen calls.", "time_to_first_token_seconds", 1.0, 2.5),
        ("Per token, p50", "Over 5 minutes, all chosen calls.", "time_per_output_token_seconds", 0.03, 0.06),
        ("Whole answer, p95", "Over 5 minutes, all chosen calls.", "request_duration_seconds", 30.0, 120.0),
    ):
        share = 0.5 if "p50" in title else 0.95
        edges = ((None, GREEN), (good, YELLOW), (bad, RED))
        board.add(number(title, why, "s", now(quantile(share, name, "", "5m")), edges=edges))
    board.add(
        number(
            "Gateway's own time, p95",
            "From a request's last byte to its being sent on: parse, score, plan.",
            "s",
            now('histogram_quantile(0.95, sum by (le) (rate(draftlane_overhead_seconds_bucket{phase="total"}[5m])))'),
            edges=((None, GREEN), (0.005, YELLOW), (0.025, RED)),
        ),
        number(
            "Failed calls",
            "Share over 5 minutes that failed through no fault of the client.",
            "percentunit",
            now('max(model:draftlane_requests_failed:ratio_rate5m{model=~"$model"})'),
            edges=((None, GREEN), (0.01, YELLOW), (0.05, RED)),
            digits=2,
        ),
        number(
            "Slow first tokens",
            "Share over an hour that took longer than 2.5 s. The objective is 1 % over 30 days.",
            "percentunit",
            now('max(model:draftlane_slow_first_token:ratio_rate1h{model=~"$model"})'),
            edges=((None, GREEN), (0.01, YELLOW), (0.144, RED)),
            digits=2,
        ),
    )


def _inside(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    phase = "sum by (le, phase) (rate(draftlane_overhead_seconds_bucket[$__rate_interval]))"
    board.add(
        series(
            "Overhead by phase",
            "The gateway's own work per call; all of it is phase total. Milliseconds mean that it starves for CPU.",
            "s",
            Query(expr=f"histogram_quantile(0.5, {phase})", legend="{{phase}}, p50"),
            Query(expr=f"histogram_quantile(0.99, {phase})", legend="{{phase}}, p99"),
            size=(8, 8),
        ),
        series(
            "Wait for a slot, by the engines' count",
            "Mean seconds that requests waited in an engine's queue before their prefill.",
            "s",
            Query(
                expr='sum by (pool) (rate(draftlane_engine_queue_seconds_sum{pool=~"$pool"}[$__rate_interval]))'
                ' / (sum by (pool) (rate(draftlane_engine_queue_seconds_count{pool=~"$pool"}[$__rate_interval])) > 0)',
                legend="{{pool}}",
            ),
            size=(8, 8),
        ),
        series(
            "Calls under way",
            "By pool, and in all gateways together.",
            "short",
            Query(expr='sum by (pool) (draftlane_pool_running{pool=~"$pool"})', legend="{{pool}}"),
            Query(expr="sum(draftlane_inflight)", legend="in all"),
            size=(8, 8),
        ),
        bars(
            "Quantiles of the last five minutes",
            "The gauges that CloudWatch reads, here to compare: p50 and p95 of first token and of each token, by pool.",
            "s",
            now(
                'max by (pool, percentile) (draftlane_time_to_first_token_quantile_seconds{pool=~"$pool"})',
                "{{pool}}, first token, {{percentile}}",
            ),
            now(
                'max by (pool, percentile) (draftlane_time_per_output_token_quantile_seconds{pool=~"$pool"})',
                "{{pool}}, each token, {{percentile}}",
            ),
            now(
                'max by (pool, percentile) (draftlane_request_duration_quantile_seconds{pool=~"$pool"})',
                "{{pool}}, whole answer, {{percentile}}",
            ),
            size=(24, 8),
        ),
    )


def _failures(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Calls by outcome",
            "Only ok and the clients' own (client_gone, client_stalled, rejected) are no trouble of yours.",
            "reqps",
            Query(
                expr=f"sum by (outcome) (rate(draftlane_requests_total{{{WHO}}}[$__rate_interval]))",
                legend="{{outcome}}",
            ),
            look="stack",
            size=(8, 8),
        ),
        series(
            "Refusals by code",
            "Calls that the gateway refused: keys, limits, budgets, overload.",
            "reqps",
            Query(
                expr='sum by (code) (rate(draftlane_refusals_total{tenant=~"$tenant|none"}[$__rate_interval]))',
                legend="{{code}}",
            ),
            look="stack",
            size=(8, 8),
        ),
        series(
            "Further attempts",
            "Calls that were sent again before their first byte, by the pool that ended them.",
            "reqps",
            Query(
                expr='sum by (pool) (rate(draftlane_retries_total{pool=~"$pool"}[$__rate_interval]))', legend="{{pool}}"
            ),
            size=(8, 8),
        ),
        states(
            "First-token objective, burn rate by window",
            "How many times too fast the month's budget of slow answers (1 %) is spent; the alerts fire at 6 and 14.4.",
            "none",
            *(
                Query(
                    expr=f'max by (model) (model:draftlane_slow_first_token:ratio_rate{window}{{model=~"$model"}}) / 0.01',
                    legend=f"{{{{model}}}}, {window}",
                )
                for window in ("5m", "30m", "1h", "6h")
            ),
            edges=((None, GREEN), (1, YELLOW), (6, RED)),
            size=(24, 6),
        ),
    )
