"""What an answer says about itself: token counts and, from engines that offer it, its speculative steps. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int


class Speculation(msgspec.Struct, frozen=True):
    """vLLM's `metrics.speculative_decoding` of one answer: steps with a draft, tokens drafted and accepted."""

    steps: int
    drafted: int
    accepted: int


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Speculative(msgspec.Struct):
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculative | None = None


class _Inner(msgspec.Struct):
    usage: _Counts | None = None
    metrics: _Metrics | None = None
    incomplete_details: Any = None


class _Message(msgspec.Struct):
    """Any of the bodies and events of the four endpoints, as far as they speak of usage."""

    choices: list[msgspec.Raw] | None = None
    usage: _Counts | None = None
    metrics: _Metrics | None = None
    response: _Inner | None = None  # responses: response.completed
    message: _Inner | None = None  # messages: message_start
    delta: Any = None  # messages: message_delta has the reason for the end


_decode = msgspec.json.Decoder(_Message).decode


class Told(msgspec.Struct):
    """What one body or event told; `only_usage` marks the extra event that `include_usage` adds.

    `silent_last` says that an event of a typed stream has told its end by an end-of-sequence token: that one is counted, but
    has no text and so no event.
    """

    usage: Usage | None = None
    speculation: Speculation | None = None
    only_usage: bool = False
    silent_last: bool = False


def read(data: bytes, before: Usage | None = None) -> Told:
    """Read a JSON body or the data of one event; `before` is what earlier events told. Unreadable data tells nothing."""
    try:
        return _told(_decode(data), before)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Told()


def read_whole(body: bytes) -> Told | None:
    """Read a body that says it is JSON; None where it is none, as half of one is. What it says in other types tells nothing."""
    try:
        return _told(_decode(body), None)
    except RecursionError:  # deep, not broken
        return Told()
    except msgspec.ValidationError:  # of other types up to here, and not looked at from here on
        return Told() if _is_json(body) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_json(body: bytes) -> bool:
    try:
        _scan(body)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        return False
    return True


_scan = msgspec.json.Decoder(msgspec.Raw).decode


def _told(message: _Message, before: Usage | None) -> Told:
    inner = message.response or message.message
    counts = message.usage or (inner.usage if inner else None)
    metrics = message.metrics or (inner.metrics if inner else None)
    told = Told()
    if counts is not None:
        told.usage = Usage(
            _first(counts.prompt_tokens, counts.input_tokens, before.prompt_tokens if before else 0),
            _first(counts.completion_tokens, counts.output_tokens, before.completion_tokens if before else 0),
        )
        told.only_usage = message.choices == []
        told.silent_last = (message.response is not None and message.response.incomplete_details is None) or (
            isinstance(message.delta, dict) and message.delta.get("stop_reason") == "end_turn"
        )
    if metrics is not None and metrics.speculative_decoding is not None:
        spec = metrics.speculative_decoding
        told.speculation = Speculation(spec.num_spec_steps, spec.num_draft_tokens, spec.num_accepted_draft_tokens)
    return told


def _first(one: int | None, other: int | None, before: int) -> int:
    return one if one is not None else other if other is not None else before
