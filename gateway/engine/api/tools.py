"""Tools: which call a request asks for, and taking the call out of the text that the target writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from gateway.engine.api.fields import Fields
from gateway.engine.api.refusal import Refusal
from gateway.engine.writing import Form, Message

_ARGUMENTS = '"arguments": '
_CALL = "<tool_call>"
_END = "}\n</tool_call>"

Tool = Mapping[str, object]


def tools_of(fields: Fields) -> tuple[Tool, ...]:
    """Return the functions a request offers, each with name, description and parameters."""
    found = []
    for tool in fields.objects("tools"):
        function = tool.inner("function")
        if function.text("name") is None:
            raise function.missing("name")
        found.append(function.body)
    return tuple(found)


def form_of(fields: Fields, tools: tuple[Tool, ...], messages: tuple[Message, ...]) -> Form:
    """Return the form that `tools`, `tool_choice` and `response_format` ask the answer to have."""
    choice = fields.body.get("tool_choice")
    if isinstance(choice, dict):
        name = Fields(choice, "tool_choice").inner("function").text("name")
        named = tuple(tool for tool in tools if tool["name"] == name)
        if not named:
            raise Refusal(
                f"The tool specified in `tool_choice` does not match any of the specified `tools`: {name}",
                param="tool_choice",
            )
        return Form(kind="arguments", tools=named)
    if choice is not None and choice not in ("auto", "none", "required"):
        raise Refusal(f"Invalid value for `tool_choice`: {choice}!", param="tool_choice")
    if choice == "required":
        if not tools:
            raise Refusal("When using `tool_choice`, `tools` must be set.", param="tool_choice")
        return Form(kind="call", tools=tools)
    if tools and choice != "none" and messages[-1].role != "tool":
        return Form(kind="maybe_call", tools=tools)
    return format_of(fields.inner("response_format"))


def format_of(wanted: Fields) -> Form:
    """Return the form that a `response_format` object asks for."""
    kind = wanted.text("type", "text")
    if kind == "json_object":
        return Form(kind="json")
    if kind == "json_schema":
        inner = wanted.inner("json_schema")
        schema = (inner if "schema" in inner else wanted).inner("schema")
        return Form(kind="json", schema=schema.body)
    if kind != "text":
        raise wanted.wrong("type", "expected 'text', 'json_object' or 'json_schema'")
    return Form()


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call: `start` names the function once, `arguments` continues its JSON."""

    start: str | None
    arguments: str


class CallReader:
    """Takes a tool call out of streamed text; text that is no call passes through."""

    def __init__(self, form: Form) -> None:
        self.id = f"chatcmpl-tool-{uuid4().hex}"
        self.called = False
        self._named = str(form.tools[0]["name"]) if form.kind == "arguments" else None
        self._looking = form.kind in ("call", "maybe_call")
        self._buffer = ""

    def feed(self, text: str, *, last: bool) -> tuple[str, CallDelta | None]:
        """Return the text and the piece of a call that this step shows; both may be empty."""
        if self._named is not None:
            start = None if self.called else self._named
            self.called = True
            return "", CallDelta(start, text)
        if not self._looking:
            return text, None
        self._buffer += text
        if not self.called and not self._buffer.startswith(_CALL[: len(self._buffer)]):
            self._looking, text = False, self._buffer
            return text, None
        if last and not self.called and _ARGUMENTS not in self._buffer:
            return self._buffer, None
        return "", self._piece(last=last)

    def _piece(self, *, last: bool) -> CallDelta | None:
        start = None
        if not self.called:
            head, found, rest = self._buffer.partition(_ARGUMENTS)
            if not found:
                return None
            start = json.loads(head.removeprefix(f"{_CALL}\n").rstrip().rstrip(",") + "}")["name"]
            self.called, self._buffer = True, rest
        if last:
            shown, self._buffer = self._buffer.removesuffix(_END), ""
        else:
            keep = len(self._buffer) - len(_END)
            shown, self._buffer = self._buffer[: max(0, keep)], self._buffer[max(0, keep) :]
        return CallDelta(start, shown) if start is not None or shown else None
