"""A request as the scorer reads it: every field bounded, every type checked, nothing raised.

Owns the reading of four request shapes (chat, completions, responses, messages). Knows nothing of models or weights.
Two rules: whatever JSON arrives, a view comes out; and the cost does not grow with the request past the caps below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

# An instruction stands at the head or at the tail of a long prompt and material between them, so both ends are read.
# 4 KiB covers 99 % of the reference prompts whole and keeps the scorer's cost under a quarter of a millisecond.
USER_CAP = 4096
SYSTEM_CAP = 1536
EARLIER_CAP = 1024
TOOLS_CAP = 1536
SEEN_MESSAGES = 24  # at either end of the list
SEEN_PARTS = 16  # at either end of one message's content
SEEN_IN_ALL = 512  # parts and lists of one reading, however they are nested; a thousand cost half a millisecond
SEEN_TOOLS = 32
DEPTH = 3  # content inside tool results inside content
_MASK = str.maketrans("123456789", "000000000")
_IMAGE = frozenset({"image_url", "image", "input_image"})
_AUDIO = frozenset({"input_audio", "audio"})
_FILE = frozenset({"file", "input_file", "document"})


def clip(text: str, cap: int) -> str:
    """The head and the tail of `text`, together at most `cap` characters, split two to one."""
    if len(text) <= cap:
        return text
    tail = cap // 3
    return f"{text[: cap - tail - 1]}\n{text[len(text) - tail :]}"


def number(value: object) -> float | None:
    """`value` as a finite float, or None for anything else (booleans are no numbers)."""
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    if value.__class__ is not int:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


class _Reading:
    """Text gathered from some content, with what was met on the way; `room` is in characters, `patience` in parts."""

    __slots__ = ("audio", "chars", "files", "images", "patience", "room", "texts", "token_ids")

    def __init__(self, room: int) -> None:
        self.texts: list[str] = []
        self.room = room
        self.patience = SEEN_IN_ALL
        self.chars = self.images = self.audio = self.files = self.token_ids = 0

    def add(self, text: str) -> None:
        """Take in `text`, counting all of it and keeping at most the room that is left."""
        size = len(text)
        self.chars += size
        if size and self.room > 0:
            if size > self.room:
                text, size = clip(text, self.room), self.room
            self.texts.append(text)
            self.room -= size

    @property
    def text(self) -> str:
        """What was kept, pieces joined by newlines."""
        texts = self.texts
        return texts[0] if len(texts) == 1 else "\n".join(texts)


_NOTHING = _Reading(0)  # nobody adds to it


def _ends(items: Sequence[object], count: int) -> Sequence[object]:
    """The first and the last `count` items, all of them when there are no more than that."""
    return items if len(items) <= 2 * count else [*items[:count], *items[-count:]]


def _read(content: object, into: _Reading, depth: int = DEPTH) -> None:
    """Gather the text of a message's content: a string, a part, or a list of either, nested at most `depth` times."""
    if content.__class__ is str:
        into.add(content)
    elif isinstance(content, str):
        into.add(str(content))
    elif isinstance(content, Mapping):
        _read_part(content, into, depth)
    elif isinstance(content, list) and depth > 0:
        if content and content[0].__class__ is int:
            into.token_ids += len(content)
            return
        for part in _ends(content, SEEN_PARTS):
            if into.patience > 0:
                into.patience -= 1
                _read(part, into, depth - 1)


def _read_part(part: Mapping[str, object], into: _Reading, depth: int) -> None:
    kind = part.get("type")
    text = part.get("text")
    if isinstance(text, str):
        into.add(text)
    elif not isinstance(kind, str):
        _read(part.get("content"), into, depth - 1) if depth > 0 else None
    elif kind in _IMAGE:
        into.images += 1
    elif kind in _AUDIO:
        into.audio += 1
    elif kind in _FILE:
        into.files += 1
    elif depth > 0:
        for key in ("content", "output", "arguments"):
            if key in part and into.patience > 0:
                into.patience -= 1
                _read(part[key], into, depth - 1)


def _tools(tools: object) -> tuple[Sequence[str], str, int]:
    """Names, a bounded text of names and descriptions, and the number of the tools offered."""
    if tools.__class__ is not list:
        return (), "", 0
    names: list[str] = []
    reading = _Reading(TOOLS_CAP)
    for tool in _ends(tools, SEEN_TOOLS):
        if not isinstance(tool, Mapping):
            continue
        inner = tool.get("function")
        spec = inner if isinstance(inner, Mapping) else tool
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
    if wanted is None and isinstance(text := body.get("text"), Mapping):
        wanted = text.get("format")
    if wanted is not None and isinstance(wanted, Mapping):
        kind = wanted.get("type")
        return _FORMS.get(kind, "") if isinstance(kind, str) else ""
    return "guided" if any(map(body.get, _GUIDED)) else ""


def _forced(choice: object) -> bool:
    """Whether `tool_choice` makes the model call a tool."""
    if isinstance(choice, str):
        return choice in ("required", "any")
    return isinstance(choice, Mapping) and choice.get("type") in ("function", "tool", "any")


