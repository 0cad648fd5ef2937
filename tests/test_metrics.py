"""Metrics: what a finished call counts, that labels stay within closed sets, and what Prometheus can read."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from gateway.config import Config, parse
from gateway.exchange import SHADOW as SHADOW_TENANT
from gateway.ledger.cost import COUNTERFACTUALS
from gateway.metrics import Metrics
from gateway.metrics.known import MAX_TENANTS, SHADOW
from gateway.metrics.pairs import Pairs
from gateway.metrics.tally import Counters, Family, Histograms, Means
from gateway.record import OUTCOMES, SOURCES, Finished
from gateway.routing import REASONS
from gateway.routing.guards import GUARDS

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
WHO = {"model": "demo", "pool": "fast", "tenant": "acme"}


def config_of(*tenants: str, **plain: Any) -> Config:
    """Return a configuration with two pools and these tenants."""
    return parse(
        {
            "model": [{"name": "demo"}],
            "pool": [
                {
                    "name": "fast",
                    "model": "demo",
                    "kind": "speculative",
                    "window": 7,
                    "embedded": {},
                    "price_per_hour": 9,
                },
                {"name": "plain", "model": "demo", "kind": "baseline", "embedded": {}, **plain},
            ],
            "tenant": [{"name": name, "key_sha256": [f"{i:064x}"]} for i, name in enumerate(tenants)],
        },
        {},
    )


CALL = Finished(
    request_id="req-1",
    time=1.7e9,
    endpoint="chat",
    tenant="acme",
    model="demo",
    stream=True,
    status=200,
    outcome="ok",
    pool="fast",
    speculative=True,
    attempts=1,
    reason="predictable",
    score=0.87,
    expected=4.5,
    acceptance=3.8,
    source="events",
    prompt_tokens=40,
    completion_tokens=101,
    usage_source="engine",
    duration=2.1,
    ttft=0.1,
    overhead={"parse": 12e-6, "total": 150e-6},
    slot_seconds=2.0,
    cost_usd=0.005,
    counterfactual={"baseline": 0.01, "speculative": 0.005},
)


class Bench:
    """Metrics in a registry of their own, with a way to read them."""

    def __init__(self, *tenants: str, **plain: Any) -> None:
        self.registry = CollectorRegistry()
        self.config = config_of(*(tenants or ("acme",)), **plain)
        self.now = 0.0
        self.metrics = Metrics(
            self.registry,
            self.config,
            reasons=REASONS,
            policies=COUNTERFACTUALS,
            guards=GUARDS,
            clock=lambda: self.now,
        )

    def read(self, name: str, **labels: str) -> float | None:
        """Return a sample's value, None if there is no such series."""
        return self.registry.get_sample_value(f"draftlane_{name}", labels)

    def series(self, name: str) -> list[dict[str, str]]:
        """Return the labels of every series of a sample."""
        found = [s for metric in self.registry.collect() for s in metric.samples if s.name == f"draftlane_{name}"]
        return [sample.labels for sample in found]

    def moved(self, name: str) -> list[dict[str, str]]:
        """Return the labels of every series of a sample that is not 0."""
        found = [s for metric in self.registry.collect() for s in metric.samples if s.name == f"draftlane_{name}"]
        return [sample.labels for sample in found if sample.value]


def test_a_finished_call_counts_everywhere_once() -> None:
    """One call moves each of its figures by what it was."""
    bench = Bench()
    bench.metrics.finished(CALL)

    ending = {"endpoint": "chat", "outcome": "ok", "status": "2xx"}
    assert bench.read("requests_total", **WHO, **ending) == 1
    assert bench.read("request_duration_seconds_sum", **WHO) == 2.1
    assert bench.read("request_duration_seconds_bucket", **WHO, le="2.5") == 1
    assert bench.read("request_duration_seconds_bucket", **WHO, le="1.0") == 0
    assert bench.read("time_to_first_token_seconds_sum", **WHO) == 0.1
    assert bench.read("time_per_output_token_seconds_sum", **WHO) == pytest.approx(0.02)
    assert bench.read("overhead_seconds_count", phase="parse") == 1
    assert bench.read("overhead_seconds_sum", phase="total") == 150e-6
    assert bench.read("tokens_total", **WHO, kind="prompt") == 40
    assert bench.read("tokens_total", **WHO, kind="completion") == 101
    assert bench.read("slot_seconds_total", **WHO) == 2.0
    assert bench.read("cost_usd_total", **WHO) == 0.005
    assert bench.read("counterfactual_cost_usd_total", model="demo", tenant="acme", policy="baseline") == 0.01
    assert bench.read("score_sum", model="demo") == 0.87
    assert bench.read("decisions_total", model="demo", pool="fast", reason="predictable") == 1
    assert bench.read("observations_total", pool="fast", source="events") == 1
    for kind, value in (("predicted", 4.5), ("observed", 3.8)):
        assert bench.read("acceptance_length_sum", pool="fast", kind=kind) == value
        assert bench.read("acceptance_length_by_score_sum", pool="fast", decile="8", kind=kind) == value
    for name in ("exploration_total", "retries_total", "zero_cost_requests_total", "shadow_decisions_total"):
        assert bench.moved(name) == []
    assert bench.moved("regret_usd_total") == bench.moved("control_acceptance_length_count") == []


