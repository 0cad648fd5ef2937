"""From a description of the traffic to replicas, chips, memory and money per policy, in plain data and in words."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.measure.doctor.hbm import INSTANCES, RESERVED, Instance, Memory, ModelError, memory, shape_of
from gateway.measure.doctor.sizing import Description, Plan, PolicyName, TooMuch, break_even, plan

POLICIES: Final[tuple[PolicyName, ...]] = ("baseline", "speculative", "draftlane")


class DescriptionError(Exception):
    """The description cannot be used; `problems` holds every reason with its key path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The plans, cheapest policy first to tell, with the memory of a replica and what stands against deploying it."""

    plans: tuple[Plan, ...]
    memory: Memory
    chips: int
    break_even: float
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]


def read(path: Path) -> Description:
    """Read a description; raises DescriptionError with every problem."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise DescriptionError([f"cannot be read: {wrong}"]) from None
    return described(raw)


def described(raw: Mapping[str, Any]) -> Description:
    """Check tables as `tomllib` returns them; raises DescriptionError with every problem."""
    try:
        return Description.model_validate(raw)
    except ValidationError as wrong:
        problems = [f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in wrong.errors()]
        raise DescriptionError(problems) from None


def diagnose(description: Description) -> Diagnosis:
    """Plan every policy, and look whether a replica would fit and serve the traffic at all.

    Raises:
        DescriptionError: an instance or a model is not known, its price is missing, or the traffic is beyond any fleet.
    """
    hardware, models = description.hardware, description.models
    instance, price = _instance(description)
    chips = instance.chips_for(hardware.tensor_parallel, hardware.logical_core)
    try:
        held = memory(
            [shape_of(models.target), shape_of(models.draft)],
            instance=instance,
            chips=chips,
            tensor_parallel=hardware.tensor_parallel,
            max_model_len=hardware.max_model_len,
            sequences=description.speculative.slots,
            weight_bytes=models.bytes_per_weight,
            kv_bytes=models.bytes_per_kv,
        )
        plans = [
            plan(description, policy, chips=chips, chips_per_instance=instance.chips, price=price)
            for policy in POLICIES
        ]
    except ModelError as error:
        raise DescriptionError([f"models: {error}"]) from None
    except TooMuch as error:
        raise DescriptionError([f"traffic: {error}"]) from None
    return Diagnosis(
        plans=tuple(plans),
        memory=held,
        chips=chips,
        break_even=break_even(description),
        problems=tuple(_problems(description, held, instance, chips)),
        assumptions=_assumptions(description, price),
    )


def _instance(description: Description) -> tuple[Instance, float]:
    """Return the instance and its price; raises DescriptionError when either is not known or a replica exceeds it."""
    hardware = description.hardware
    instance = INSTANCES.get(hardware.instance)
    if instance is None:
        raise DescriptionError([f"hardware.instance: is none of {', '.join(INSTANCES)}"])
    price = hardware.instance_price_per_hour or instance.price_per_hour
    problems = []
    if price is None:
        problems.append(f"hardware.instance_price_per_hour: is missing; no price of {instance.name} is known")
    if hardware.logical_core > instance.cores_per_chip:
        problems.append(f"hardware.logical_core: {instance.name} has {instance.cores_per_chip} core(s) per chip")
    elif hardware.tensor_parallel > (cores := instance.cores(instance.chips, hardware.logical_core)):
        problems.append(f"hardware.tensor_parallel: {instance.name} has {cores} logical cores")
    if problems or price is None:
        raise DescriptionError(problems)
    return instance, price


def _problems(description: Description, held: Memory, instance: Instance, chips: int) -> list[str]:
    hardware, traffic, models = description.hardware, description.traffic, description.models
    problems = []
    if not held.fits:
        problems.append(
            f"hardware: target and draft take {held.weights + held.kv:.0f} GiB and {RESERVED:.0%} are kept free, of "
            f"{held.available:.0f} GiB in {chips} chips; take more chips, a shorter max_model_len or fewer slots"
        )
    # The last step of a speculative engine drafts a whole window, so that much of the length is not for the answer.
    longest = hardware.max_model_len - models.window
    if traffic.prompt_tokens + traffic.output_tokens > longest:
        problems.append(
            f"hardware.max_model_len: {traffic.prompt_tokens} + {traffic.output_tokens} tokens are over the {longest} "
            "that a speculative engine can take; such calls go to baseline"
        )
    whole = hardware.tensor_parallel * hardware.logical_core % instance.cores_per_chip
    if whole:
        problems.append("hardware.tensor_parallel: does not fill whole chips; replicas are given whole chips")
    return problems


def _assumptions(description: Description, price: float) -> tuple[str, ...]:
    traffic, hardware = description.traffic, description.hardware
    return (
        f"{price:g} USD per {hardware.instance} and hour, 730 hours a month, every replica up all the time",
        (
            f"sized for {traffic.requests_per_second * traffic.peak:g} requests/s (mean x peak), Poisson arrivals; at most "
            f"{traffic.wait_share:.0%} wait over {traffic.wait_seconds:g} s for a slot"
        ),
        (
            f"{traffic.predictable_share:.0%} of calls reach {traffic.predictable_tokens_per_step:g} tokens a step, the rest "
            f"{traffic.open_tokens_per_step:g}; measure both on your own prompts first"
        ),
        (
            "draftlane puts each sort of calls where it is cheaper and sooner; classifier errors and exploration cost a few "
            "per cent more (see the fleet simulation)"
        ),
        "both pools run on replicas of the same size, so that either can serve any call",
    )


def as_dict(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis ready for JSON."""
    held = found.memory
    return {
        "ok": not found.problems,
        "plans": [asdict(one) for one in found.plans],
        "cheapest": min(found.plans, key=lambda one: one.cost_per_month).policy,
        "memory": {**asdict(held), "share": held.share, "fits": held.fits},
        "chips_per_replica": found.chips,
        "break_even": found.break_even,
        "problems": list(found.problems),
        "assumptions": list(found.assumptions),
    }


def text(description: Description, found: Diagnosis) -> str:
    """Return a diagnosis as people read it."""
    held, models = found.memory, description.models
    columns = ("policy", "pools", "chips", "instances", "USD/month", "billed", "USD/1M tokens", "s/call")
    rows = [columns, *(_row(one) for one in found.plans)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    table = [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines = [
        f"replica     {found.chips} chips, tensor parallel {description.hardware.tensor_parallel}",
        (
            f"memory      {models.target} and {models.draft}: {held.weights:.1f} GiB weights, {held.kv:.1f} GiB KV, of "
            f"{held.available:.0f} GiB ({held.share:.0%} with the reserve)"
        ),
        f"break-even  {found.break_even:.2f} tokens per step at full slots",
        "",
        *table,
        "",
        "assuming",
        *(f"  - {line}" for line in found.assumptions),
    ]
    return "\n".join(lines)


def _row(one: Plan) -> tuple[str, ...]:
    pools = ", ".join(f"{pool.replicas} {pool.kind} ({pool.busy:.0%} busy)" for pool in one.pools)
    return (
        one.policy,
        pools,
        str(one.chips),
        str(one.instances),
        f"{one.cost_per_month:,.0f}",
        f"{one.billed_per_month:,.0f}",
        f"{one.cost_per_million_tokens:.2f}",
        f"{one.seconds:.1f}",
    )
