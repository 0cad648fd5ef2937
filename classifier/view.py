"""A request as the scorer reads it: every field bounded, every type checked, nothing raised.

Owns the reading of four request shapes (chat, completions, responses, messages). Knows nothing of models or weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from classifier.conversation import (
    MESSAGE_KEYS,
    SYSTEM_CAP,
    USER_CAP,
    Reading,
    clip,
    conversation,
    ends,
    is_object,
    read,
)

TOOLS_CAP = 1536
SEEN_TOOLS = 32
_MASK = str.maketrans("123456789", "000000000")


def number(value: object) -> float | None:
    """`value` as a finite float, or None for anything else (booleans are no numbers)."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is not int:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _tools(tools: object) -> tuple[Sequence[str], str, int]:
    """Names, a bounded text of names and descriptions, and the number of the tools offered."""
    if type(tools) is not list:
        return (), "", 0
    names: list[str] = []
    reading = Reading(TOOLS_CAP)
    for tool in ends(tools, SEEN_TOOLS):
        if not is_object(tool):
            continue
        inner = tool.get("function")
        spec = inner if is_object(inner) else tool
        name, description = spec.get("name"), spec.get("description")
        if isinstance(name, str):
            names.append(name[:128])
            reading.add(name[:128])
        if isinstance(description, str):
            reading.add(clip(description, 160))
    return tuple(names), reading.text, len(tools)


@lru_cache(maxsize=256)
def _fingerprint(system: str, names: Sequence[str]) -> str:
    """Sixteen hex digits naming a template: digits masked, so that a date in a system prompt does not split it."""
    if not system and not names:
        return ""
    seen = clip(system, SYSTEM_CAP).translate(_MASK) + "\x00" + "\x00".join(names)
    return blake2b(seen.encode("utf-8", "replace"), digest_size=8).hexdigest()


_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
_FORMS = {"json_object": "json", "json_schema": "schema", "structural_tag": "guided"}


def _format(body: Mapping[str, object]) -> str:
    """What form the answer is held to: "", "json" (any object), "schema" or "guided"."""
    wanted = body.get("response_format")
    if wanted is None and is_object(text := body.get("text")):
        wanted = text.get("format")
    if is_object(wanted):
        kind = wanted.get("type")
        return _FORMS.get(kind, "") if isinstance(kind, str) else ""
    return "guided" if any(map(body.get, _GUIDED)) else ""


def _forced(choice: object) -> bool:
    """Whether `tool_choice` makes the model call a tool."""
    if isinstance(choice, str):
        return choice in ("required", "any")
    return is_object(choice) and choice.get("type") in ("function", "tool", "any")


_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def _limit(body: Mapping[str, object]) -> float | None:
    for name in _LIMITS:
        if (told := body.get(name)) is not None and (value := number(told)) is not None and value > 0:
            return value
    return None


def _predicted(prediction: object) -> int:
    """Characters of the answer that the client expects."""
    if prediction is None:
        return 0
    reading = Reading(USER_CAP)
    read(prediction, reading)
    return reading.chars


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else int(isinstance(value, str))


class View(msgspec.Struct, kw_only=True, frozen=True):
    """A request as the scorer reads it; strings are clipped to the caps above, counts are those of the whole request.

    `template` is a fingerprint (16 hex digits) of the system prompt and the tool names, "" when there is neither.
    `prompt_tokens` is a rough estimate: four ASCII or one and a half other characters a token.
    """

    kind: str
    user: str = ""
    system: str = ""
    earlier: str = ""
    prefill: str = ""
    tools: str = ""
    tool_names: int = 0
    tool_forced: bool = False
    tool_results: int = 0
    turns: int = 0
    images: int = 0
    audio: int = 0
    files: int = 0
    form: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: float | None = None
    n: float = 1.0
    stop: int = 0
    predicted: int = 0
    user_chars: int = 0
    template: str = ""
    prompt_tokens: int = 0

    @classmethod
    def of(cls, body: Mapping[str, object], kind: str = "chat") -> View:
        """Read a decoded request body; total on any JSON, wrong types read as absent.

        `kind` is the endpoint: chat, completions, responses or messages; another one is read as chat.
        """
        if not is_object(body):
            body = {}
        user, system, earlier, prefill, chars, results, turns, images, audio, files, tokens = conversation(body, kind)
        names, tools, count = _tools(body.get("tools"))
        return cls(
            kind=kind if kind in MESSAGE_KEYS else "chat",
            user=user,
            system=system,
            earlier=earlier,
            prefill=prefill,
            tools=tools,
            tool_names=count,
            tool_forced=_forced(body.get("tool_choice")),
            tool_results=results,
            turns=turns,
            images=images,
            audio=audio,
            files=files,
            form=_format(body),
            temperature=number(body.get("temperature")),
            top_p=number(body.get("top_p")),
            max_tokens=_limit(body),
            n=number(body.get("n")) or 1.0,
            stop=_length(body.get("stop") or body.get("stop_sequences")),
            predicted=_predicted(body.get("prediction")),
            user_chars=chars,
            template=_fingerprint(system, names),
            prompt_tokens=tokens + len(tools) // 3,
        )
