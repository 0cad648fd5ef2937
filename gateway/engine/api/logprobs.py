"""Log-probabilities in the shapes of the chat and the completions endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.engine.likelihood import likelihoods
from gateway.engine.tokenizer import TOKENIZER


def _shown(token: int, logprob: float) -> dict[str, object]:
    raw = TOKENIZER.raw(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def chat_logprobs(tokens: Sequence[int], start: int, top: int) -> dict[str, object]:
    """Return the `logprobs` object of a chat choice for `tokens[start:]`, with `top` alternatives each."""
    return {
        "content": [
            {**_shown(one.token, one.logprob), "top_logprobs": [_shown(*pair) for pair in one.top]}
            for one in likelihoods(tokens, start, top)
        ]
    }


def text_logprobs(tokens: Sequence[int], start: int, top: int, offset: int) -> dict[str, object]:
    """Return the `logprobs` object of a text completion for `tokens[start:]`, its text beginning at `offset`."""
    found = likelihoods(tokens, start, top)
    texts = [TOKENIZER.raw(one.token).decode("utf-8", "replace") for one in found]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [one.logprob for one in found],
        "tokens": texts,
        "top_logprobs": [
            {TOKENIZER.raw(token).decode("utf-8", "replace"): logprob for token, logprob in one.top} for one in found
        ],
    }
