"""JSON under a schema, with values taken from the request where they fit: structured output and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from gateway.engine.writing.lexicon import FIRST_NAMES, NOUNS
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.request import Request

Schema = Mapping[str, object]
_DEPTH = 12  # levels of nesting; below them objects and arrays are empty
_VALUES = 2000  # values in one document; beyond them likewise
_ITEMS = 64
_CHARACTERS = 10_000
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_PROPER = re.compile(r"\b[A-Z][a-zA-Z]+(?:\s+[A-Z][a-zA-Z]+)*")
_QUOTED = re.compile(r"[\"“']([^\"”'\n]{1,80})[\"”']")
_FORMATS = {
    "date": "2024-05-17",
    "time": "09:30:00",
    "date-time": "2024-05-17T09:30:00Z",
    "email": "alice@example.com",
    "uri": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}
ANY_OBJECT: Schema = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "summary": {"type": "string"},
        "items": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
    },
}


class Filler:
    """Fills schemas with values; each proper name, quotation and number of the request is used once, in order."""

    def __init__(self, root: Schema, request: Request, pen: Pen) -> None:
        text = f"{request.instruction}\n{request.material}"
        self._root = root
        self._pen = pen
        self._left = _VALUES
        self._numbers = [float(one) for one in _NUMBER.findall(text)]
        names = [one for one in _PROPER.findall(text) if text.find(one) > 0 or " " in one]
        self._texts = [*_QUOTED.findall(text), *names]

    def value(self, schema: Schema, name: str = "", depth: int = 0) -> object:
        """Return a value under `schema`, for the property `name`."""
        schema = self._resolved(schema)
        self._left -= 1
        if "const" in schema:
            return schema["const"]
        options = schema.get("enum")
        if isinstance(options, list) and options:
            return options[self._pen.roll(len(options))]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        if kind == "boolean":
            return self._pen.chance(0.7)
        return None if kind == "null" else self._text(schema, name)

    def _resolved(self, schema: Schema) -> Schema:
        for _ in range(_DEPTH):
            reference = schema.get("$ref")
            union = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(reference, str):
                schema = self._at(reference)
            elif isinstance(union, list) and union and isinstance(union[0], Mapping):
                schema = {**{key: value for key, value in schema.items() if not key.endswith("Of")}, **union[0]}
            else:
                break
        return schema

    def _at(self, reference: str) -> Schema:
        found: object = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def _object(self, schema: Schema, depth: int) -> dict[str, object]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or depth >= _DEPTH or self._left <= 0:
            return {}
        required = schema.get("required")
        wanted = [str(one) for one in required] if isinstance(required, list) else list(properties)
        optional = [] if depth > 2 else [name for name in properties if name not in wanted and self._pen.chance(0.4)]
        names = [name for name in properties if name in wanted or name in optional]
        return {
            name: self.value(properties[name], name, depth + 1)
            for name in names
            if isinstance(properties[name], Mapping)
        }

    def _array(self, schema: Schema, name: str, depth: int) -> list[object]:
        if depth >= _DEPTH or self._left <= 0:
            return []
        items = schema.get("items")
        least = min(_ITEMS, _whole(schema.get("minItems"), 1))
        most = max(least, min(_ITEMS, _whole(schema.get("maxItems"), 3)))
        inner = items if isinstance(items, Mapping) else {"type": "string"}
        return [self.value(inner, name, depth + 1) for _ in range(least + self._pen.roll(most - least + 1))]

    def _number(self, schema: Schema, kind: object) -> float | int:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        least = float(low) + ("exclusiveMinimum" in schema) if isinstance(low, (int, float)) else None
        most = float(high) - ("exclusiveMaximum" in schema) if isinstance(high, (int, float)) else None
        value = self._numbers.pop(0) if self._numbers else float(1 + self._pen.roll(99))
        value = value if least is None or value >= least else least
        value = value if most is None or value <= most else most
        step = schema.get("multipleOf")
        if isinstance(step, (int, float)) and step > 0:
            value = round(value / step) * step
        return round(value) if kind == "integer" else value

    def _text(self, schema: Schema, name: str) -> str:
        form = schema.get("format")
        if isinstance(form, str) and form in _FORMATS:
            return _FORMATS[form]
        text: str = (
            self._texts.pop(0) if self._texts else self._pen.pick(FIRST_NAMES if "name" in name.lower() else NOUNS)
        )
        least = min(_CHARACTERS, _whole(schema.get("minLength"), 0))
        return (text + " " + text * least if len(text) < least else text)[: _whole(schema.get("maxLength"), 200)]


def structured(schema: Schema | None, request: Request, pen: Pen) -> Iterator[str]:
    """Yield one JSON document under `schema`, in pieces."""
    chosen = schema or ANY_OBJECT
    yield from _pieces(json.dumps(Filler(chosen, request, pen).value(chosen), ensure_ascii=False))


def arguments(tool: Schema, request: Request, pen: Pen) -> Iterator[str]:
    """Yield the arguments of a call of `tool`, as JSON."""
    parameters = tool.get("parameters")
    chosen = parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}}
    yield from structured({"type": "object", **chosen}, request, pen)


def call(tool: Schema, request: Request, pen: Pen) -> Iterator[str]:
    """Yield a call of `tool` as Qwen's models write it, for a tool parser to take apart."""
    yield f'<tool_call>\n{{"name": {json.dumps(tool["name"])}, "arguments": '
    yield from arguments(tool, request, pen)
    yield "}\n</tool_call>"


def chosen_tool(tools: Sequence[Schema], request: Request) -> Schema | None:
    """Return the tool whose name and description share most words with the request, None if none shares any."""
    words = set(re.findall(r"[a-z]{3,}", f"{request.instruction} {request.material}".lower()))

    def shared(tool: Schema) -> int:
        told = f"{tool.get('name', '')} {tool.get('description', '')}".lower().replace("_", " ")
        return len(words & (set(re.findall(r"[a-z]{3,}", told)) - _COMMON))

    best = max(tools, key=shared, default=None)
    return best if best is not None and shared(best) > 0 else None


_COMMON = frozenset(
    "the and for with from that this get given based return returns into are can you what how will".split()
)


def _whole(value: object, default: int) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else default


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), 256):
        yield text[start : start + 256]
