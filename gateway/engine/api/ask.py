"""What a request asks of the engine, whatever its endpoint: prompt, sampling, limits and the shape of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.engine.api.fields import Fields
from gateway.engine.writing.pen import Sampling
from gateway.engine.api.refusal import Refusal
from gateway.engine.sequence import Limits
from gateway.engine.settings import EngineSettings
from gateway.engine.tokenizer import TOKENIZER
from gateway.engine.writing import Form, Message

_MAX_CHOICES = 128
_MAX_LOGPROBS = 20  # vLLM's --max-logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One completion to be generated, `n` times."""

    messages: tuple[Message, ...]
    prompt: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    form: Form = Form()


def render(messages: Sequence[Message]) -> list[int]:
    """Return the prompt's ids under the ChatML template that Qwen uses."""
    ids: list[int] = []
    for message in messages:
        ids.append(TOKENIZER.start)
        ids.extend(TOKENIZER.encode(f"{message.role}\n{message.text}"))
        ids.append(TOKENIZER.end)
        ids.extend(TOKENIZER.encode("\n"))
    ids.append(TOKENIZER.start)
    ids.extend(TOKENIZER.encode("assistant\n"))
    return ids


def sampling_of(fields: Fields, settings: EngineSettings) -> Sampling:
    """Return the sampling parameters; raises Refusal for what this kind of engine cannot do."""
    min_p = fields.number("min_p", 0.0, low=0.0, high=1.0)
    bias = fields.inner("logit_bias").body
    if settings.speculative and (min_p > 0 or bias):
        # vLLM 0.14 to 0.32: the rejection sampler knows neither.
        raise Refusal("The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.")
    temperature = fields.number("temperature", settings.default_temperature, low=0.0)
    if settings.greedy_only:
        temperature = 0.0  # a sampler compiled greedy ignores the request silently, as NxDI's does
    return Sampling(
        temperature=temperature,
        top_p=fields.number("top_p", 1.0, low=0.0, high=1.0),
        top_k=fields.integer("top_k", 0, low=-1),
        min_p=min_p,
        presence_penalty=fields.number("presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, low=-2.0, high=2.0),
    )


def limits_of(fields: Fields, prompt: int, settings: EngineSettings, *names: str) -> Limits:
    """Return when to end, with the output limit under the first of `names` that is there; raises Refusal if too long."""
    room = settings.max_model_len - prompt
    if room < 1:
        raise Refusal(
            f"This model's maximum context length is {settings.max_model_len} tokens. However, your request has "
            f"{prompt} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    name = next((one for one in names if one in fields), names[0])
    max_tokens = fields.integer(name, room, low=1)
    if max_tokens > room:
        raise Refusal(
            f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length "
            f"is {settings.max_model_len} tokens and your request has {prompt} input tokens ({max_tokens} > "
            f"{settings.max_model_len} - {prompt}).",
            param="max_tokens",
        )
    stop_ids = fields.body.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(isinstance(one, int) for one in stop_ids):
        raise fields.wrong("stop_token_ids", "expected a list of integers")
    stop = fields.strings("stop")
    if "" in stop:
        raise Refusal("stop cannot contain an empty string.", param="stop")
    return Limits(
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, low=0, high=max_tokens),
        ignore_eos=fields.flag("ignore_eos"),
        stop=stop,
        stop_token_ids=frozenset(stop_ids),
        include_stop=fields.flag("include_stop_str_in_output"),
    )


def choices_of(fields: Fields) -> int:
    """Return how many choices are asked for."""
    return fields.integer("n", 1, low=1, high=_MAX_CHOICES)


def logprobs_of(fields: Fields, name: str) -> int:
    """Return how many alternatives to show at each token."""
    return fields.integer(name, 0, low=0, high=_MAX_LOGPROBS)
