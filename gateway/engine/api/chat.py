"""/v1/chat/completions: reading the request and giving the answer vLLM's shape."""

from __future__ import annotations

from gateway.engine.api.ask import (
    Ask,
    Prompt,
    bias_of,
    choices_of,
    least_of,
    limits_of,
    refuse_overlong,
    render,
    sampling_of,
    seed_of,
)
from gateway.engine.api.fields import Fields
from gateway.engine.api.logprobs import chat_logprobs
from gateway.engine.api.shape import DONE, Choice, Service, Shape, encode, sse
from gateway.engine.api.tools import CallDelta, CallReader, form_of, tools_of
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import Message

_PLAIN = b'data: %b,"choices":[{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
_MAX_LOGPROBS = 20  # vLLM's --max-logprobs


def content_text(fields: Fields, name: str = "content") -> str:
    """Return a message's content as text; parts that are no text are named in brackets."""
    content = fields.body.get(name)
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in fields.objects(name):
        text = part.text("text")
        parts.append(text if text is not None else f"[{part.text('type', 'part')}]")
    return "".join(parts)


def messages_of(fields: Fields) -> tuple[Message, ...]:
    """Return the conversation, tool calls of the assistant written out."""
    if "messages" not in fields:
        raise fields.missing("messages")
    found = []
    for message in fields.objects("messages"):
        role = message.text("role")
        if role is None:
            raise message.missing("role")
        calls = [call.inner("function").body for call in message.objects("tool_calls")]
        written = "".join(f"<tool_call>\n{encode(call).decode()}\n</tool_call>" for call in calls)
        found.append(Message(role, content_text(message) + written))
    if not found:
        raise fields.wrong("messages", "expected at least one message")
    return tuple(found)


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a chat request asks for."""
    messages = messages_of(fields)
    tools = tools_of(fields)
    refuse_overlong(sum(len(message.text) for message in messages), settings)
    prompt = Prompt(messages, render(messages, tools))
    limits = limits_of(fields, len(prompt.ids), settings, "max_completion_tokens", "max_tokens")
    options = fields.inner("stream_options")
    top = fields.integer("top_logprobs", 0, low=0, high=_MAX_LOGPROBS)
    stream = fields.flag("stream")
    if options.body and not stream:
        raise fields.wrong("stream_options", "Stream options can only be defined when `stream=True`.")
    return Ask(
        prompts=(prompt,),
        sampling=sampling_of(fields, settings),
        limits=limits,
        least=least_of(fields, limits),
        bias=bias_of(fields),
        seed=seed_of(fields),
        n=choices_of(fields),
        logprobs=top if fields.flag("logprobs") else None,
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        return_token_ids=fields.flag("return_token_ids"),
        form=form_of(fields, tools, messages),
    )


class ChatShape(Shape):
    """chat.completion and chat.completion.chunk."""

    prefix = "chatcmpl-"

    def __init__(self, ask: Ask, service: Service, request_id: str | None = None) -> None:
        super().__init__(ask, service, request_id)
        self._chunk_head = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }
        self._calls = (
            {} if ask.form.kind in ("text", "json") else {one.index: CallReader(ask.form) for one in self.choices}
        )
        self._plain = not (ask.continuous_usage or ask.return_token_ids or ask.logprobs is not None or self._calls)
        self._start = encode(self._chunk_head)[:-1]

    def opening(self, choice: Choice) -> list[bytes]:
        """Return the chunk that names the role."""
        found = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = list(self.ask.prompt_of(choice.index).ids) if self.ask.return_token_ids else None
        usage = {"usage": {**self.usage_of(choice), "completion_tokens": 0}} if self.ask.continuous_usage else {}
        return [sse({**self._chunk_head, "choices": [found], **usage, "prompt_token_ids": ids})]

    def delta(self, choice: Choice, emission: Emission) -> list[bytes]:
        """Return one step's chunk; the last one carries the reason for the end along with its text."""
        if self._plain and emission.finish is None:
            return [_PLAIN % (self._start, choice.index, encode(emission.text))]
        delta: dict[str, object] | None = {"content": emission.text}
        if self._calls:
            delta = self._call_delta(choice, emission)
            if (
                delta is None
                and emission.finish is None
                and not self.ask.return_token_ids
                and self.ask.logprobs is None
            ):
                return []  # a parser swallows the marks around a call, and the event with them
        found: dict[str, object] = {"index": choice.index, "delta": delta or {}, "logprobs": None}
        if self.ask.logprobs is not None:
            start = len(choice.tokens) - len(emission.tokens)
            found["logprobs"] = chat_logprobs(choice.tokens, start, self.ask.logprobs)
        found["finish_reason"] = self._reason(choice) if emission.finish else None
        if emission.finish is not None:
            found["stop_reason"] = emission.stop_reason
        found["token_ids"] = emission.tokens if self.ask.return_token_ids else None
        usage = {"usage": self.usage_of(choice)} if self.ask.continuous_usage else {}
        # The fingerprint rides the last chunk: this one, unless a usage chunk follows.
        last = emission.finish is not None and not self.ask.include_usage
        mark = {"system_fingerprint": self._service.fingerprint} if last else {}
        return [sse({**self._chunk_head, "choices": [found], **usage, **mark})]

    def closing(self) -> list[bytes]:
        """Return the usage chunk, if asked for, and the end mark."""
        if not self.ask.include_usage:
            return [DONE]
        mark = {"system_fingerprint": self._service.fingerprint}
        return [sse({**self._chunk_head, "choices": [], "usage": self.usage(), **mark, **self.metrics()}), DONE]

    def whole(self) -> bytes:
        """Return the complete answer."""
        choices = [
            {
                "index": choice.index,
                "message": self._message(choice),
                "logprobs": None if self.ask.logprobs is None else chat_logprobs(choice.tokens, 0, self.ask.logprobs),
                "finish_reason": self._reason(choice),
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.ask.return_token_ids else None,
            }
            for choice in self.choices
        ]
        head = {**self._chunk_head, "object": "chat.completion"}
        tail = {
            "service_tier": None,
            "system_fingerprint": self._service.fingerprint,
            "usage": {**self.usage(), "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": list(self.ask.prompts[0].ids) if self.ask.return_token_ids else None,
            "kv_transfer_params": None,
        }
        return encode({**head, "choices": choices, **tail, **self.metrics()})

    def _message(self, choice: Choice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None, "tool_calls": []}
        if reader := self._calls.get(choice.index):
            text, piece = reader.feed(choice.text, last=True)
            if piece is not None:
                function = {"name": piece.start, "arguments": piece.arguments}
                return {
                    **message,
                    "content": None,
                    "tool_calls": [{"id": reader.id, "type": "function", "function": function}],
                }
            message["content"] = text
        return message

    def _call_delta(self, choice: Choice, emission: Emission) -> dict[str, object] | None:
        reader = self._calls[choice.index]
        text, piece = reader.feed(emission.text, last=emission.finish is not None)
        if piece is None:
            return {"content": text} if text else None
        return {"tool_calls": [_call(reader, piece)]}

    def _reason(self, choice: Choice) -> str | None:
        reader = self._calls.get(choice.index)
        if choice.finish == "stop" and reader is not None and reader.called and self.ask.form.kind != "arguments":
            return "tool_calls"
        return choice.finish


def _call(reader: CallReader, piece: CallDelta) -> dict[str, object]:
    if piece.start is None:
        return {"index": 0, "function": {"arguments": piece.arguments}}
    function = {"name": piece.start, "arguments": piece.arguments}
    return {"index": 0, "id": reader.id, "type": "function", "function": function}
