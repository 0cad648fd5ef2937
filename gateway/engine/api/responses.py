"""/v1/responses: OpenAI's responses, whole and in typed events, as vLLM gives them."""

from __future__ import annotations

from uuid import uuid4

from gateway.engine.api.ask import Ask, Prompt, bias_of, limits_of, refuse_overlong, render, sampling_of, seed_of
from gateway.engine.api.chat import content_text
from gateway.engine.api.fields import Fields
from gateway.engine.api.refusal import Refusal
from gateway.engine.api.shape import Choice, Service, Shape, encode
from gateway.engine.api.tools import CallReader, Tool, form_of
from gateway.engine.sequence import Emission
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import Message


def conversation_of(fields: Fields) -> tuple[Message, ...]:
    """Return the conversation: instructions, then the input text or its items."""
    found = [Message("system", fields.text("instructions") or "")] if "instructions" in fields else []
    value = fields.body.get("input")
    if value is None:
        raise fields.missing("input")
    if isinstance(value, str):
        return (*found, Message("user", value))
    for item in fields.objects("input"):
        kind = item.text("type", "message")
        if kind == "function_call_output":
            found.append(Message("tool", content_text(item, "output")))
        elif kind == "function_call":
            found.append(Message("assistant", item.text("arguments") or ""))
        else:
            found.append(Message(item.text("role") or "user", content_text(item)))
    return tuple(found)


def parse(fields: Fields, settings: EngineSettings) -> Ask:
    """Return what a responses request asks for."""
    if "previous_response_id" in fields:  # nothing is stored, as with vLLM unless it is told to
        missing = fields.text("previous_response_id")
        raise Refusal(f"Response with id '{missing}' not found.", status=404, kind="invalid_request_error")
    conversation = conversation_of(fields)
    if not conversation:
        raise fields.wrong("input", "expected at least one item")
    tools: tuple[Tool, ...] = tuple(tool.body for tool in fields.objects("tools") if tool.text("type") == "function")
    choice = fields.body.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    shape = {"tool_choice": choice if tools else None, "response_format": fields.inner("text").body.get("format")}
    refuse_overlong(sum(len(message.text) for message in conversation), settings)
    prompt = Prompt(conversation, render(conversation, tools))
    return Ask(
        prompts=(prompt,),
        sampling=sampling_of(fields, settings),
        limits=limits_of(fields, len(prompt.ids), settings, "max_output_tokens"),
        bias=bias_of(fields),
        seed=seed_of(fields),
        stream=fields.flag("stream"),
        form=form_of(Fields(shape), tools, conversation),
    )


class ResponsesShape(Shape):
    """A response, whole and as the events of its making."""

    prefix = "resp_"

    def __init__(self, ask: Ask, service: Service, request_id: str | None = None) -> None:
        super().__init__(ask, service, request_id)
        self._reader = CallReader(ask.form)
        self._item = ""  # the kind of the output item that is open
        self._item_id = ""
        self._shown = ""
        self._output: list[dict[str, object]] = []
        self._number = -1

    def opening(self, choice: Choice) -> list[bytes]:
        """Return response.created and response.in_progress."""
        del choice
        response = self._response("in_progress")
        return [self._event(f"response.{kind}", {"response": response}) for kind in ("created", "in_progress")]

    def delta(self, choice: Choice, emission: Emission) -> list[bytes]:
        """Return the delta of one step, between the events that open and close its item."""
        del choice
        text, piece = self._reader.feed(emission.text, last=emission.finish is not None)
        events: list[bytes] = []
        if text:
            if not self._item:
                events += self._open("message", "msg_")
            self._shown += text
            place = {**self._place(), "content_index": 0}
            events.append(self._event("response.output_text.delta", {**place, "delta": text, "logprobs": []}))
        if piece is not None:
            if not self._item:
                events += self._open("function_call", "fc_", piece.start or "")
            self._shown += piece.arguments
            events.append(
                self._event("response.function_call_arguments.delta", {**self._place(), "delta": piece.arguments})
            )
        return events + (self._close() if emission.finish is not None and self._item else [])

    def closing(self) -> list[bytes]:
        """Return response.completed."""
        return [self._event("response.completed", {"response": self._response(self._status())})]

    def whole(self) -> bytes:
        """Return the complete response."""
        text, piece = self._reader.feed(self.choices[0].text, last=True)
        if piece is not None:
            self._open("function_call", "fc_", piece.start or "")
            self._shown = piece.arguments
        else:
            self._open("message", "msg_")
            self._shown = text
        self._close()
        return encode(self._response(self._status()))

    def _open(self, kind: str, prefix: str, name: str = "") -> list[bytes]:
        self._item, self._item_id, self._name = kind, f"{prefix}{uuid4().hex}", name
        added = {"output_index": len(self._output), "item": self._shape_of_item("in_progress")}
        events = [self._event("response.output_item.added", added)]
        if kind == "message":
            part = {**self._place(), "content_index": 0, "part": _part("")}
            events.append(self._event("response.content_part.added", part))
        return events

    def _close(self) -> list[bytes]:
        place = self._place()
        if self._item == "message":
            text = {**place, "content_index": 0}
            events = [
                self._event("response.output_text.done", {**text, "text": self._shown, "logprobs": []}),
                self._event("response.content_part.done", {**text, "part": _part(self._shown)}),
            ]
        else:
            done = {**place, "name": self._name, "arguments": self._shown}
            events = [self._event("response.function_call_arguments.done", done)]
        item = self._shape_of_item("completed")
        events.append(self._event("response.output_item.done", {"output_index": len(self._output), "item": item}))
        self._output.append(item)
        self._item = ""
        return events

    def _place(self) -> dict[str, object]:
        return {"item_id": self._item_id, "output_index": len(self._output)}

    def _shape_of_item(self, status: str) -> dict[str, object]:
        item: dict[str, object] = {"id": self._item_id, "type": self._item, "status": status}
        if self._item == "function_call":
            return {**item, "call_id": self._reader.id, "name": self._name, "arguments": self._shown}
        return {**item, "role": "assistant", "content": [_part(self._shown)] if status == "completed" else []}

    def _status(self) -> str:
        return "incomplete" if self.choices[0].finish == "length" else "completed"

    def _response(self, status: str) -> dict[str, object]:
        usage = {
            "input_tokens": len(self.ask.prompts[0].ids),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.tokens(),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(self.ask.prompts[0].ids) + self.tokens(),
        }
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": None,
            "model": self.model,
            "object": "response",
            "output": self._output,
            "parallel_tool_calls": True,
            "temperature": self.ask.sampling.temperature,
            "tool_choice": "auto",
            "tools": [],
            "top_p": self.ask.sampling.top_p,
            "background": False,
            "max_output_tokens": self.ask.limits.max_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else usage,
            "user": None,
        }

    def _event(self, kind: str, body: dict[str, object]) -> bytes:
        self._number += 1
        value = {"type": kind, "sequence_number": self._number, **body}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(value))


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
