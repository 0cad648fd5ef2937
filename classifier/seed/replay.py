"""Measures acceptance: a draft model reads a request and a real answer, and what it would have proposed is compared token by token.

Where its greedy proposal equals the answer's next token it is accepted; the first difference ends the step, and the answer's own
token is added. That is what greedy verification does when the target's text is known. Needs torch, transformers and gguf, in an
environment of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # the draft's own default
PROMPT_TOKENS = 1024  # the last that are read of a request
ANSWER_TOKENS = 384  # the first that are replayed of an answer
WINDOW = 7


def accepted(agrees: Sequence[bool], window: int = WINDOW) -> float:
    """Tokens per verification step, given which tokens of an answer are the draft's first choice."""
    place = steps = 0
    while place < len(agrees):
        run = 0
        while run < window and place + run < len(agrees) and agrees[place + run]:
            run += 1
        place += run + 1
        steps += 1
    return len(agrees) / steps


def looked_up(
    prompt: Sequence[int], answer: Sequence[int], window: int = WINDOW, *, longest: int = 4, shortest: int = 2
) -> float:
    """Tokens per step of prompt lookup: the continuation of the latest earlier occurrence of the last n-gram, longest first."""
    text, place, steps = [*prompt, *answer], 0, 0
    while place < len(answer):
        end, proposal = len(prompt) + place, []
        for size in range(longest, shortest - 1, -1):
            key = text[end - size : end]
            found = next((i for i in range(end - size - 1, -1, -1) if text[i : i + size] == key), None)
            if found is not None:
                proposal = text[found + size : min(found + size + window, end)]
                break
        run = 0
        while run < len(proposal) and place + run < len(answer) and proposal[run] == answer[place + run]:
            run += 1
        place += run + 1
        steps += 1
    return len(answer) / steps


def name_of(source: str, messages: Sequence[Mapping[str, str]], tools: Sequence[object] = ()) -> str:
    """A stable name of a request."""
    return hashlib.sha256(json.dumps([source, list(messages), list(tools)]).encode()).hexdigest()[:12]


def chat(messages: Sequence[Mapping[str, str]], tools: Sequence[object] = ()) -> str:
    """A conversation as the draft was taught to read it; its own system prompt stands where there is none."""
    first, *rest = messages
    if first["role"] != "system":
        first, rest = {"role": "system", "content": SYSTEM}, [first, *rest]
    can = f"\n\nYou can call these functions: {json.dumps(list(tools))}" if tools else ""
    told = [{"role": "system", "content": first["content"] + can}, *rest]
    turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in told)
    return turns + "<|im_start|>assistant\n"


class Draft:
    """SmolLM2-135M-Instruct from a GGUF file, on one thread."""

    def __init__(self, file: Path) -> None:
        torch: Any = import_module("torch")  # neither is installed beside the rest of the project
        transformers: Any = import_module("transformers")
        torch.set_num_threads(1)
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        self._torch = torch
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**where)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text without special tokens added."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def measure(
        self, messages: Sequence[Mapping[str, str]], answer: str, tools: Sequence[object] = ()
    ) -> dict[str, Any]:
        """The label of a conversation that waits for an answer, and the answer."""
        asked = self.tokens(chat(messages, tools))[-PROMPT_TOKENS:]
        given = self.tokens(answer)[:ANSWER_TOKENS]
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([asked + given])).logits[0, len(asked) - 1 : -1]
        agrees = (logits.argmax(-1) == self._torch.tensor(given)).tolist()
        return {
            "prompt_tokens": len(asked),
            "output_tokens": len(given),
            "acceptance_length": {
                "draft": {str(WINDOW): round(accepted(agrees), 4)},
                "ngram": {str(WINDOW): round(looked_up(asked, given), 4)},
            },
        }
