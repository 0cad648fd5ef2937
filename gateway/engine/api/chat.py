"""/v1/chat/completions: reading the request and giving the answer vLLM's shape."""

from __future__ import annotations

from gateway.engine.api.answer import Choice, Shape, encode, sse
from gateway.engine.api.ask import Ask, choices_of, limits_of, logprobs_of, render, sampling_of
from gateway.engine.api.fields import Fields
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import Message


def content_text(fields: Fields, name: str) -> str:
    """Return a message's content as text; parts that are no text are named in brackets."""
    content = fields.body.get(name)
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in fields.objects(name):
        text = part.text("text")
        parts.append(text if text is not None else f"[{part.text('type', 'part')}]")
    return "".join(parts)


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a chat request asks for."""
    if "messages" not in fields:
        raise fields.missing("messages")
    messages = tuple(
        Message(message.text("role") or "user", content_text(message, "content"))
        for message in fields.objects("messages")
    )
    if not messages:
        raise fields.wrong("messages", "expected at least one message")
    prompt = render(messages)
    options = fields.inner("stream_options")
    return Ask(
        messages=messages,
        prompt=tuple(prompt),
        sampling=sampling_of(fields, settings),
        limits=limits_of(fields, len(prompt), settings, "max_completion_tokens", "max_tokens"),
        seed=fields.integer("seed", 0) if "seed" in fields else None,
        n=choices_of(fields),
        logprobs=logprobs_of(fields, "top_logprobs") if fields.flag("logprobs") else None,
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        return_token_ids=fields.flag("return_token_ids"),
    )


class ChatShape(Shape):
    """chat.completion and chat.completion.chunk."""

    prefix = "chatcmpl"

    def opening(self, choice: Choice) -> bytes:
        """Return the chunk that names the role."""
        found = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        extra = {"prompt_token_ids": list(self.ask.prompt) if self.ask.return_token_ids else None}
        return sse(self._chunk([{**found, "finish_reason": None}], choice, extra))

    def delta(self, choice: Choice, emission: Emission) -> bytes:
        """Return one step's chunk; the last one carries the reason for the end along with its text."""
        found: dict[str, object] = {
            "index": choice.index,
            "delta": {"content": emission.text},
            "logprobs": None,
            "finish_reason": emission.finish,
        }
        if emission.finish is not None:
            found["stop_reason"] = emission.stop_reason
        found["token_ids"] = emission.tokens if self.ask.return_token_ids else None
        return sse(self._chunk([found], choice, {}))

    def closing(self) -> bytes:
        """Return the usage chunk, if asked for, and the end mark."""
        done = b"data: [DONE]\n\n"
        if not self.ask.include_usage:
            return done
        return sse({**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage()}) + done

    def whole(self) -> bytes:
        """Return the complete answer."""
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.ask.return_token_ids else None,
            }
            for choice in self.choices
        ]
        return encode({**self._head("chat.completion"), "choices": choices, "usage": self.usage()})

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[dict[str, object]], choice: Choice, extra: dict[str, object]) -> dict[str, object]:
        usage = {"usage": self.usage_of(choice)} if self.ask.continuous_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": choices, **usage, **extra}
