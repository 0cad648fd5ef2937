"""Reading a request's JSON field by field, with vLLM's words for what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.engine.api.refusal import Refusal, invalid


def decode(body: bytes) -> dict[str, object]:
    """Return the JSON object in `body`; raises Refusal when it is none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("json_invalid", (), f"JSON decode error: {error}", {}) from None
    if not isinstance(found, dict):
        raise invalid("model_attributes_type", (), "Input should be a valid dictionary", found)
    return found


class Fields:
    """Typed access to one JSON object; null counts as absent, as it does in vLLM's request models."""

    def __init__(self, body: Mapping[str, object], *place: str | int) -> None:
        self.body = body
        self._place = place

    def __contains__(self, name: str) -> bool:
        return self.body.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid("string_type", (*self._place, name), "Input should be a valid string", value)
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, False when absent."""
        value = self.body.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise invalid("bool_type", (*self._place, name), "Input should be a valid boolean", value)
        return value

    def integer(self, name: str, default: int, *, low: int | None = None, high: int | None = None) -> int:
        """Return an integer in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid("int_type", (*self._place, name), "Input should be a valid integer", value)
        self._bound(name, value, low, high)
        return value

    def number(self, name: str, default: float, *, low: float | None = None, high: float | None = None) -> float:
        """Return a finite number in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise invalid("float_type", (*self._place, name), "Input should be a valid number", value)
        self._bound(name, value, low, high)
        return float(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple."""
        value = self.body.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise invalid("string_type", (*self._place, name), "Input should be a valid string or list of strings", value)

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        value = self.body.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise invalid("list_type", (*self._place, name), "Input should be a valid list", value)
        found = []
        for index, one in enumerate(value):
            if not isinstance(one, dict):
                raise invalid("dict_type", (*self._place, name, index), "Input should be a valid dictionary", one)
            found.append(Fields(one, *self._place, name, index))
        return found

    def inner(self, name: str) -> Fields:
        """Return an object, empty when absent."""
        value = self.body.get(name)
        if value is None:
            return Fields({}, *self._place, name)
        if not isinstance(value, dict):
            raise invalid("dict_type", (*self._place, name), "Input should be a valid dictionary", value)
        return Fields(value, *self._place, name)

    def missing(self, name: str) -> Refusal:
        """Return the error for a required field that is absent."""
        return invalid("missing", (*self._place, name), "Field required", dict(self.body))

    def wrong(self, name: str, message: str) -> Refusal:
        """Return the error for a field whose value makes no sense."""
        return invalid("value_error", (*self._place, name), f"Value error, {message}", self.body.get(name))

    def _bound(self, name: str, value: float, low: float | None, high: float | None) -> None:
        if low is not None and not value >= low:
            message = f"{name} must be at least {low}, got {value}."
        elif high is not None and not value <= high:
            message = f"{name} must be at most {high}, got {value}."
        else:
            return
        raise Refusal(message, param=name)
