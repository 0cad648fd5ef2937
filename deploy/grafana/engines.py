"""The Engines dashboard: what runs and waits, steps under load, acceptance by position, caches, health, the books."""

from __future__ import annotations

from deploy.grafana.board import Board
from deploy.grafana.parts import GREEN, RED, YELLOW, Query, columns, now, number, rows, series, states

POOL = 'pool=~"$pool"'
RATE = f"{{{POOL}}}[$__rate_interval]"


def build() -> Board:
    """Return the dashboard."""
    about = "The engines behind the gateways: load, step times, drafts, caches, health; and how the books are doing."
    board = Board("engines", "Engines", about, since="now-6h")
    _figures(board.row("At a glance"))
    _load(board.row("Load and pace"))
    _drafts(board.row("Drafts"))
    _health(board.row("Health"))
    return board


def _figures(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        number(
            "Live replicas",
            "Engines that take calls now, in the chosen pools.",
            "short",
            now(f'sum(max by (pool) (draftlane_replicas{{{POOL},state="live"}}))'),
            edges=((None, RED), (1, GREEN)),
        ),
        number(
            "Replicas that are out",
            "Unhealthy, cooling down, or with an open breaker.",
            "short",
            now(f'sum(max by (pool, state) (draftlane_replicas{{{POOL},state!="live"}}))'),
            edges=((None, GREEN), (1, RED)),
        ),
        number(
            "Slots in use",
            "Calls of these gateways over all slots; above 100 % calls wait.",
            "percentunit",
            now(f"sum(draftlane_pool_running{{{POOL}}}) / sum(max by (pool) (draftlane_pool_slots{{{POOL}}}))"),
            edges=((None, GREEN), (0.8, YELLOW), (1, RED)),
            digits=0,
        ),
        number(
            "Output tokens per second, now",
            "All chosen pools, by the engines' own count, over five minutes.",
            "short",
            now(f"sum(max by (pool, replica) (rate(draftlane_engine_generated_tokens_total{{{POOL}}}[5m])))"),
        ),
        number(
            "Oldest figures",
            "Age of what an engine last told. The gateways ask every eight seconds, less often after failures.",
            "s",
            now(f"max(draftlane_scrape_age_seconds{{{POOL}}})"),
            edges=((None, GREEN), (30, YELLOW), (60, RED)),
        ),
        number(
            "Failing parts of the books",
            "Parts of the ledger's way to safety that fail now. Anything but 0: see the log and /draftlane/state.",
            "short",
            now("sum(max by (part) (draftlane_books_degraded))"),
            edges=((None, GREEN), (1, RED)),
        ),
    )


def _load(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        series(
            "Requests on the engines",
            "Running and waiting by the engines' own count, calls of others included.",
            "short",
            Query(
                expr=f"sum by (pool, state) (max by (pool, replica, state) (draftlane_engine_requests{{{POOL}}}))",
                legend="{{pool}}, {{state}}",
            ),
        ),
        series(
            "Step time",
            "Mean seconds per step as the engines time it, and as the gateway reckons at the load of the moment. Beside the"
            " panel on the left: how the pace falls as load grows.",
            "s",
            Query(
                expr=f"sum by (pool) (rate(draftlane_engine_step_seconds_sum{RATE}))"
                f" / (sum by (pool) (rate(draftlane_engine_step_seconds_count{RATE})) > 0)",
                legend="{{pool}}, engine",
            ),
            Query(expr=f"max by (pool) (draftlane_step_seconds{{{POOL}}})", legend="{{pool}}, reckoned"),
        ),
        series(
            "Output tokens per second",
            "By pool, as the engines count.",
            "short",
            Query(
                expr=f"sum by (pool) (max by (pool, replica) (rate(draftlane_engine_generated_tokens_total{RATE})))",
                legend="{{pool}}",
            ),
            size=(8, 8),
        ),
        series(
            "Key-value cache in use",
            "At 100 % engines preempt requests, and everything slows down.",
            "percentunit",
            Query(
                expr=f"max by (pool, replica) (draftlane_engine_kv_cache_usage_ratio{{{POOL}}})",
                legend="{{pool}}-{{replica}}",
            ),
            most=1,
            edges=((None, GREEN), (0.9, RED)),
            size=(8, 8),
        ),
        series(
            "First token, by the engines' count",
            "Mean seconds from a request's arrival at the engine to its first token.",
            "s",
            Query(
                expr=f"sum by (pool) (rate(draftlane_engine_time_to_first_token_seconds_sum{RATE}))"
                f" / (sum by (pool) (rate(draftlane_engine_time_to_first_token_seconds_count{RATE})) > 0)",
                legend="{{pool}}",
            ),
            size=(8, 8),
        ),
    )


