"""/v1/completions: reading the request and giving the answer vLLM's shape."""

from __future__ import annotations

from gateway.engine.api.answer import Choice, Shape, encode, sse
from gateway.engine.api.ask import Ask, choices_of, limits_of, sampling_of
from gateway.engine.api.fields import Fields
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.tokenizer import TOKENIZER
from gateway.engine.writing import Message


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a completion request asks for."""
    text = fields.text("prompt")
    if text is None:
        raise fields.missing("prompt")
    prompt = TOKENIZER.encode(text)
    options = fields.inner("stream_options")
    return Ask(
        messages=(Message("user", text),),
        prompt=tuple(prompt),
        sampling=sampling_of(fields, settings),
        limits=limits_of(fields, len(prompt), settings, "max_tokens"),
        seed=fields.integer("seed", 0) if "seed" in fields else None,
        n=choices_of(fields),
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        return_token_ids=fields.flag("return_token_ids"),
    )


class CompletionShape(Shape):
    """text_completion, whole and in chunks."""

    prefix = "cmpl"

    def opening(self, choice: Choice) -> bytes:
        """Return nothing: a text completion starts with its first token."""
        return b""

    def delta(self, choice: Choice, emission: Emission) -> bytes:
        """Return one step's chunk."""
        found: dict[str, object] = {
            "index": choice.index,
            "text": emission.text,
            "logprobs": None,
            "finish_reason": emission.finish,
            "stop_reason": emission.stop_reason,
            "prompt_token_ids": None,
            "token_ids": emission.tokens if self.ask.return_token_ids else None,
        }
        usage = {"usage": self.usage_of(choice)} if self.ask.continuous_usage else {}
        return sse({**self._head(), "choices": [found], **usage})

    def closing(self) -> bytes:
        """Return the usage chunk, if asked for, and the end mark."""
        done = b"data: [DONE]\n\n"
        if not self.ask.include_usage:
            return done
        return sse({**self._head(), "choices": [], "usage": self.usage()}) + done

    def whole(self) -> bytes:
        """Return the complete answer."""
        choices = [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.ask.return_token_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
            for choice in self.choices
        ]
        return encode({**self._head(), "choices": choices, "usage": self.usage()})

    def _head(self) -> dict[str, object]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
