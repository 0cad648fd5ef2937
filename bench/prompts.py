"""Requests to measure with: chat completions of a given size, as bytes ready to send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import cycle
from typing import Final

_SENTENCES: Final = (
    "Summarise the attached notes of the meeting for those who were not there. ",
    "Revenue grew by 12 percent in the second quarter, above all in the north. ",
    "The warehouse in Lyon moves in March; whoever keeps stock there should plan for a week without deliveries. ",
    "Two tickets remain open: the import of old invoices, and the time zone of reports. ",
    "Please keep names and figures exactly as they are, and write no more than five sentences. ",
)


def text(size: int) -> str:
    """Return prose of this many characters."""
    parts: list[str] = []
    length = 0
    for sentence in cycle(_SENTENCES):
        if length >= size:
            break
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)[:size]


def request_body(model: str, prompt_bytes: int, *, stream: bool) -> bytes:
    """Return the body of a chat completion whose prompt has this size."""
    body: dict[str, object] = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are an assistant who answers briefly and in plain words."},
            {"role": "user", "content": text(prompt_bytes)},
        ],
        "temperature": 0.0,
        "max_tokens": 256,
    }
    return json.dumps(body | {"stream": True} if stream else body).encode()


def http_request(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a whole HTTP/1.1 request."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