def _drafts(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    accepted = f"sum by (pool) (rate(draftlane_engine_accepted_tokens_total{RATE}))"
    generated = f"sum by (pool) (rate(draftlane_engine_generated_tokens_total{RATE}))"
    position = 'increase(draftlane_engine_accepted_tokens_by_position_total{pool=~"$pool"}[$__range])'
    drafts = f"increase(draftlane_engine_drafts_total{{{POOL}}}[$__range])"
    board.add(
        columns(
            "Acceptance by position",
            "Share of drafts whose token at this place was accepted, over the chosen time. A steep fall says that a shorter"
            " window would cost less and lose little.",
            "percentunit",
            "position",
            {"A": "Accepted"},
            rows(f"sum by (position) ({position}) / on () group_left () (sum({drafts}) > 0)"),
        ),
        series(
            "Acceptance length by the engines' counters",
            "Generated over generated less accepted: a cross-check of what calls show, for the whole pool. Absent where engines"
            " do not count, as with fused speculation on Neuron.",
            "none",
            Query(expr=f"{generated} / ({generated} - {accepted} > 0)", legend="{{pool}}"),
            least=1,
        ),
        series(
            "Drafted tokens that are accepted",
            "Accepted over drafted. Control is on time and cost, never on this.",
            "percentunit",
            Query(
                expr=f"{accepted} / (sum by (pool) (rate(draftlane_engine_drafted_tokens_total{RATE})) > 0)",
                legend="{{pool}}",
            ),
            most=1,
        ),
        series(
            "Acceptance length by what calls show",
            "Median and p90 of observed tokens per step of single calls.",
            "none",
            *(
                Query(
                    expr=f"histogram_quantile({share}, sum by (le, pool) (rate(draftlane_acceptance_length_bucket"
                    f'{{{POOL},kind="observed"}}[$__rate_interval])))',
                    legend=f"{{{{pool}}}}, p{share * 100:g}",
                )
                for share in (0.5, 0.9)
            ),
            least=1,
        ),
    )


def _health(board: Board) -> None:
    """Add panels; long because each stands here with its title, meaning and queries side by side."""
    board.add(
        states(
            "Replicas by state",
            "How many replicas are out; green is none. unhealthy: health checks fail; open: the breaker holds; cooling: the"
            " engine asked to wait.",
            "short",
            Query(
                expr=f'max by (pool, state) (draftlane_replicas{{{POOL},state!="live"}})', legend="{{pool}}: {{state}}"
            ),
        ),
        series(
            "Age of the engines' figures",
            "Past 60 s they are history, and load that other gateways cause is unseen.",
            "s",
            Query(
                expr=f"max by (pool, replica) (draftlane_scrape_age_seconds{{{POOL}}})", legend="{{pool}}-{{replica}}"
            ),
            edges=((None, GREEN), (60, RED)),
            size=(12, 6),
        ),
        series(
            "Restarts that were seen",
            "Engines whose counters began anew.",
            "short",
            Query(
                expr=f"sum by (pool) (max by (pool, replica) (increase(draftlane_engine_restarts_total{RATE})))",
                legend="{{pool}}",
            ),
            size=(8, 6),
        ),
        states(
            "Books",
            "Red while a part fails: serving goes on, and what is counted waits.",
            "none",
            Query(expr="max by (part) (draftlane_books_degraded)", legend="{{part}}"),
            size=(8, 6),
        ),
        series(
            "Batches that wait for the Store",
            "What the ledger has counted and the Store does not have yet.",
            "short",
            Query(expr="sum by (instance) (draftlane_ledger_pending_batches)", legend="{{instance}}"),
            size=(8, 6),
        ),
        series(
            "Since the Store had everything",
            "Seconds since the last delivery that left nothing behind.",
            "s",
            Query(
                expr="time() - max by (instance) (draftlane_ledger_last_success_timestamp_seconds)",
                legend="{{instance}}",
            ),
            size=(8, 6),
        ),
        series(
            "Journals",
            "Bytes on the gateways' own disks that the Store does not have yet.",
            "bytes",
            Query(expr="sum by (instance) (draftlane_ledger_journal_bytes)", legend="{{instance}}"),
            size=(8, 6),
        ),
        series(
            "Memory of the gateways",
            "Resident bytes, all workers of a gateway together.",
            "bytes",
            Query(expr='sum by (instance) (process_resident_memory_bytes{job="draftlane"})', legend="{{instance}}"),
            size=(8, 6),
        ),
    )