_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def _limit(body: Mapping[str, object]) -> float | None:
    for told in map(body.get, _LIMITS):
        if told is not None and (value := number(told)) is not None and value > 0:
            return value
    return None


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else int(isinstance(value, str))


@dataclass(
    slots=True, kw_only=True, unsafe_hash=True
)  # nobody assigns to it; `frozen` would treble what making one costs
class View:
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
        if not isinstance(body, Mapping):
            body = {}
        said = _Conversation.of(body, kind)
        names, tools, count = _tools(body.get("tools"))
        prediction = _NOTHING
        if body.get("prediction") is not None:
            prediction = _Reading(USER_CAP)
            _read(body["prediction"], prediction)
        user, earlier = said.user, said.earlier
        system = said.system.text
        return cls(
            kind=kind if kind in _MESSAGE_KEYS else "chat",
            user=user.text,
            system=system,
            earlier=earlier.text,
            prefill=said.prefill.text,
            tools=tools,
            tool_names=count,
            tool_forced=_forced(body.get("tool_choice")),
            tool_results=said.tool_results,
            turns=said.turns,
            images=user.images + earlier.images,
            audio=user.audio + earlier.audio,
            files=user.files + earlier.files,
            form=_format(body),
            temperature=number(body.get("temperature")),
            top_p=number(body.get("top_p")),
            max_tokens=_limit(body),
            n=number(body.get("n")) or 1.0,
            stop=_length(body.get("stop") or body.get("stop_sequences")),
            predicted=prediction.chars,
            user_chars=user.chars,
            template=_fingerprint(system, names),
            prompt_tokens=said.tokens() + len(tools) // 3,
        )


def _has_messages(items: Sequence[object]) -> bool:
    """Whether one of the first items is an object, as messages are."""
    return any(item.__class__ is dict or isinstance(item, Mapping) for item in items[:4])


_MESSAGE_KEYS = {"chat": "messages", "messages": "messages", "responses": "input", "completions": "prompt"}
_SYSTEM = frozenset({"system", "developer"})
_RESULT = frozenset({"tool", "function"})


class _Conversation:
    """Who said what: the system prompt, the last user turn, what came between, and a prefilled beginning of the answer."""

    __slots__ = ("earlier", "prefill", "system", "tool_results", "turns", "user")

    def __init__(self) -> None:
        self.system = _Reading(SYSTEM_CAP)
        self.user = _Reading(USER_CAP)
        self.earlier = self.prefill = _NOTHING
        self.tool_results = 0
        self.turns = 0

    @classmethod
    def of(cls, body: Mapping[str, object], kind: str) -> _Conversation:
        """Sort the request's messages; a bare string or a list without roles is one user turn."""
        said = cls()
        for key in ("system", "instructions"):
            if body.get(key) is not None:
                _read(body[key], said.system)
        items = body.get(_MESSAGE_KEYS.get(kind, "messages"))
        if isinstance(items, list) and _has_messages(items):
            said._sort(_ends(items, SEEN_MESSAGES))
            said.turns = len(items)
        else:
            _read(items, said.user)
            said.turns = int(items is not None)
        return said

    def _sort(self, items: Sequence[object]) -> None:
        """Walk backwards, so that the newest turns have the first claim on the room there is."""
        found = False
        for item in reversed(items):
            if item.__class__ is not dict and not isinstance(item, Mapping):
                continue
            role, kind = item.get("role"), item.get("type")
            content = item.get("content", item)
            if role.__class__ is not str:
                role = str(role) if isinstance(role, str) else None if role is None else ""
            if role in _SYSTEM:
                _read(content, self.system)
            elif kind == "function_call_output" or role in _RESULT:
                self.tool_results += not found
                _read(content, self._before())
            elif not found and (role == "user" or (role is None and kind not in ("function_call", "reasoning"))):
                _read(content, self.user)
                found = bool(self.user.chars or self.user.token_ids)
            elif not found and role == "assistant":
                if self.prefill is _NOTHING:
                    self.prefill = _Reading(EARLIER_CAP)
                _read(content, self.prefill)
            else:
                _read(content, self._before())

    def _before(self) -> _Reading:
        """Where what came between system prompt and last turn goes; most requests have none."""
        if self.earlier is _NOTHING:
            self.earlier = _Reading(EARLIER_CAP)
        return self.earlier

    def tokens(self) -> int:
        """A rough count of prompt tokens over what was seen."""
        total = 0.0
        for part in (self.system, self.user, self.earlier, self.prefill):
            if part is _NOTHING:
                continue
            a_token = 4.0
            if part.texts and not (sample := part.texts[0][:256]).isascii():
                a_token -= 2.5 * min(1.0, (len(sample.encode("utf-8", "replace")) - len(sample)) / len(sample))
            total += part.chars / a_token + part.token_ids
        return int(total) + 4 * min(self.turns, 2 * SEEN_MESSAGES)