def test_a_refused_call_counts_without_a_pool() -> None:
    """A call that reached no pool counts under "none", and moves nothing that belongs to a pool."""
    bench = Bench()
    refused = replace(CALL, tenant="", model="", pool="", outcome="rejected", status=401, ttft=None)
    bench.metrics.finished(refused)

    nobody = {"model": "none", "pool": "none", "tenant": "none"}
    assert bench.read("requests_total", **nobody, endpoint="chat", outcome="rejected", status="4xx") == 1
    assert bench.moved("tokens_total") == bench.moved("decisions_total") == bench.moved("observations_total") == []


def test_unusual_calls_are_told() -> None:
    """Exploration, shadow decisions and further attempts are counted where they occur."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, explored=True, reason="explore", attempts=3))
    bench.metrics.finished(replace(CALL, pool="plain", speculative=False, shadow="fast", reason="shadow"))

    assert bench.read("exploration_total", pool="fast") == 1
    assert bench.read("retries_total", pool="fast") == 2
    assert bench.read("shadow_decisions_total", model="demo", pool="fast") == 1


def test_a_complete_answer_that_costs_nothing_is_an_alarm() -> None:
    """Missing usage, a missing price and missing slot time are told apart; a broken answer is no such alarm."""
    bench = Bench()
    for call in (
        replace(CALL, usage_source="none", completion_tokens=0),
        replace(CALL, pool="plain", cost_usd=0.0),
        replace(CALL, cost_usd=0.0),
        replace(CALL, cost_usd=0.0, outcome="client_gone"),
        replace(CALL, cost_usd=0.0, endpoint="other"),
    ):
        bench.metrics.finished(call)

    assert bench.moved("zero_cost_requests_total") == [
        {"pool": "fast", "reason": "no_usage"},
        {"pool": "fast", "reason": "no_slot_time"},
        {"pool": "plain", "reason": "no_price"},
    ]


def test_what_another_pool_would_have_saved_is_regret() -> None:
    """Regret counts what a call cost beyond its estimate on the other kind of pool, and never the other way round."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, cost_usd=0.03, counterfactual={"baseline": 0.01, "speculative": 0.03}))
    bench.metrics.finished(replace(CALL, cost_usd=0.03, counterfactual={"baseline": 0.04, "speculative": 0.03}))
    slow = replace(CALL, pool="plain", speculative=False, acceptance=1.0)
    bench.metrics.finished(replace(slow, cost_usd=0.05, counterfactual={"baseline": 0.05, "speculative": 0.01}))

    assert bench.read("regret_usd_total", model="demo", pool="fast") == pytest.approx(0.02)
    assert bench.read("regret_usd_total", model="demo", pool="plain") == pytest.approx(0.04)


def test_the_estimator_is_held_against_pools_without_draft() -> None:
    """On baseline every sound observation counts as control, and none as acceptance; timing confirms nothing."""
    bench = Bench()
    plain = replace(CALL, pool="plain", speculative=False, acceptance=1.02)
    for call in (
        plain,
        replace(plain, acceptance=0.98),
        replace(plain, source="timing"),
        replace(plain, biased="short"),
    ):
        bench.metrics.finished(call)

    assert bench.read("control_acceptance_length_count", pool="plain") == 2
    assert bench.read("control_acceptance_length_sum", pool="plain") == pytest.approx(2.0)
    assert bench.series("acceptance_length_count") == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_shadow_copies_check_the_estimates(order: tuple[int, int]) -> None:
    """A copy and its original, in either order, count what was estimated and what was paid, by the token."""
    bench = Bench()
    shadow = {"pool": "plain", "speculative": False, "shadow": "fast", "reason": "shadow"}
    elsewhere = {"baseline": 0.02, "speculative": 0.011}
    original = replace(CALL, **shadow, request_id="a", cost_usd=0.02, counterfactual=elsewhere)
    copy = replace(CALL, request_id="a-shadow", copy_of="a", tenant=SHADOW_TENANT, completion_tokens=202, cost_usd=0.02)
    for which in order:
        bench.metrics.finished((original, copy)[which])

    assert bench.read("shadow_pair_cost_usd_total", pool="fast", kind="estimated") == pytest.approx(0.011)
    assert bench.read("shadow_pair_cost_usd_total", pool="fast", kind="paid") == pytest.approx(0.01)
    assert bench.read("cost_usd_total", **WHO | {"tenant": SHADOW}) == pytest.approx(0.02)
    assert bench.read("shadow_decisions_total", model="demo", pool="fast") == 1


