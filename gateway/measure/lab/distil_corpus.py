"""The target's answers, with what it thought of each token: what drafts learn from. For `.lab`'s interpreter.

A shard is one batch of answers in a compressed file of numpy arrays, written whole or not at all; a run that is broken off
loses at most the batch it was at.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.measure.lab.distil_prompts import prompts
from gateway.measure.lab.engines import Say
from gateway.measure.lab.place import Place

CHOICES: Final = 8  # of the target's likeliest tokens at each position
BATCH: Final = 64
ANSWER_TOKENS: Final = 192
# Half as the study asks, at temperature 0, half warmer, where the draft sees more of what the target may say.
TEMPERATURES: Final = (0.0, 0.8)
# Where a user would speak, after the system prompt that the model's own template has.
_USER: Final = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
)


def shards(folder: Path) -> list[Path]:
    """Return the shards that are there, oldest first."""
    return sorted(folder.glob("shard-*.npz"))


def tokens(folder: Path) -> int:
    """Return how many answered tokens there are."""
    return sum(int(np.load(path)["answered"].sum()) for path in shards(folder))


def gather(place: Place, folder: Path, *, seconds: float, say: Say) -> int:
    """Let the target answer for so long, in whole batches; return the tokens there are afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    ask = _target(place, seed=len(shards(folder)) + 1)
    while time.monotonic() < until:
        number = len(shards(folder))
        began = time.monotonic()
        found = ask(number)
        _write(folder / f"shard-{number:05d}.npz", found)
        answered = sum(int(mask.sum()) for _, mask, _, _ in found)
        say(f"batch {number + 1}: {answered} tokens at {answered / (time.monotonic() - began):.0f} tokens/s")
    return tokens(folder)


Answer = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # tokens, which are answered, likeliest ids, their logs


def _target(place: Place, *, seed: int) -> Callable[[int], list[Answer]]:
    """Return what answers one batch: of its own questions where the number is odd, of composed ones where it is even."""
    from vllm import LLM, SamplingParams

    # Calls have no seeds of their own: the CPU build of 0.32 dies of one whose prompt it reads in pieces ("CPU Generator does
    # not use offset").
    llm = LLM(model=str(place.target), enforce_eager=True, max_model_len=1024, max_num_seqs=BATCH, seed=seed)
    tokenizer = llm.get_tokenizer()

    def answer(number: int) -> list[Answer]:
        asked = list(islice(prompts(number), BATCH))
        if number % 2:
            wish = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=96, stop=["<|im_end|>"])
            ideas = llm.generate([_USER] * BATCH, wish, use_tqdm=False)
            asked = [one.outputs[0].text.strip() or question for one, question in zip(ideas, asked, strict=True)]
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            for text in asked
        ]
        params = [
            SamplingParams(
                temperature=TEMPERATURES[index % len(TEMPERATURES)],
                max_tokens=ANSWER_TOKENS,
                logprobs=CHOICES,
            )
            for index in range(BATCH)
        ]
        return [_answer(one) for one in llm.generate(texts, params, use_tqdm=False)]

    return answer


def _answer(told: Any) -> Answer:
    (output,) = told.outputs
    prompt, said = list(told.prompt_token_ids), list(output.token_ids)
    answered = np.zeros(len(prompt) + len(said), bool)
    answered[len(prompt) :] = True
    ids = np.zeros((len(said), CHOICES), np.int32)
    logs = np.full((len(said), CHOICES), -100.0, np.float16)
    for row, choices in enumerate(output.logprobs):
        best = sorted(choices.items(), key=lambda pair: -pair[1].logprob)[:CHOICES]
        ids[row, : len(best)] = [token for token, _ in best]
        logs[row, : len(best)] = [max(-100.0, each.logprob) for _, each in best]
    return np.array([*prompt, *said], np.int32), answered, ids, logs


def _write(path: Path, answers: Sequence[Answer]) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=np.concatenate([one[0] for one in answers]),
            answered=np.concatenate([one[1] for one in answers]),
            ids=np.concatenate([one[2] for one in answers]),
            logs=np.concatenate([one[3] for one in answers]),
            lengths=np.array([len(one[0]) for one in answers], np.int32),
        )
    part.rename(path)


def _say(text: str) -> None:
    sys.stderr.write(f"lab-draft: {text}\n")


def main() -> int:
    """Gather into a folder for so many seconds: the two arguments."""
    gather(Place.usual(), Path(sys.argv[1]), seconds=float(sys.argv[2]), say=_say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
