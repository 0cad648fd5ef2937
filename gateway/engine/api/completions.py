"""/v1/completions: reading the request and giving the answer vLLM's shape."""

from __future__ import annotations

from gateway.engine.api.ask import (
    Ask,
    Prompt,
    bias_of,
    choices_of,
    least_of,
    limits_of,
    refuse_overlong,
    sampling_of,
    seed_of,
)
from gateway.engine.api.fields import Fields
from gateway.engine.api.logprobs import text_logprobs
from gateway.engine.api.refusal import Refusal
from gateway.engine.api.shape import DONE, Choice, Shape, encode, sse
from gateway.engine.api.tools import format_of
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.tokenizer import TOKENIZER
from gateway.engine.writing import Message

_DEFAULT_MAX_TOKENS = 16  # OpenAI's and vLLM's default on this endpoint
_MAX_LOGPROBS = 20  # vLLM's --max-logprobs


def prompts_of(fields: Fields) -> tuple[Prompt, ...]:
    """Return the prompts: a text, token ids, or a list of either."""
    value = fields.body.get("prompt")
    if value is None:
        raise fields.missing("prompt")
    if isinstance(value, str):
        return (_prompt(TOKENIZER.encode(value), value),)
    if isinstance(value, list) and value:
        if _are_ids(value):
            return (_prompt(value),)
        if all(isinstance(one, str) for one in value):
            return tuple(_prompt(TOKENIZER.encode(one), one) for one in value)
        if all(_are_ids(one) for one in value):
            return tuple(_prompt(one) for one in value)
    raise fields.wrong("prompt", "prompt must be a string, array of strings, array of tokens, or array of token arrays")


def _are_ids(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        and bool(value)
    )


def _prompt(ids: list[int], text: str | None = None) -> Prompt:
    if any(not 0 <= one < TOKENIZER.size for one in ids):
        raise Refusal(f"Token id {max(ids)} is out of vocabulary", param="prompt")
    return Prompt((Message("user", TOKENIZER.decode(ids) if text is None else text),), tuple(ids))


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a completion request asks for."""
    given = fields.body.get("prompt")
    for text in given if isinstance(given, list) else (given,):
        refuse_overlong(len(text) if isinstance(text, str) else 0, settings)
    prompts = prompts_of(fields)
    longest = max(len(prompt.ids) for prompt in prompts)
    if "max_tokens" not in fields:
        room = max(1, min(_DEFAULT_MAX_TOKENS, settings.max_model_len - longest))
        fields = Fields({**fields.body, "max_tokens": room})
    limits = limits_of(fields, longest, settings, "max_tokens")
    options = fields.inner("stream_options")
    return Ask(
        prompts=prompts,
        sampling=sampling_of(fields, settings),
        limits=limits,
        least=least_of(fields, limits),
        bias=bias_of(fields),
        seed=seed_of(fields),
        n=choices_of(fields),
        logprobs=fields.integer("logprobs", 0, low=0, high=_MAX_LOGPROBS) if "logprobs" in fields else None,
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        return_token_ids=fields.flag("return_token_ids"),
        echo=fields.flag("echo"),
        form=format_of(fields.inner("response_format")),
    )


class CompletionShape(Shape):
    """text_completion, whole and in chunks."""

    prefix = "cmpl-"

    def opening(self, choice: Choice) -> list[bytes]:
        """Return nothing: a text completion starts with its first token."""
        del choice
        return []

    def delta(self, choice: Choice, emission: Emission) -> list[bytes]:
        """Return one step's chunk."""
        start = len(choice.tokens) - len(emission.tokens)
        echoed = self._echo(choice) if start == 0 else ""
        ids = list(self.ask.prompt_of(choice.index).ids) if self.ask.return_token_ids and start == 0 else None
        offset = choice.length - len(emission.text) + len(self._echo(choice))
        found: dict[str, object] = {
            "index": choice.index,
            "text": echoed + emission.text,
            "logprobs": self._logprobs(choice, start, offset),
            "finish_reason": emission.finish,
            "stop_reason": emission.stop_reason,
            "prompt_token_ids": ids,
            "token_ids": emission.tokens if self.ask.return_token_ids else None,
        }
        usage = {"usage": self.usage_of(choice)} if self.ask.continuous_usage else {}
        return [sse({**self._head(), "choices": [found], **usage})]

    def closing(self) -> list[bytes]:
        """Return the usage chunk, if asked for, and the end mark."""
        if not self.ask.include_usage:
            return [DONE]
        return [sse({**self._head(), "choices": [], "usage": self.usage(), **self.metrics()}), DONE]

    def whole(self) -> bytes:
        """Return the complete answer."""
        choices = [
            {
                "index": choice.index,
                "text": self._echo(choice) + choice.text,
                "logprobs": self._logprobs(choice, 0, len(self._echo(choice))),
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.ask.return_token_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": list(self.ask.prompt_of(choice.index).ids) if self.ask.return_token_ids else None,
            }
            for choice in self.choices
        ]
        tail = {
            "service_tier": None,
            "system_fingerprint": self._service.fingerprint,
            "usage": self.usage(),
            "kv_transfer_params": None,
        }
        return encode({**self._head(), "choices": choices, **tail, **self.metrics()})

    def _head(self) -> dict[str, object]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _echo(self, choice: Choice) -> str:
        return TOKENIZER.decode(self.ask.prompt_of(choice.index).ids) if self.ask.echo else ""

    def _logprobs(self, choice: Choice, start: int, offset: int) -> dict[str, object] | None:
        if self.ask.logprobs is None:
            return None
        return text_logprobs(choice.tokens, start, self.ask.logprobs, offset)
