"""/v1/messages: Anthropic's request and answer, as vLLM translates them."""

from __future__ import annotations

import json

from gateway.engine.api.ask import Ask, Prompt, limits_of, refuse_overlong, render, sampling_of
from gateway.engine.api.chat import content_text
from gateway.engine.api.fields import Fields
from gateway.engine.api.shape import Choice, Service, Shape, encode
from gateway.engine.api.tools import CallReader, Tool, form_of
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import Message

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def conversation_of(fields: Fields) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """Return the conversation, system prompt first, and the tools in OpenAI's shape."""
    if "messages" not in fields:
        raise fields.missing("messages")
    found = [Message("system", content_text(fields, "system"))] if "system" in fields else []
    for message in fields.objects("messages"):
        role = message.text("role") or "user"
        content = message.body.get("content")
        parts = message.objects("content") if isinstance(content, list) else []
        results = [part for part in parts if part.text("type") == "tool_result"]
        found.extend(Message("tool", content_text(part)) for part in results)
        if not results:
            found.append(Message(role, content_text(message)))
    tools = [
        {
            "name": tool.text("name"),
            "description": tool.text("description"),
            "parameters": tool.inner("input_schema").body,
        }
        for tool in fields.objects("tools")
    ]
    return tuple(found), tuple(tools)


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a messages request asks for."""
    conversation, tools = conversation_of(fields)
    if not any(message.role != "system" for message in conversation):
        raise fields.wrong("messages", "expected at least one message")
    if "max_tokens" not in fields:
        raise fields.missing("max_tokens")
    refuse_overlong(sum(len(message.text) for message in conversation), settings)
    prompt = Prompt(conversation, render(conversation, tools))
    stop = {**fields.body, "stop": list(fields.strings("stop_sequences"))}
    choice = fields.inner("tool_choice")
    wanted: object = _CHOICES.get(choice.text("type", "auto") or "auto", "auto")
    if choice.text("type") == "tool":
        wanted = {"type": "function", "function": {"name": choice.text("name")}}
    return Ask(
        prompts=(prompt,),
        sampling=sampling_of(fields, settings),
        limits=limits_of(Fields(stop), len(prompt.ids), settings, "max_tokens"),
        stream=fields.flag("stream"),
        form=form_of(Fields({"tool_choice": wanted if tools else None}), tools, conversation),
    )


class MessagesShape(Shape):
    """Anthropic's message, whole and in typed events."""

    prefix = "msg_"

    def __init__(self, ask: Ask, service: Service, request_id: str | None = None) -> None:
        super().__init__(ask, service, request_id)
        self._reader = CallReader(ask.form)
        self._block: str | None = None
        self._blocks = 0

    def opening(self, choice: Choice) -> list[bytes]:
        """Return message_start."""
        del choice
        return [_event("message_start", {"message": {**self._head(), "content": [], "usage": self._usage(0)}})]

    def delta(self, choice: Choice, emission: Emission) -> list[bytes]:
        """Return a content_block_delta, its block started before and stopped after where need be."""
        text, piece = self._reader.feed(emission.text, last=emission.finish is not None)
        events: list[bytes] = []
        if text:
            events += self._enter("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": text}))
        if piece is not None:
            block: dict[str, object] = {"type": "tool_use", "id": self._reader.id, "name": piece.start, "input": {}}
            events += self._enter("tool_use", block)
            if piece.arguments:
                events.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
        if emission.finish is not None:
            events += self._leave()
            ended = {"stop_reason": self._reason(choice), "stop_sequence": _sequence(choice)}
            events.append(_event("message_delta", {"delta": ended, "usage": self._usage(self.tokens())}))
        return events

    def closing(self) -> list[bytes]:
        """Return message_stop."""
        return [_event("message_stop", {})]

    def whole(self) -> bytes:
        """Return the complete message."""
        choice = self.choices[0]
        text, piece = self._reader.feed(choice.text, last=True)
        content: list[dict[str, object]] = [{"type": "text", "text": text}] if text or piece is None else []
        if piece is not None:
            try:
                given = json.loads(piece.arguments)
            except ValueError:
                given = {}  # cut by max_tokens
            content.append({"type": "tool_use", "id": self._reader.id, "name": piece.start, "input": given})
        ended = {"stop_reason": self._reason(choice), "stop_sequence": _sequence(choice)}
        return encode({**self._head(), **ended, "content": content, "usage": self._usage(self.tokens())})

    def _head(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _usage(self, output: int) -> dict[str, object]:
        return {"input_tokens": len(self.ask.prompts[0].ids), "output_tokens": output}

    def _delta(self, delta: dict[str, object]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks, "delta": delta})

    def _enter(self, kind: str, block: dict[str, object]) -> list[bytes]:
        if self._block == kind:
            return []
        events = self._leave()
        self._block = kind
        return [*events, _event("content_block_start", {"index": self._blocks, "content_block": block})]

    def _leave(self) -> list[bytes]:
        if self._block is None:
            return []
        event = _event("content_block_stop", {"index": self._blocks})
        self._block = None
        self._blocks += 1
        return [event]

    def _reason(self, choice: Choice) -> str:
        if choice.finish == "length":
            return "max_tokens"
        if self._reader.called:
            return "tool_use"
        return "stop_sequence" if isinstance(choice.stop_reason, str) else "end_turn"


def _sequence(choice: Choice) -> str | None:
    return choice.stop_reason if isinstance(choice.stop_reason, str) else None


def _event(kind: str, body: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **body}))
