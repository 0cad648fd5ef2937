"""Changing a JSON body in place: values are found by the parser and replaced as bytes, all others stay as they came. Pure.

msgspec's `Raw` is a view of the memory it was decoded from, so the difference of two addresses is a value's place in the body.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np


class _Places(msgspec.Struct):
    """Where the values lie that may be spliced: raw views into the body."""

    model: msgspec.Raw
    stream_options: msgspec.Raw = msgspec.Raw()


class _Named(msgspec.Struct):
    model: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: msgspec.Raw = msgspec.Raw()
    continuous_usage_stats: msgspec.Raw = msgspec.Raw()


_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_named = msgspec.json.Decoder(_Named).decode
_places = msgspec.json.Decoder(_Places).decode
_stream_options = msgspec.json.Decoder(_StreamOptions).decode


def rewrite(body: bytes, *, model: str | None, usage: Literal["ask", "leave"]) -> bytes:
    """Return a body with another model's name (None leaves it), and asking for a usage event if it shall."""
    places = _places(body)
    splices: list[tuple[int, int, bytes]] = []
    if model is not None:
        splices.append((*_span(body, places.model), msgspec.json.encode(model)))
    if usage == "ask":
        splices += _usage_splices(body, places.stream_options)
    return _splice(body, splices)


def asks_for_usage(options: bytes) -> bool:
    """Whether the client wants the usage event; 1 and "true" mean so to vLLM's lenient parser, nonsense it will refuse."""
    return bytes(_stream_options(options).include_usage) not in (b"", b"false", b"null")


def named_model(body: bytes) -> str | None:
    """Return the model that any other JSON body names, or None when it names none or is not JSON."""
    try:
        return _named(body).model
    except (msgspec.DecodeError, RecursionError):
        return None


def field_names(body: bytes) -> frozenset[str]:
    """Return the names at the top of a JSON object; none when it is not one."""
    try:
        return frozenset(_any_object(body))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()


def rename_model(body: bytes, served_model: str) -> bytes:
    """Return a body that `named_model` read, with its model's name replaced."""
    return _splice(body, [(*_span(body, _places(body).model), msgspec.json.encode(served_model))])


def _address(buffer: bytes | msgspec.Raw) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def _span(body: bytes, raw: msgspec.Raw) -> tuple[int, int]:
    """Return where a raw value lies in the body it was decoded from: it is a view of the same memory."""
    start = _address(raw) - _address(body)
    return start, start + len(bytes(raw))


def _usage_splices(body: bytes, options: msgspec.Raw) -> list[tuple[int, int, bytes]]:
    """Return each (start, end, replacement) that makes the body ask for one usage event at the end, and for no others.

    Without `include_usage` vLLM ignores `continuous_usage_stats`; with it, every event would carry them.
    """
    value = bytes(options)
    if not value:
        brace = body.index(b"{") + 1
        return [(brace, brace, b'"stream_options":{"include_usage":true},')]
    start, end = _span(body, options)
    if value == b"null":
        return [(start, end, b'{"include_usage":true}')]
    asked = _stream_options(options)
    splices = []
    if bytes(asked.continuous_usage_stats):
        splices.append((*_span(body, asked.continuous_usage_stats), b"false"))
    if bytes(asked.include_usage):
        return [*splices, (*_span(body, asked.include_usage), b"true")]
    comma = b"" if value[1:].lstrip().startswith(b"}") else b","
    return [*splices, (start + 1, start + 1, b'"include_usage":true' + comma)]


def _splice(body: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for start, end, replacement in sorted(splices):
        parts += (body[at:start], replacement)
        at = end
    parts.append(body[at:])
    return b"".join(parts)
