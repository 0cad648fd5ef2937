"""Requests on the wire: parsed once and only as far as needed, the client's bytes kept. No I/O, no clock.

Rules of this module:
 1. What the gateway does not understand is forwarded as it came; nothing is ever re-dumped.
 2. What it must change (`model`, `stream_options.include_usage`) is spliced into the bytes where the parser found it.
 3. What it does understand is checked by type; a wrong one is an error that names the field. Ranges are the engine's to judge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from classifier.scorer import View
from gateway import splice
from gateway.errors import BadRequest

Endpoint = Literal["chat", "completions", "responses", "messages"]
ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
TARGETS: dict[str, bytes] = {endpoint: path.encode() for path, endpoint in ENDPOINTS.items()}
_Number = float | int | None
_MEDIA = frozenset({"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "document"})


class _Request(msgspec.Struct, kw_only=True):
    """The fields of any of the four endpoints that decide something; all others are skipped by the parser."""

    model: str
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    prompt_embeds: Any = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    max_tokens: _Number = None
    max_completion_tokens: _Number = None
    max_output_tokens: _Number = None
    temperature: _Number = None
    top_p: _Number = None
    min_p: _Number = None
    top_k: _Number = None
    n: _Number = None
    best_of: _Number = None
    use_beam_search: bool | None = None
    logit_bias: dict[str, Any] | None = None
    logprobs: bool | _Number = None
    top_logprobs: _Number = None
    prompt_logprobs: _Number = None
    presence_penalty: _Number = None
    frequency_penalty: _Number = None
    repetition_penalty: _Number = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None


_decode = msgspec.json.Decoder(_Request).decode
_PATH = re.compile(r" - at `\$\.?(.*)`$")


class Call(msgspec.Struct, kw_only=True):
    """A client's request: the original bytes, and the few facts that scoring and routing need.

    `max_tokens` is the limit the client set; `features` are the abilities it asks of an engine, judged by values.
    """

    endpoint: Endpoint
    body: bytes
    model: str
    stream: bool
    wants_usage: bool
    features: frozenset[str]
    temperature: float | None
    max_tokens: int | None
    view: View
    has_tools: bool
    conversation: str

    @property
    def adds_usage(self) -> bool:
        """Whether a usage event is asked for on the client's behalf, to be taken out of the reply again."""
        return self.stream and not self.wants_usage and self.endpoint in ("chat", "completions")

    def body_for(self, served_model: str) -> bytes:
        """Return the bytes for an engine that serves the model under `served_model`."""
        if served_model == self.model and not self.adds_usage:
            return self.body
        model = served_model if served_model != self.model else None
        return splice.rewrite(self.body, model=model, usage="ask" if self.adds_usage else "leave")


def parse(body: bytes, endpoint: Endpoint, *, viewed: Literal["whole", "by size"] = "whole") -> Call:
    """Read a request body; a call that will not be scored needs no view of its text, only an estimate of its size.

    Raises:
        BadRequest: not JSON, not UTF-8, nested too deeply, or a field of the wrong type; `param` names it.
    """
    request = _read(body)
    parts = _require_prompt(request, endpoint)
    options = bytes(request.stream_options)
    if options and options != b"null" and not options.startswith(b"{"):
        raise _wrong("stream_options", "an object")
    return Call(
        endpoint=endpoint,
        body=body,
        model=request.model,
        stream=bool(request.stream),
        wants_usage=options.startswith(b"{") and splice.asks_for_usage(options),
        features=_features(request, endpoint, parts=parts),
        temperature=None if request.temperature is None else float(min(max(request.temperature, 0), _HOTTEST)),
        max_tokens=_limit(request),
        view=View.of(msgspec.structs.asdict(request), endpoint) if viewed == "whole" else _outline(body, endpoint),
        has_tools=bool(request.tools),
        conversation=_conversation(request.messages if endpoint in ("chat", "messages") else None),
    )


def _outline(body: bytes, endpoint: Endpoint) -> View:
    return View(kind=endpoint, prompt_tokens=len(body) // _BYTES_PER_TOKEN)


_BYTES_PER_TOKEN = 4  # of English; other languages have fewer


def _conversation(messages: list[dict[str, Any]] | None) -> str:
    """Return a fingerprint of a chat's beginning, up to its first user message, which every later turn repeats; "" without."""
    said = ""
    for message in messages[:_BEGINNING] if messages else ():
        role, text = message["role"], message.get("content")
        if type(text) is not str:
            text = _first_text(text)
        size = len(text)
        if size > _HASHED:
            text = text[:_HALF] + text[-_HALF:]
        said = f"{said}{role}\0{size}\0{text}\0"
        if role == "user":
            return hashlib.blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()
    return ""


def _first_text(parts: Any) -> str:
    """Return the text that content in parts begins with; "" where it begins with anything else."""
    first = parts[0] if type(parts) is list and parts else None
    text = first.get("text") if type(first) is dict else None
    return text if type(text) is str else ""


_BEGINNING = 4  # messages among which the first user message is looked for
_HASHED = 512  # characters of a message, at both ends of it, that with its length tell conversations apart
_HALF = _HASHED // 2


def _read(body: bytes) -> _Request:
    try:
        if not body.isascii():
            body.decode()
        return _decode(body)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {error.start}).", code="invalid_utf8") from None
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        param = found.group(1) if found else None
        if param is None and "required field" in text:
            param = text.split("`")[1]
        where = f"'{param}'" if param else "the request body"
        raise BadRequest(
            f"Invalid value for {where}: {_PATH.sub('', text)}.", param=param, code="invalid_type"
        ) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"The request body could not be parsed as JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.", code="invalid_json") from None