def test_halves_of_a_pair_wait_in_bounded_memory() -> None:
    """Originals without a copy push each other out, and two halves of one kind are no pair."""
    pairs = Pairs(waiting=3)
    call = replace(CALL, shadow="fast", pool="plain")
    assert [pairs.meet(replace(call, request_id=str(i))) for i in range(10)] == [None] * 10
    assert len(pairs) == 3
    assert pairs.meet(replace(call, request_id="9")) is None
    broken = replace(CALL, request_id="9-shadow", copy_of="9", outcome="truncated")
    assert pairs.meet(broken) is None
    assert len(pairs) == 2


def test_money_is_there_before_its_first_dollar() -> None:
    """Rows of money and of what should stay at 0 exist from the start, so that rates miss nothing."""
    bench = Bench("acme", "zeta")

    assert len(bench.series("cost_usd_total")) == len(bench.series("slot_seconds_total")) == 4
    assert len(bench.series("tokens_total")) == 8
    assert len(bench.series("counterfactual_cost_usd_total")) == 2 * len(COUNTERFACTUALS)
    assert len(bench.series("zero_cost_requests_total")) == 6
    assert bench.moved("cost_usd_total") == []
    assert SHADOW == SHADOW_TENANT


def test_a_biased_observation_teaches_nothing() -> None:
    """A biased call counts as such and stays out of the observed acceptance."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, biased="the client lagged"))

    assert bench.read("observations_total", pool="fast", source="biased") == 1
    assert bench.read("acceptance_length_count", pool="fast", kind="predicted") == 1
    assert bench.read("acceptance_length_count", pool="fast", kind="observed") is None


def test_a_short_answer_has_no_time_per_token() -> None:
    """One token has no time between tokens, and an answer without a first token's time has neither figure."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, completion_tokens=1))
    bench.metrics.finished(replace(CALL, ttft=None))

    assert bench.read("time_per_output_token_seconds_count", **WHO) == 0
    assert bench.read("time_to_first_token_seconds_count", **WHO) == 1


def test_no_client_makes_a_series() -> None:
    """Names outside the configuration, and words outside this program's, all count under "other"."""
    bench = Bench()
    for i in range(300):
        odd = f"odd{i}"
        bench.metrics.finished(
            replace(CALL, tenant=odd, model=odd, pool=odd, endpoint=odd, reason=odd, status=1000 + i)
        )

    assert len(bench.series("requests_total")) == 1
    assert set(bench.series("requests_total")[0].values()) == {"other", "ok"}
    assert bench.moved("decisions_total") == [{"model": "other", "pool": "other", "reason": "other"}]


