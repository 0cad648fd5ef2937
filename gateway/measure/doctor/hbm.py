"""What models take of an accelerator's memory: weights and KV cache, per replica and per core. Arithmetic, no device needed.

    weights = parameters · bytes            KV = 2 · layers · heads · head size · bytes · length · sequences

Tensor parallelism wider than the model's KV heads copies them, on Neuron as in vLLM, so `heads` is the larger of the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GIB: Final = 1024**3
# Activations, compiled programs, collectives and the runtime; a round figure that real deployments stay below.
RESERVED: Final = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine to rent: its accelerators, the memory and cores of each, and US dollars per hour where they are known."""

    name: str
    chips: int
    gib_per_chip: int
    cores_per_chip: int
    price_per_hour: float | None = None

    def cores(self, chips: int, logical_core: int) -> int:
        """Return the logical cores of so many chips when `logical_core` physical ones make one."""
        return chips * self.cores_per_chip // logical_core

    def chips_for(self, tensor_parallel: int, logical_core: int) -> int:
        """Return the chips that a replica of so many logical cores takes: TP = chips · cores per chip / logical core."""
        return -(-tensor_parallel * logical_core // self.cores_per_chip)


# Memory per chip as AWS states it: 1.5 TiB in a trn2.48xlarge, 512 GiB in a trn1.32xlarge. The price is that of a Capacity
# Block in 2026; prices of the others are for whoever rents them to say.
INSTANCES: Final = {
    instance.name: instance
    for instance in (
        Instance(name="trn2.48xlarge", chips=16, gib_per_chip=96, cores_per_chip=8, price_per_hour=35.76),
        Instance(name="trn2.3xlarge", chips=1, gib_per_chip=96, cores_per_chip=8),
        Instance(name="trn1.32xlarge", chips=16, gib_per_chip=32, cores_per_chip=2),
        Instance(name="p5.48xlarge", chips=8, gib_per_chip=80, cores_per_chip=1),
    )
}


_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


class ModelError(Exception):
    """A model whose shape is not known; the message says what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense decoder, by the names of its config.json."""

    name: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool

    @property
    def parameters(self) -> int:
        """Weights of embeddings, attention and gated feed-forward layers; norms are too small to count."""
        heads = self.num_attention_heads * self.head_dim
        shared = self.num_key_value_heads * self.head_dim
        layer = self.hidden_size * (2 * heads + 2 * shared + 3 * self.intermediate_size)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings

    def kv_bytes_per_token(self, tensor_parallel: int, element_bytes: float) -> float:
        """Return the KV cache of one token over all cores of a replica."""
        heads = max(self.num_key_value_heads, tensor_parallel)
        return 2 * self.num_hidden_layers * heads * self.head_dim * element_bytes


def _qwen3(size: str, *, hidden: int, layers: int, heads: int, inner: int, tied: bool) -> Shape:
    return Shape(
        name=f"Qwen3-{size}",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=inner,
        vocab_size=151_936,
        tie_word_embeddings=tied,
    )


SHAPES: Final = {
    shape.name: shape
    for shape in (
        _qwen3("0.6B", hidden=1024, layers=28, heads=16, inner=3072, tied=True),
        _qwen3("1.7B", hidden=2048, layers=28, heads=16, inner=6144, tied=True),
        _qwen3("4B", hidden=2560, layers=36, heads=32, inner=9728, tied=True),
        _qwen3("8B", hidden=4096, layers=36, heads=32, inner=12288, tied=False),
        _qwen3("14B", hidden=5120, layers=40, heads=40, inner=17408, tied=False),
        _qwen3("32B", hidden=5120, layers=64, heads=64, inner=25600, tied=False),
    )
}


def shape_of(model: str) -> Shape:
    """Return the shape of a model by its name, or by its folder or config.json.

    Raises:
        ModelError: neither a known name nor a readable config.json of a dense decoder.
    """
    known = model.rpartition("/")[2]  # a repository's name too, unless there is such a folder
    if known in SHAPES and not Path(model).exists():
        return SHAPES[known]
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _from_config(path.parent.name or model, found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as wrong:
        names = ", ".join(SHAPES)
        raise ModelError(f"{model}: no known model ({names}) and no config.json of a dense one: {wrong!r}") from None


def _from_config(name: str, config: Mapping[str, Any]) -> Shape:
    config = config.get("text_config", config)  # models that see have their language model one level down
    experts = next((key for key in _EXPERTS if config.get(key)), None)
    if experts is not None:
        raise ValueError(f"{experts} is {config[experts]}, and the memory of experts is not planned here")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    return Shape(
        name=name,
        hidden_size=hidden,
        num_hidden_layers=int(config["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one replica holds, in GiB over all of its chips; `share` is of what it has, the reserve included."""

    weights: float
    kv: float
    available: float

    @property
    def share(self) -> float:
        """Used and reserved, of all that there is."""
        return (self.weights + self.kv) / self.available + RESERVED

    @property
    def fits(self) -> bool:
        """Whether it goes in."""
        return self.share <= 1.0


def memory(
    models: list[Shape],
    *,
    instance: Instance,
    chips: int,
    tensor_parallel: int,
    max_model_len: int,
    sequences: int,
    weight_bytes: float,
    kv_bytes: float,
) -> Memory:
    """Return what a replica on `chips` chips holds when all `models`, target and draft, live in it together."""
    weights = sum(shape.parameters * weight_bytes for shape in models)
    kv = sum(shape.kv_bytes_per_token(tensor_parallel, kv_bytes) * max_model_len * sequences for shape in models)
    return Memory(weights=weights / GIB, kv=kv / GIB, available=float(chips * instance.gib_per_chip))
