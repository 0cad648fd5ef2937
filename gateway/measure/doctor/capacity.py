"""Whether target and draft fit an accelerator's memory together: per replica and per core, with what is left to grow. Pure.

The larger part of a speculative replica is the target; what people forget is the KV cache of the draft, whose few heads are
copied up to the tensor-parallel degree just as the target's are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.hbm import GIB, INSTANCES, RESERVED, Instance, Memory, ModelError, Shape, memory, shape_of

NARROW: Final = 0.85  # of the memory, the reserve included, from which on a plan is called narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be deployed: names or folders of models, and the settings that memory depends on."""

    instance: str
    target: str
    draft: str | None
    tensor_parallel: int
    length: int
    batch: int
    logical_core: int | None = None  # physical cores that make one; None: two where a chip has more than two
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0


def plan(wish: Wish) -> Checkup:
    """Return what a replica holds and whether it fits.

    Raises:
        ModelError: the instance or a model is not known; the message says what would help.
    """
    instance = INSTANCES.get(wish.instance)
    if instance is None:
        raise ModelError(f"--instance: {wish.instance} is none of {', '.join(INSTANCES)}")
    logical = wish.logical_core or (2 if instance.cores_per_chip > 2 else 1)
    if instance.cores_per_chip % logical:
        raise ModelError(f"--lnc: {logical} does not go into the {instance.cores_per_chip} core(s) of a chip")
    shapes = [shape_of(model) for model in (wish.target, wish.draft) if model is not None]
    cores = instance.cores(instance.chips, logical)
    subject = f"{' and '.join(shape.name for shape in shapes)} on {instance.name}, TP {wish.tensor_parallel}"
    if wish.tensor_parallel > cores:
        more = Finding("fix", "--tp", f"{instance.name} has {cores} logical cores", "take fewer, or another instance")
        return Checkup("hbm", subject, (more,))
    chips = instance.chips_for(wish.tensor_parallel, logical)
    held = _held(wish, shapes, instance, chips)
    findings = (*_room(wish, shapes, held, instance, chips), *_sharing(wish, shapes, instance, logical, chips))
    return Checkup("hbm", subject, findings, _facts(wish, shapes, held, instance, chips))


def _held(
    wish: Wish, shapes: list[Shape], instance: Instance, chips: int, *, length: int = 0, batch: int = 0
) -> Memory:
    return memory(
        shapes,
        instance=instance,
        chips=chips,
        tensor_parallel=wish.tensor_parallel,
        max_model_len=length or wish.length,
        sequences=batch or wish.batch,
        weight_bytes=wish.weight_bytes,
        kv_bytes=wish.kv_bytes,
    )


def _room(wish: Wish, shapes: list[Shape], held: Memory, instance: Instance, chips: int) -> Iterator[Finding]:
    """Whether it fits, by how much, and what would make it fit."""
    per_core = (held.weights + held.kv) / wish.tensor_parallel
    what = (
        f"{held.weights:.1f} GiB weights and {held.kv:.1f} GiB KV of {held.available:.0f} GiB in {chips} chip(s): "
        f"{per_core:.2f} GiB of {held.available / wish.tensor_parallel:.1f} per core, {held.share:.0%} with "
        f"{RESERVED:.0%} kept free"
    )
    free = held.available * (1 - RESERVED) - held.weights
    per_token = sum(shape.kv_bytes_per_token(wish.tensor_parallel, wish.kv_bytes) for shape in shapes) / GIB
    tokens = int(free / per_token) if free > 0 else 0
    batch, length = tokens // wish.length, tokens // wish.batch
    if not held.fits:
        can = f"at length {wish.length} it takes a batch of {batch}, at batch {wish.batch} a length of {length}"
        todo = (
            can if tokens else "the weights alone do not fit: take more chips (a larger TP) or fewer bytes per weight"
        )
        yield Finding("fix", "memory", what, todo)
    elif held.share > NARROW:
        yield Finding("warn", "memory", what, f"little is left: at most a batch of {batch}, or a length of {length}")
    else:
        yield Finding("ok", "memory", what)
        yield Finding(
            "note", "memory", f"room for a batch of {batch} at this length, or a length of {length} at this batch"
        )
    replicas = instance.chips // chips
    yield Finding(
        "note" if replicas > 1 else "warn",
        "instance",
        f"{replicas} such replica(s) go on one {instance.name}",
        "" if replicas > 1 else "the other pool needs an instance of its own",
    )


def _sharing(wish: Wish, shapes: list[Shape], instance: Instance, logical: int, chips: int) -> Iterator[Finding]:
    """What the tensor-parallel degree costs."""
    degree = wish.tensor_parallel
    if degree * logical % instance.cores_per_chip:
        whole = chips * instance.cores_per_chip // logical
        yield Finding(
            "warn", "--tp", f"{degree} does not fill {chips} chip(s)", f"replicas get whole chips: TP {whole} is free"
        )
    for shape in shapes:
        heads = shape.num_key_value_heads
        if degree > heads:
            mib = shape.kv_bytes_per_token(degree, wish.kv_bytes) / 1024**2
            yield Finding(
                "note", "KV heads", f"{shape.name} has {heads}, copied to {degree}: {mib:.4g} MiB of cache per token"
            )
        if degree % heads and heads % degree:
            yield Finding(
                "fix", "KV heads", f"{shape.name} has {heads}, which TP {degree} can neither share nor copy evenly"
            )


def _facts(wish: Wish, shapes: list[Shape], held: Memory, instance: Instance, chips: int) -> dict[str, Any]:
    return {
        "chips": chips,
        "replicas_per_instance": instance.chips // chips,
        "weights_gib": held.weights,
        "kv_gib": held.kv,
        "available_gib": held.available,
        "per_core_gib": (held.weights + held.kv) / wish.tensor_parallel,
        "available_per_core_gib": held.available / wish.tensor_parallel,
        "share": held.share,
        "fits": held.fits,
        "models": [
            {
                "name": shape.name,
                "parameters": shape.parameters,
                "weights_gib": shape.parameters * wish.weight_bytes / GIB,
                "kv_bytes_per_token": shape.kv_bytes_per_token(wish.tensor_parallel, wish.kv_bytes),
            }
            for shape in shapes
        ],
    }
