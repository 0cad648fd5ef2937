"""What the OpenAPI document says of bodies that are read by hand, as they are scored as the bytes that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.wire import ENDPOINTS

Schema = Mapping[str, Any]

_MESSAGES: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        },
        "required": ["role", "content"],
    },
}
# One request of any scored endpoint; other fields of theirs are taken too.
REQUEST: Final[Schema] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "messages": _MESSAGES,
        "prompt": {"type": "string"},
        "input": {"anyOf": [{"type": "string"}, _MESSAGES]},
        "temperature": {"type": "number", "minimum": 0},
        "max_tokens": {"type": "integer", "minimum": 1},
        "stream": {"type": "boolean"},
        "tools": {"type": "array", "items": {"type": "object"}},
        "response_format": {"type": "object"},
    },
    "required": ["model"],
    "anyOf": [{"required": [name]} for name in ("messages", "prompt", "input")],
}
BATCH: Final[Schema] = {
    "type": "object",
    "properties": {
        "requests": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "body": REQUEST,
                    "endpoint": {"enum": sorted(set(ENDPOINTS.values()))},
                    "route": {"enum": ["auto", "speculative", "baseline"]},
                },
                "required": ["body"],
            },
        }
    },
    "required": ["requests"],
}


def body_of(schema: Schema) -> dict[str, Any]:
    """Return what an operation's `openapi_extra` must be for a JSON body of this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