_PROMPTS = {"completions": "prompt", "responses": "input"}


def _require_prompt(request: _Request, endpoint: Endpoint) -> bool:
    """Check the one field that every call of this endpoint must have, and the shape that scoring relies on.

    Returns whether some of it may come in parts, which may be media.
    """
    if not request.model:
        raise BadRequest("'model' must not be empty.", param="model", code="invalid_value")
    field = _PROMPTS.get(endpoint, "messages")
    value = getattr(request, field)
    if value is None and not (field == "prompt" and request.prompt_embeds):
        raise BadRequest(f"Missing required parameter: '{field}'.", param=field, code="missing_required_parameter")
    if field != "messages":
        return True
    if not value:
        raise BadRequest("'messages' must hold at least one message.", param="messages", code="empty_array")
    return _require_messages(value)


def _require_messages(messages: Sequence[dict[str, Any]]) -> bool:
    parts = False
    for index, message in enumerate(messages):
        content = message.get("content")
        if type(message.get("role")) is not str:
            raise _wrong(f"messages[{index}].role", "a string")
        if type(content) is str or content is None:
            continue
        if type(content) is not list:
            raise _wrong(f"messages[{index}].content", "a string or an array")
        parts = True
        for place, part in enumerate(content):
            if type(part) is not dict and type(part) is not str:
                raise _wrong(f"messages[{index}].content[{place}]", "an object")
    return parts


def _wrong(where: str, expected: str) -> BadRequest:
    return BadRequest(f"Invalid value for '{where}': expected {expected}.", param=where, code="invalid_type")


def _limit(request: _Request) -> int | None:
    for value in (request.max_completion_tokens, request.max_tokens, request.max_output_tokens):
        if value is not None:
            return int(min(max(value, 0), 2**31))
    return None


_HOTTEST = 1e6  # a temperature that no engine takes; larger integers may not fit a float

# What few requests have; where all are absent, only sampling and media are left to look at.
_RARE = (
    "min_p logit_bias tool_choice response_format text output_config presence_penalty frequency_penalty repetition_penalty"
    " logprobs top_logprobs prompt_logprobs n best_of use_beam_search guided_json guided_regex guided_choice guided_grammar"
    " structured_outputs"
).split()
_rare = attrgetter(*_RARE)
_NOTHING_RARE = (None,) * len(_RARE)
_SAMPLING, _GREEDY = frozenset({"sampling"}), frozenset[str]()


def _features(request: _Request, endpoint: Endpoint, *, parts: bool) -> frozenset[str]:
    """Name the abilities the call needs. `min_p: 0`, `n: 1` and the like ask for nothing; an absent temperature samples."""
    samples = request.temperature is None or request.temperature > 0
    media = parts and _has_media(request.messages or request.input)
    if not media and _rare(request) == _NOTHING_RARE:
        return _SAMPLING if samples else _GREEDY
    asked = {
        "sampling": samples,
        "min_p": bool(request.min_p and request.min_p > 0),
        "logit_bias": bool(request.logit_bias),
        "structured_output": _structured(request),
        "tool_choice": _forces_tool(request.tool_choice),
        "penalties": bool(request.presence_penalty or request.frequency_penalty)
        or request.repetition_penalty not in (None, 0, 1),
        "logprobs": _wants_logprobs(request, endpoint),
        "n": (request.n or 1) > 1 or (request.best_of or 1) > 1 or bool(request.use_beam_search),
        "images": media,
    }
    return frozenset(name for name, needed in asked.items() if needed)


def _structured(request: _Request) -> bool:
    if any((request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar)):
        return True
    if request.structured_outputs:
        return True
    form = request.response_format or (request.text or request.output_config or {}).get("format")
    return isinstance(form, dict) and form.get("type", "text") != "text"


def _forces_tool(choice: str | dict[str, Any] | None) -> bool:
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice in ("required", "any")


def _wants_logprobs(request: _Request, endpoint: Endpoint) -> bool:
    if request.prompt_logprobs is not None or request.top_logprobs:
        return True
    if endpoint == "completions":  # here it is a number, and 0 still returns the sampled token's
        return request.logprobs is not None and request.logprobs is not False
    return bool(request.logprobs)


def _has_media(messages: str | Sequence[Any] | None) -> bool:
    if not messages or isinstance(messages, str):
        return False
    for message in messages:
        parts = message.get("content") if type(message) is dict else None
        if type(parts) is list:
            for part in parts:
                if isinstance(part, dict) and part.get("type") in _MEDIA:
                    return True
    return False
