"""What a request asks of the engine, whatever its endpoint: prompt, sampling, limits and the shape of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.engine.api.fields import Fields
from gateway.engine.api.refusal import Refusal
from gateway.engine.sequence import Limits
from gateway.engine.settings import EngineSettings
from gateway.engine.tokenizer import TOKENIZER
from gateway.engine.writing import Form, Message
from gateway.engine.writing.pen import Sampling

_MAX_CHOICES = 128
_DECISIVE = 50.0  # a logit bias from here on settles the matter; OpenAI's range ends at 100


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one completion starts from: the conversation for the target to read, and its token ids."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The completions that a request asks for: `n` of each prompt."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    limits: Limits
    least: int = 0  # tokens that the text has at least, whatever the target wants to say
    bias: Mapping[int, bool] | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None  # alternatives shown at each token; None: no log-probabilities at all
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    echo: bool = False
    form: Form = field(default_factory=Form)

    @property
    def choices(self) -> int:
        """The number of completions."""
        return self.n * len(self.prompts)

    def prompt_of(self, index: int) -> Prompt:
        """Return the prompt of that choice."""
        return self.prompts[index // self.n]


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()) -> tuple[int, ...]:
    """Return the prompt's ids under the ChatML template that Qwen uses."""
    ids: list[int] = []
    if tools:
        lines = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
        messages = [Message("system", f"# Tools\n\n<tools>\n{lines}\n</tools>"), *messages]
    for message in messages:
        ids.append(TOKENIZER.start)
        ids.extend(TOKENIZER.encode(f"{message.role}\n{message.text}"))
        ids.append(TOKENIZER.end)
        ids.extend(TOKENIZER.encode("\n"))
    ids.append(TOKENIZER.start)
    ids.extend(TOKENIZER.encode("assistant\n"))
    return tuple(ids)


def sampling_of(fields: Fields, settings: EngineSettings) -> Sampling:
    """Return the sampling parameters; raises Refusal for what this kind of engine cannot do."""
    min_p = fields.number("min_p", 0.0, low=0.0, high=1.0)
    if settings.speculative and not settings.greedy_only and (min_p > 0 or fields.inner("logit_bias").body):
        # vLLM 0.14 to 0.32: the rejection sampler knows neither.
        raise Refusal("The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.")
    temperature = fields.number("temperature", settings.default_temperature, low=0.0)
    if settings.greedy_only:
        # A sampler that was compiled greedy ignores what it cannot do, without a word: NxDI's fused speculation does.
        return Sampling()
    return Sampling(
        temperature=temperature,
        top_p=fields.number("top_p", 1.0, low=0.0, high=1.0),
        top_k=fields.integer("top_k", 0, low=-1),
        min_p=min_p,
        presence_penalty=fields.number("presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, low=-2.0, high=2.0),
    )


def bias_of(fields: Fields) -> dict[int, bool]:
    """Return the token ids that a logit bias forbids (False) or forces (True); smaller biases change nothing here."""
    found: dict[int, bool] = {}
    for key, value in fields.inner("logit_bias").body.items():
        if not key.isdigit() or int(key) >= TOKENIZER.size:
            raise Refusal(f"token_id {key} in logit_bias contains out-of-vocab token id", param="logit_bias")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise fields.wrong("logit_bias", "expected numbers between -100 and 100")
        if abs(value) >= _DECISIVE:
            found[int(key)] = value > 0
    return found


def limits_of(fields: Fields, prompt: int, settings: EngineSettings, *names: str) -> Limits:
    """Return when to end, with the output limit under the first of `names` that is there; raises Refusal if too long."""
    room = settings.max_model_len - prompt
    name = next((one for one in names if one in fields), names[0])
    if room < 1:
        raise _too_long(settings.max_model_len, 0, prompt)
    max_tokens = fields.integer(name, room, low=1)
    if max_tokens > room:
        raise _too_long(settings.max_model_len, max_tokens, prompt)
    stop_ids = fields.body.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(isinstance(one, int) for one in stop_ids):
        raise fields.wrong("stop_token_ids", "expected a list of integers")
    stop = fields.strings("stop")
    if "" in stop:
        raise Refusal("stop cannot contain an empty string.", param="stop")
    return Limits(
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, low=0, high=max_tokens),
        stop=stop,
        stop_token_ids=frozenset(stop_ids),
        include_stop=fields.flag("include_stop_str_in_output"),
    )


def least_of(fields: Fields, limits: Limits) -> int:
    """Return how many tokens the text must have at least: all there may be, when its natural end is to be ignored."""
    return limits.max_tokens if fields.flag("ignore_eos") else limits.min_tokens


def choices_of(fields: Fields) -> int:
    """Return how many choices are asked for."""
    return fields.integer("n", 1, low=1, high=_MAX_CHOICES)


def seed_of(fields: Fields) -> int | None:
    """Return the seed of the sampler, if the client sets one."""
    return fields.integer("seed", 0) if "seed" in fields else None


def refuse_overlong(characters: int, settings: EngineSettings) -> None:
    """Raise Refusal for a prompt that cannot fit whatever its tokens are, before any time is spent on making them."""
    least = characters // TOKENIZER.longest
    if least > settings.max_model_len:
        raise _too_long(settings.max_model_len, 0, least)


def _too_long(limit: int, output: int, prompt: int) -> Refusal:
    return Refusal(
        f"This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and your "
        f"prompt contains {prompt} input tokens, for a total of {output + prompt} tokens. Please reduce the length of the "
        "input prompt or the number of requested output tokens.",
        param="input_tokens",
    )
