"""The vLLMs that serve speculative decoding, each with the flags, JSON fields, methods and variables that it has.

The tables hold what a deployment would set, by vLLM's and Neuron's documentation of that release; they are not all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Kind = type[int] | type[float] | type[str] | type[bool] | type[dict[str, Any]]

_COMMON: Final[dict[str, Kind]] = {
    "--served-model-name": str,
    "--host": str,
    "--port": int,
    "--api-key": str,
    "--chat-template": str,
    "--response-role": str,
    "--root-path": str,
    "--uvicorn-log-level": str,
    "--enable-auto-tool-choice": bool,
    "--tool-call-parser": str,
    "--tokenizer": str,
    "--trust-remote-code": bool,
    "--dtype": str,
    "--seed": int,
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--max-logprobs": int,
    "--block-size": int,
    "--tensor-parallel-size": int,
    "--load-format": str,
    "--generation-config": str,
    "--override-generation-config": dict,
    "--hf-overrides": dict,
    "--enable-prefix-caching": bool,
    "--no-enable-prefix-caching": bool,
    "--enable-chunked-prefill": bool,
    "--no-enable-chunked-prefill": bool,
    "--disable-log-stats": bool,
    "--speculative-config": dict,
    "--additional-config": dict,
}
_STOCK: Final[dict[str, Kind]] = {
    **_COMMON,
    "--gpu-memory-utilization": float,
    "--kv-cache-dtype": str,
    "--kv-cache-memory-bytes": str,
    "--quantization": str,
    "--enforce-eager": bool,
    "--compilation-config": dict,
    "--structured-outputs-config": dict,
    "--reasoning-parser": str,
    "--stream-interval": int,
    "--async-scheduling": bool,
    "--per-request-spec-decode-metrics": str,
    "--distributed-executor-backend": str,
    "--data-parallel-size": int,
    "--api-server-count": int,
    "--attention-backend": str,
    "--performance-mode": str,
    "--shutdown-timeout": int,
}
# NxD Inference's NeuronConfig.
_NXDI: Final = frozenset(
    "tp_degree batch_size ctx_batch_size tkg_batch_size seq_len max_context_length n_active_tokens enable_bucketing "
    "context_encoding_buckets token_generation_buckets torch_dtype rpl_reduce_dtype fused_qkv sequence_parallel_enabled "
    "flash_decoding_enabled qkv_kernel_enabled mlp_kernel_enabled attn_kernel_enabled on_device_sampling_config "
    "logical_nc_config async_mode skip_warmup save_sharded_checkpoint quantized quantized_checkpoints_path "
    "quantization_type quantization_dtype kv_cache_quant modules_to_not_convert speculation_length spec_batch_size "
    "enable_fused_speculation enable_eagle_speculation is_eagle3 enable_eagle_draft_input_norm "
    "is_continuous_batching is_prefix_caching is_block_kv_layout pa_num_blocks pa_block_size cc_pipeline_tiling_factor "
    "scratchpad_page_size weights_to_skip_layout_optimization max_length output_logits".split()
)
_SPECULATION: Final = frozenset(
    "model method num_speculative_tokens max_model_len draft_tensor_parallel_size quantization revision "
    "disable_by_batch_size prompt_lookup_max prompt_lookup_min".split()
)
_SPECULATION_STOCK: Final = (_SPECULATION - {"disable_by_batch_size"}) | frozenset(
    "tensor_parallel_size enforce_eager code_revision disable_padded_drafter_batch attention_backend moe_backend "
    "parallel_drafting rejection_sample_method draft_sample_method synthetic_acceptance_length "
    "synthetic_acceptance_rates kv_cache_dtype".split()
)


# Read by vLLM or the hub's client, whatever the release; then by the Neuron runtime and compiler.
_VARIABLES: Final = frozenset(
    "HF_HOME HF_HUB_OFFLINE VLLM_NO_USAGE_STATS VLLM_LOGGING_LEVEL VLLM_API_KEY VLLM_CACHE_ROOT".split()
)
_NEURON_VARIABLES: Final = _VARIABLES | frozenset(
    "VLLM_NEURON_FRAMEWORK NEURON_COMPILED_ARTIFACTS NEURON_LOGICAL_NC_CONFIG NEURON_RT_NUM_CORES "
    "NEURON_RT_VISIBLE_CORES NEURON_RT_LOG_LEVEL NEURON_CC_FLAGS NEURON_COMPILE_CACHE_URL".split()
)


@dataclass(frozen=True)
class Release:
    """The vLLM of one image: its flags, fields of those that take JSON, real drafting methods, variables that are read."""

    name: str
    flags: Mapping[str, Kind]
    fields: Mapping[str, Any]  # by flag: the known fields, or a nesting of them
    methods: frozenset[str]
    variables: frozenset[str] = _NEURON_VARIABLES


V0: Final = Release(
    "vLLM V0 Neuron fork 0.9.1",
    {
        # It takes --additional-config as well, and nothing reads it there: an error that shows late.
        **{flag: kind for flag, kind in _COMMON.items() if flag != "--additional-config"},
        "--override-neuron-config": dict,
        "--device": str,
        "--gpu-memory-utilization": float,
    },
    {"--override-neuron-config": _NXDI, "--speculative-config": _SPECULATION},
    frozenset({"eagle", "draft_model"}),  # a label only: what fuses is in override-neuron-config
    _NEURON_VARIABLES | {"VLLM_USE_V1"},
)
PLUGIN: Final = Release(
    "vLLM 0.16 with the NxDI plugin",
    {**_COMMON, "--num-gpu-blocks-override": int},
    {"--additional-config": {"override_neuron_config": _NXDI}, "--speculative-config": _SPECULATION},
    frozenset({"eagle", "eagle3"}),
)
NATIVE: Final = Release(
    "vLLM 0.24 with native Neuron",
    {**_COMMON, "--num-gpu-blocks-override": int, "--kv-cache-dtype": str, "--quantization": str},
    {"--speculative-config": _SPECULATION},
    frozenset({"eagle3", "dflash"}),
)
STOCK: Final = Release(
    "vLLM 0.32",
    _STOCK,
    {"--speculative-config": _SPECULATION_STOCK},
    frozenset({"ngram", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "suffix", "dflash"}),
    _VARIABLES,
)
_NEURON: Final = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx"
IMAGES: Final[Mapping[str, Release]] = {
    f"{_NEURON}:0.9.1-neuronx-py311-sdk2.26.1-ubuntu22.04": V0,
    f"{_NEURON}:0.16.0-neuronx-py312-sdk2.31.1-ubuntu24.04": PLUGIN,
    f"{_NEURON}:0.24.0.1.1.0-neuronx-py313-sdk2.32.0-ubuntu24.04": NATIVE,
    "vllm/vllm-openai:v0.32.0": STOCK,
}
RELEASES: Final = (V0, PLUGIN, NATIVE, STOCK)
# Tags of the Neuron images by the vLLM in them.
_TAGS: Final = ((re.compile(r"[:-]v?0\.(?:[89]|10)\.\d"), V0), (re.compile(r"[:-]v?0\.1[1-9]\.\d"), PLUGIN))


def of_image(image: str | None) -> Release | None:
    """Return the vLLM of an image, by its whole name or, of the family that is known, by its tag; None where neither tells."""
    if image is None:
        return None
    if image in IMAGES:
        return IMAGES[image]
    if "neuron" in image:
        return next((release for tag, release in _TAGS if tag.search(image)), NATIVE if ":0.2" in image else None)
    return STOCK if "vllm" in image else None
