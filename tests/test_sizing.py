"""Planning a deployment: memory by the models' shapes, pools by Erlang's formula, money by replicas, words by the command."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.__main__ import main
from gateway.measure.doctor.diagnosis import DescriptionError, described, diagnose, read
from gateway.measure.doctor.hbm import GIB, INSTANCES, SHAPES, ModelError, memory, shape_of
from gateway.measure.doctor.sizing import (
    Description,
    Pool,
    Sort,
    Traffic,
    break_even,
    erlang_c,
    prefers,
    size,
    sorts_of,
)

SIZING = Path(__file__).parent.parent / "deploy" / "sizing"
TRN2 = INSTANCES["trn2.48xlarge"]


def describe(**traffic: Any) -> Description:
    """Return the study's description with another traffic."""
    return described({"traffic": {"requests_per_second": 1.0, **traffic}})


def pool_of(rate: float, **settings: Any) -> Any:
    """Return a baseline pool sized for open calls of 600 tokens."""
    traffic = Traffic(requests_per_second=rate, peak=1.0)
    sort = Sort(name="open", rate=rate, tokens_per_step=2.33)
    return size(Pool(step_seconds=0.045, **settings), [sort], traffic, "baseline")


@pytest.mark.parametrize(("name", "gib"), [("Qwen3-32B", 61.0), ("Qwen3-1.7B", 3.2), ("Qwen3-0.6B", 1.1)])
def test_weights_are_those_of_the_published_models(name: str, gib: float) -> None:
    """Parameters computed from a shape give the known bf16 sizes."""
    assert SHAPES[name].parameters * 2 / GIB == pytest.approx(gib, abs=0.06)


def test_kv_heads_are_copied_up_to_the_tensor_parallel_degree() -> None:
    """At TP 32 a token takes 1 MiB of Qwen3-32B's cache and 448 KiB of the draft's; below its KV heads nothing is copied."""
    assert SHAPES["Qwen3-32B"].kv_bytes_per_token(32, 2) == 1024**2
    assert SHAPES["Qwen3-1.7B"].kv_bytes_per_token(32, 2) == 448 * 1024
    assert SHAPES["Qwen3-32B"].kv_bytes_per_token(4, 2) == 1024**2 / 4


def test_the_study_fits_half_an_instance() -> None:
    """Both models at TP 32 take eight chips and a fifth of their memory, the reserve included."""
    chips = TRN2.chips_for(32, 2)
    held = memory(
        [SHAPES["Qwen3-32B"], SHAPES["Qwen3-1.7B"]],
        instance=TRN2,
        chips=chips,
        tensor_parallel=32,
        max_model_len=1024,
        sequences=4,
        weight_bytes=2,
        kv_bytes=2,
    )

    assert chips == 8
    assert TRN2.cores(chips, 2) == 32
    assert held.fits
    assert held.share == pytest.approx(0.19, abs=0.01)


def test_a_config_file_tells_what_the_table_does(tmp_path: Path) -> None:
    """A model's own config.json gives the same shape as its name; head size and KV heads may be left to be derived."""
    known = SHAPES["Qwen3-8B"]
    config = {field: getattr(known, field) for field in known.__slots__ if field != "name"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read_back = shape_of(str(tmp_path))
    for field in ("head_dim", "num_key_value_heads"):
        del config[field]
    (tmp_path / "plain.json").write_text(json.dumps(config))
    derived = shape_of(str(tmp_path / "plain.json"))

    assert read_back.parameters == known.parameters
    assert (derived.head_dim, derived.num_key_value_heads) == (128, 32)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"hidden_size": "wide"}'])