def test_reasons_count_by_their_kind() -> None:
    """The feature in a constraint's reason is detail, not a label."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, reason="constraint:logprobs"))

    assert bench.read("decisions_total", model="demo", pool="fast", reason="constraint") == 1


def test_tenants_beyond_the_limit_share_a_label() -> None:
    """The first two hundred tenants have series of their own and keep them over reloads; the rest is "other"."""
    names = [f"t{i}" for i in range(MAX_TENANTS + 5)]
    bench = Bench(*names)
    for name in names:
        bench.metrics.finished(replace(CALL, tenant=name))
    bench.metrics.reloaded(config_of("new", "t0"))
    bench.metrics.finished(replace(CALL, tenant="new"))
    bench.metrics.finished(replace(CALL, tenant="t0"))

    assert bench.read("cost_usd_total", **WHO | {"tenant": "other"}) == pytest.approx(6 * 0.005)
    assert bench.read("cost_usd_total", **WHO | {"tenant": "t0"}) == pytest.approx(2 * 0.005)
    assert len(bench.moved("cost_usd_total")) == MAX_TENANTS + 1
    assert len({labels["tenant"] for labels in bench.series("cost_usd_total")}) == MAX_TENANTS + 1


def test_series_stay_few_whatever_happens() -> None:
    """All outcomes, sources and reasons together make a bounded number of series."""
    bench = Bench()
    for outcome in OUTCOMES:
        for source in SOURCES:
            for reason in REASONS:
                bench.metrics.finished(replace(CALL, outcome=outcome, source=source, reason=reason))

    assert len(bench.series("requests_total")) == len(OUTCOMES)
    assert len(bench.moved("observations_total")) == len(SOURCES)
    assert len(bench.moved("decisions_total")) == len(REASONS)
    assert len(bench.series("decisions_total")) == 2 * len(REASONS)


def test_the_state_is_what_was_last_set() -> None:
    """Pools, balance, guards and scrapes are gauges; the configured price is there from the start."""
    bench = Bench(price_per_hour=17.88)
    metrics = bench.metrics
    metrics.pool("fast", step_seconds=0.11, replicas={"live": 2, "open": 1}, running=3, slots=12)
    metrics.balance("demo", "fast", threshold=0.4, break_even=2.33)
    metrics.curve("fast", [1.5, 2.5])
    metrics.degraded("store", "gone")
    metrics.limit("acme", "usd_per_month", amount=100.0, used=82.5)
    metrics.limit("acme", "tokens_per_minute", amount=1000, used=10)
    metrics.guard("stale", "fast", "active")
    metrics.guard("stale", "plain", "clear")
    metrics.scraped("fast", 1, age_seconds=4.5)
    metrics.inflight(lambda: 7)

    assert bench.read("pool_price_usd_per_hour", pool="plain") == 17.88
    assert bench.read("step_seconds", pool="fast") == 0.11
    assert bench.read("replicas", pool="fast", state="open") == 1
    assert (bench.read("pool_running", pool="fast"), bench.read("pool_slots", pool="fast")) == (3, 12)
    assert bench.read("threshold", model="demo", pool="fast") == 0.4
    assert bench.read("break_even_acceptance_length", model="demo", pool="fast") == 2.33
    assert bench.read("curve_acceptance_length", pool="fast", decile="1") == 2.5
    assert bench.read("pool_info", pool="fast", model="demo", kind="speculative", revision="demo||7|") == 1
    assert (bench.read("books_degraded", part="store"), bench.read("books_degraded", part="loop")) == (1, 0)
    month = {"tenant": "acme", "period": "month"}
    assert (bench.read("budget_usd", **month), bench.read("budget_spent_usd", **month)) == (100, 82.5)
    assert bench.read("limit_used_ratio", tenant="acme", limit="usd_per_month") == 0.825
    assert bench.read("limit_used_ratio", tenant="acme", limit="tokens_per_minute") == 0.01
    assert (
        bench.read("guard_active", guard="stale", pool="fast"),
        bench.read("guard_active", guard="stale", pool="plain"),
    ) == (1, 0)
    assert bench.read("scrape_age_seconds", pool="fast", replica="1") == 4.5
    assert bench.read("inflight") == 7
    assert len(bench.series("guard_active")) == len(GUARDS) + 1


def test_a_pool_costs_money_busy_or_idle() -> None:
    """All replicas of a pool are paid for by the hour from when the process first sees them, at the price of each time."""
    bench = Bench()
    for now, price in ((100.0, 9.0), (1900.0, 9.0), (3700.0, 18.0), (7300.0, 18.0)):
        bench.now = now
        bench.metrics.spent("fast", replicas=3, usd_per_hour=price)

    assert bench.read("pool_capacity_usd_total", pool="fast") == pytest.approx(3 * (9.0 + 18.0))
    assert bench.read("pool_capacity_usd_total", pool="plain") == 0.0


def test_a_reload_is_counted_and_forgets_what_is_gone() -> None:
    """Each reload counts by its result; a good one tells the new digest and drops the gauges of removed pools."""
    bench = Bench()
    bench.metrics.pool("plain", step_seconds=0.045, replicas={"live": 1})
    other = parse(
        {
            "model": [{"name": "demo"}],
            "pool": [{"name": "fast", "model": "demo", "kind": "baseline", "embedded": {}}],
            "tenant": [{"name": "acme", "anonymous": True}],
        },
        {},
    )
    bench.metrics.reload_refused()
    assert bench.read("config_info", digest=bench.config.digest) == 1
    bench.metrics.reloaded(other)

    assert bench.read("config_reloads_total", result="ok") == bench.read("config_reloads_total", result="refused") == 1
    assert bench.series("config_info") == [{"digest": other.digest}]
    assert bench.series("replicas") == bench.series("step_seconds") == []
    assert bench.series("pool_price_usd_per_hour") == [{"pool": "fast"}]


def test_both_formats_can_be_read_and_agree() -> None:
    """Prometheus' own parsers read both formats, with the same values, each under the content type that was asked for."""
    bench = Bench()
    bench.metrics.finished(CALL)
    text, text_type = bench.metrics.render()
    modern, modern_type = bench.metrics.render(OPENMETRICS + ",text/plain;version=0.0.4;q=0.5")

    assert text_type.startswith("text/plain; version=0.0.4")
    assert modern_type.startswith("application/openmetrics-text; version=1.0.0")
    ours = [
        {
            (s.name, *sorted(s.labels.items())): s.value
            for m in read(body.decode())
            for s in m.samples
            if "draftlane" in s.name
        }
        for read, body in ((read_text, text), (read_openmetrics, modern))
    ]
    assert ours[0] == ours[1]
    assert modern.endswith(b"# EOF\n")
    assert b"process_resident_memory_bytes" in text


