"""What an answer said, put together from its body or its events, so that two answers can be compared. No I/O."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from typing import Any, Final

import msgspec

from gateway import sse

_ENDPOINTS: Final = {
    "chat/completions": "chat",
    "completions": "completions",
    "responses": "responses",
    "messages": "messages",
}
_MESSAGE: Final = 200  # characters of an error's text that are kept


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Said(msgspec.Struct):
    """A chat message, or a piece of one."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []


_completion = msgspec.json.Decoder(_Completion).decode


def endpoint_of(path: str) -> str:
    """Return the kind of endpoint that a path is, in the words of `gateway.sse`; "other" for those without tokens."""
    return _ENDPOINTS.get(path.split("?", maxsplit=1)[0].removeprefix("/v1/").strip("/"), "other")


class Answer:
    """Gathers what one answer says.

    Attributes:
        finish: why it ended, as the engine says.
        error: what the engine's own error event said, or None.
    """

    __slots__ = ("_calls", "_endpoint", "_kinds", "_parts", "error", "finish")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._parts: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        self._calls: dict[tuple[int, int], tuple[list[str], list[str]]] = {}
        self.finish: str | None = None
        self.error: str | None = None

    def events(self, data: bytes) -> None:
        """Take whole events of a stream.

        Raises:
            ValueError: an event holds no JSON of the endpoint's shape.
        """
        for event in sse.events(data):
            found = sse.data_of(event)
            if not found or found == b"[DONE]":
                continue
            if sse.fails(event):
                self.error = message_of(found)
            elif self._endpoint in ("chat", "completions"):
                self._completion(found)
            else:
                self._typed(_object(found))

    def body(self, data: bytes) -> None:
        """Take an answer in one piece.

        Raises:
            ValueError: it holds no JSON of the endpoint's shape.
        """
        if self._endpoint in ("chat", "completions"):
            self._completion(data)
        elif self._endpoint == "responses":
            self._response(_object(data))
        elif self._endpoint == "messages":
            self._message(_object(data))
        else:
            self._parts[0, "text"].append(data.decode("utf-8", "replace"))

    @property
    def digest(self) -> str:
        """SHA-256 in hex: of the text alone where the answer is nothing else, or of all choices as canonical JSON.

        Arguments of tool calls count by value: order of keys and white space do not.
        """
        choices = sorted({index for index, _ in self._parts} | {index for index, _ in self._calls})
        kinds = {kind for _, kind in self._parts}
        if choices in ([], [0]) and kinds <= {"text"} and not self._calls:
            return sha256("".join(self._parts[0, "text"]).encode("utf-8", "surrogatepass")).hexdigest()
        found = [
            {
                "text": "".join(self._parts[index, "text"]),
                "reasoning": "".join(self._parts[index, "reasoning"]),
                "calls": [_call(*call) for (choice, _), call in sorted(self._calls.items()) if choice == index],
            }
            for index in choices
        ]
        return sha256(msgspec.json.encode(found, order="sorted")).hexdigest()

    def _add(self, choice: int, kind: str, text: str | None) -> None:
        if text:
            self._parts[choice, kind].append(text)

    def _add_call(self, choice: int, index: int, name: str | None, arguments: str | None) -> None:
        names, pieces = self._calls.setdefault((choice, index), ([], []))
        names.append(name or "")
        pieces.append(arguments or "")

    def _completion(self, data: bytes) -> None:
        for choice in _completion(data).choices:
            self._add(choice.index, "text", choice.text)
            self.finish = choice.finish_reason or self.finish
            said = choice.delta or choice.message
            if said is None:
                continue
            self._add(choice.index, "text", said.content)
            self._add(choice.index, "reasoning", said.reasoning or said.reasoning_content)
            for place, call in enumerate(said.tool_calls or ()):
                function = call.function or _Function()
                index = call.index if choice.delta else place  # whole messages do not number their calls
                self._add_call(choice.index, index, function.name, function.arguments)

    def _typed(self, event: dict[str, Any]) -> None:
        """Take an event of /v1/responses, whose last one repeats all, or of /v1/messages, whose blocks grow."""
        kind, index = str(event.get("type")), int(event.get("index") or 0)
        if kind in ("response.completed", "response.incomplete"):
            self._response(event["response"])
        elif kind == "content_block_start":
            self._block(index, event["content_block"])
        elif kind == "content_block_delta":
            delta = event["delta"]
            self._add(0, "text", delta.get("text"))
            self._add(0, "reasoning", delta.get("thinking"))
            if "partial_json" in delta:
                self._add_call(0, index, None, delta["partial_json"])
        elif kind == "message_delta":
            self.finish = event["delta"].get("stop_reason") or self.finish

    def _response(self, response: dict[str, Any]) -> None:
        self.finish = str(response.get("status"))
        for index, item in enumerate(response.get("output") or ()):
            if item.get("type") == "function_call":
                self._add_call(0, index, item.get("name"), item.get("arguments"))
                continue
            kind = "reasoning" if item.get("type") == "reasoning" else "text"
            for part in item.get("content") or ():
                self._add(0, kind, part.get("text"))

    def _message(self, message: dict[str, Any]) -> None:
        self.finish = message.get("stop_reason")
        for index, block in enumerate(message.get("content") or ()):
            self._block(index, block)

    def _block(self, index: int, block: dict[str, Any]) -> None:
        self._add(0, "text", block.get("text"))
        self._add(0, "reasoning", block.get("thinking"))
        if block.get("type") == "tool_use":
            given = block.get("input")
            self._add_call(0, index, block.get("name"), msgspec.json.encode(given).decode() if given else None)


def message_of(body: bytes) -> str:
    """Return what an error's body says, shortened: OpenAI's message, or the text as it is."""
    try:
        found: Any = msgspec.json.decode(body)
        error = found.get("error", found)
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, AttributeError, RecursionError):
        text = body.decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…"


def _call(names: list[str], pieces: list[str]) -> dict[str, Any]:
    text = "".join(pieces)
    try:
        return {"name": "".join(names), "arguments": msgspec.json.decode(text) if text else {}}
    except (ValueError, RecursionError):
        return {"name": "".join(names), "arguments": text}


def _object(data: bytes) -> dict[str, Any]:
    return msgspec.json.decode(data, type=dict[str, Any])