def test_an_unusable_config_file_says_what_is_wrong(tmp_path: Path, text: str) -> None:
    """What is no model's config is an error that names the known models."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="Qwen3-32B"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize(
    ("slots", "load", "waits"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (4, 4.0, 1.0), (10, 5.0, 0.03610), (1000, 1.0, 0.0)]
)
def test_erlangs_formula(slots: int, load: float, waits: float) -> None:
    """The values that tables give, 1 where the load reaches the slots."""
    assert erlang_c(slots, load) == pytest.approx(waits, abs=1e-4)


def test_a_simulated_pool_waits_as_the_plan_says() -> None:
    """Random arrivals at a pool of the planned size wait too long about as often as the plan says, within what was asked."""
    pool = pool_of(1.0)
    waited = _simulate(rate=1.0, slots=pool.slots, seconds=pool.seconds, limit=1.0)

    assert pool.waiting <= 0.05
    assert waited == pytest.approx(pool.waiting, abs=0.015)


def _simulate(*, rate: float, slots: int, seconds: float, limit: float, calls: int = 60_000) -> float:
    """Return the share of calls that wait longer than `limit` for a slot."""
    chance = random.Random(7)
    free = [0.0] * slots
    now, late = 0.0, 0
    for _ in range(calls):
        now += chance.expovariate(rate)
        start = max(now, heapq.heappop(free))
        late += start - now > limit
        heapq.heappush(free, start + chance.expovariate(1 / seconds))
    return late / calls


@given(rate=st.floats(0.01, 50), growth=st.floats(0, 0.2), slots=st.integers(1, 16))
def test_a_pool_is_never_overloaded_and_grows_with_its_traffic(rate: float, growth: float, slots: int) -> None:
    """Whatever the traffic: less than all slots are busy on average, the promise on waiting holds, more needs no less."""
    pool = pool_of(rate, step_growth=growth, slots=slots)
    more = pool_of(rate * 1.5, step_growth=growth, slots=slots)

    assert 0 < pool.busy < 1
    assert pool.waiting <= 0.05
    assert more.replicas >= pool.replicas


def test_slower_steps_under_load_are_planned_for() -> None:
    """Where step time grows with the calls beside, calls hold their slots longer and more replicas are needed."""
    assert pool_of(2.0, step_growth=0.1).replicas > pool_of(2.0).replicas
    assert pool_of(2.0, step_growth=0.1).seconds > pool_of(2.0).seconds


def test_spare_replicas_are_on_top() -> None:
    """A spare replica is counted and paid for, and carries nothing in the plan."""
    assert pool_of(1.0, spare_replicas=2).replicas == pool_of(1.0).replicas + 2
    assert pool_of(1.0, spare_replicas=2).busy == pool_of(1.0).busy


def test_break_even_is_the_ratio_of_the_steps() -> None:
    """45 and 105 ms tie at 2.33 tokens a step; calls beyond it prefer the speculative pool, others baseline."""
    study = describe()

    assert break_even(study) == pytest.approx(7 / 3)
    assert prefers(study, Sort(name="open", rate=1, tokens_per_step=2.3)) == "baseline"
    assert prefers(study, Sort(name="open", rate=1, tokens_per_step=2.4)) == "speculative"


@pytest.mark.parametrize(("share", "names"), [(0.0, ["open"]), (1.0, ["predictable"]), (0.5, ["predictable", "open"])])
def test_sorts_that_do_not_occur_are_left_out(share: float, names: list[str]) -> None:
    """With nothing predictable there is one pool to plan, and so with nothing else."""
    assert [sort.name for sort in sorts_of(describe(predictable_share=share).traffic)] == names


@pytest.mark.parametrize(("share", "like"), [(0.0, "baseline"), (1.0, "speculative")])
def test_routing_one_sort_of_calls_is_the_pool_that_suits_it(share: float, like: str) -> None:
    """Without a mix there is nothing to route: the plan equals that of the one pool."""
    plans = {one.policy: one for one in diagnose(describe(predictable_share=share, open_tokens_per_step=1.5)).plans}

    assert plans["draftlane"].pools == plans[like].pools
    assert plans["draftlane"].cost_per_month == plans[like].cost_per_month


def test_routing_a_large_mixed_traffic_is_cheapest_and_soonest() -> None:
    """For the mixed example routing needs fewer chips than either pool alone, and calls end sooner."""
    plans = {one.policy: one for one in diagnose(read(SIZING / "chat-and-code.toml")).plans}
    routed = plans.pop("draftlane")

    assert all(routed.chips < one.chips and routed.seconds < one.seconds for one in plans.values())


def test_small_pools_do_not_share_slots_and_the_plan_says_so() -> None:
    """Where nearly all is predictable, one speculative pool needs less than two pools; the cheapest policy is named."""
    found = diagnose(read(SIZING / "batch-extraction.toml"))

    assert min(found.plans, key=lambda one: one.cost_per_month).policy == "speculative"


def test_money_adds_up() -> None:
    """Replicas cost their share of an instance, bills come per instance, and tokens cost what the month does."""
    found = diagnose(describe())
    for one in found.plans:
        assert one.chips == one.replicas * 8
        assert one.cost_per_month == pytest.approx(one.replicas * 35.76 / 2 * 730)
        assert one.billed_per_month == pytest.approx(one.instances * 35.76 * 730)
        assert one.instances == -(-one.replicas // 2)
        assert one.cost_per_million_tokens == pytest.approx(one.cost_per_month / (600 * 3600 * 730) * 1e6)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"hardware": {"instance": "trn9.huge"}}, "hardware.instance"),
        ({"hardware": {"instance": "p5.48xlarge", "logical_core": 1, "tensor_parallel": 8}}, "price"),
        ({"hardware": {"tensor_parallel": 65}}, "logical cores"),
        ({"hardware": {"instance": "p5.48xlarge", "instance_price_per_hour": 98.0}}, "logical_core"),
        ({"models": {"target": "Nope-7B"}}, "Nope-7B"),
        ({"traffic": {"requests_per_second": 1e9}}, "replicas"),
        ({"traffic": {"requests_per_second": 1.0, "predictable": 0.5}}, "traffic.predictable"),
        ({"traffic": {}}, "requests_per_second"),
        ({"traffic": {"requests_per_second": 1.0, "predictable_share": 2.0}}, "predictable_share"),
    ],
)
def test_what_cannot_be_planned_is_told_with_its_key(raw: dict[str, Any], words: str) -> None:
    """A wrong description is refused with the key that is wrong."""
    with pytest.raises(DescriptionError, match=words):
        diagnose(described({"traffic": {"requests_per_second": 1.0}, **raw}))


@pytest.mark.parametrize(
    ("hardware", "words"),
    [({"max_model_len": 600}, "max_model_len"), ({"max_model_len": 131_072}, "GiB"), ({"tensor_parallel": 6}, "whole")],
)
def test_what_would_not_run_is_told(hardware: dict[str, Any], words: str) -> None:
    """Too short, too large or uneven replicas are problems, each with what to change."""
    found = diagnose(described({"traffic": {"requests_per_second": 0.1}, "hardware": hardware}))

    assert any(words in problem for problem in found.problems)


@pytest.mark.parametrize("path", sorted(SIZING.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_can_be_planned(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every shipped description gives a plan without problems, in words and in JSON."""
    assert main(["doctor", "--plan", str(path)]) == 0
    assert "assuming" in capsys.readouterr().out
    assert main(["doctor", "--plan", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert told["ok"]
    assert [one["policy"] for one in told["plans"]] == ["baseline", "speculative", "draftlane"]
    assert told["assumptions"]


def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Callable[[str], Path]
) -> None:
    """A file that is missing or wrong is 2, a deployment that would not run is 1, both in words on stderr."""
    assert main(["doctor", "--plan", str(tmp_path / "none.toml")]) == 2
    assert main(["doctor", "--plan", str(text("[traffic]\nrate = 1"))]) == 2
    assert "traffic.rate" in capsys.readouterr().err
    assert main(["doctor", "--plan", str(text("[traffic]\nrequests_per_second = 1.0\nprompt_tokens = 900"))]) == 1
    assert "max_model_len" in capsys.readouterr().err


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str], Path]:
    """Write a description."""

    def write(words: str) -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(words)
        return path

    return write