@pytest.mark.parametrize("odd", ["plain", 'a "b" \\ c', "two\nlines", "ünï}{=,"])
def test_what_is_written_is_what_the_library_would_write(odd: str) -> None:
    """Lines of our own say the same as prometheus_client's of the same rows, whatever is in a label, in both formats."""
    registry = CollectorRegistry()
    families: list[Family[Any]] = [
        Counters(registry, "a_total", "A.", ("who",)),
        Means(registry, "b_seconds", "B.", ("who",)),
        Histograms(registry, "c_seconds", "C.", ("who",), bounds=(0.5, 1, 1e-5 + 2)),
    ]
    families[0].row(odd).value += 2.5
    families[1].row(odd).add(1e-7)
    families[2].row(odd).add_example(0.7, f"req-{odd}", 1.7e9)
    for openmetrics, library, read in (
        (False, generate_latest, read_text),
        (True, functools.partial(generate_openmetrics, escaping=ALLOWUTF8), read_openmetrics),
    ):
        lines = [line for family in families for line in family.write(openmetrics=openmetrics)]
        ours = "\n".join([*lines, *(["# EOF"] if openmetrics else []), ""])
        theirs = library(registry).decode()

        def told(text: str, read: Any = read) -> list[Any]:
            return [(m.name, m.type, m.documentation, sorted(m.samples, key=repr)) for m in read(text)]

        assert told(ours) == told(theirs)


def test_slow_calls_can_be_found_by_their_id() -> None:
    """A bucket's exemplar names the last call that fell into it, cut to what the format allows."""
    bench = Bench()
    bench.metrics.finished(replace(CALL, request_id="x" * 500))
    bench.metrics.finished(replace(CALL, duration=20.0))
    families = read_openmetrics(bench.metrics.render(OPENMETRICS)[0].decode())

    examples = {
        sample.labels["le"]: sample.exemplar.labels["request_id"]
        for family in families
        for sample in family.samples
        if sample.name == "draftlane_request_duration_seconds_bucket" and sample.exemplar
    }
    assert examples == {"2.5": "x" * 100, "20.0": "req-1"}


def test_names_follow_the_conventions() -> None:
    """Every metric of ours has the prefix, a lower-case name, help, and counters alone end in _total."""
    bench = Bench()
    bench.metrics.finished(CALL)
    ours = [metric for metric in bench.registry.collect() if metric.name.startswith("draftlane_")]

    assert len(ours) > 25
    for metric in ours:
        assert re.fullmatch(r"draftlane_[a-z_]+", metric.name)
        assert metric.documentation.endswith(".")
        assert {sample.name.endswith("_total") for sample in metric.samples} <= {metric.type == "counter"}
        assert not metric.name.endswith(("_ms", "_milliseconds", "_percent", "_count", "_sum"))


def test_a_row_has_every_label() -> None:
    """Naming too few label values is a mistake that is told, not a series."""
    counters = Counters(CollectorRegistry(), "x_total", "X.", ("a", "b"))

    with pytest.raises(ValueError, match=r"x_total has labels \('a', 'b'\), not \('1',\)"):
        counters.row("1")
    assert counters.row("1", "2") is counters.row("1", "2")
