"""Who said what in a request: the system prompt, the last user turn, what came between, a prefilled beginning of the answer.

What stands here is the definition; `classifier.native` does the same for what JSON decoders make. Two rules: whatever JSON
arrives, it is read; and the cost does not grow with the request past the caps below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

try:
    from classifier._native import conversation as compiled
except ImportError:  # no C compiler where the package was installed
    compiled = None  # type: ignore[assignment]

# An instruction stands at the head or at the tail of a long prompt and material between them, so both ends are read.
# 4 KiB covers 99 % of the reference prompts whole and keeps the scorer's cost under a quarter of a millisecond.
USER_CAP = 4096
SYSTEM_CAP = 1536
EARLIER_CAP = 1024
SEEN_MESSAGES = 24  # at either end of the list
SEEN_PARTS = 16  # at either end of one message's content
SEEN_IN_ALL = 512  # parts and lists of one reading, however they are nested; a thousand cost half a millisecond
DEPTH = 3  # content inside tool results inside content
_IMAGE = frozenset({"image_url", "image", "input_image"})
_AUDIO = frozenset({"input_audio", "audio"})
_FILE = frozenset({"file", "input_file", "document"})


def clip(text: str, cap: int) -> str:
    """The head and the tail of `text`, together at most `cap` characters, split two to one."""
    if len(text) <= cap:
        return text
    tail = cap // 3
    return f"{text[: cap - tail - 1]}\n{text[len(text) - tail :]}"


class Reading:
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


def is_object(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether a value is a JSON object; an abstract class is asked of types alone that no decoder makes, as that takes long."""
    kind = type(value)
    return kind is dict or (kind not in _NO_OBJECTS and isinstance(value, Mapping))


_NO_OBJECTS = frozenset({type(None), str, int, float, bool, list})


def ends(items: Sequence[object], count: int) -> Sequence[object]:
    """The first and the last `count` items, all of them when there are no more than that."""
    return items if len(items) <= 2 * count else [*items[:count], *items[-count:]]


def read(content: object, into: Reading, depth: int = DEPTH) -> None:
    """Gather the text of a message's content: a string, a part, or a list of either, nested at most `depth` times."""
    if type(content) is str:
        into.add(content)
    elif isinstance(content, str):
        into.add(str(content))
    elif is_object(content):
        _read_part(content, into, depth)
    elif isinstance(content, list) and depth > 0:
        if content and type(content[0]) is int:
            into.token_ids += len(content)
            return
        for part in ends(content, SEEN_PARTS):
            if into.patience > 0:
                into.patience -= 1
                read(part, into, depth - 1)


def _read_part(part: Mapping[str, object], into: Reading, depth: int) -> None:
    kind = part.get("type")
    text = part.get("text")
    if isinstance(text, str):
        into.add(text)
    elif not isinstance(kind, str):
        read(part.get("content"), into, depth - 1) if depth > 0 else None
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
                read(part[key], into, depth - 1)


def _has_messages(items: Sequence[object]) -> bool:
    """Whether one of the first items is an object, as messages are."""
    return any(is_object(item) for item in items[:4])


MESSAGE_KEYS = {"chat": "messages", "messages": "messages", "responses": "input", "completions": "prompt"}
_SYSTEM = frozenset({"system", "developer"})
_RESULT = frozenset({"tool", "function"})


# The texts of the last user turn, the system prompt, what came between and a prefilled beginning; characters of that turn, tool
# results after it, turns; images, audio and files; tokens.
Said = tuple[str, str, str, str, int, int, int, int, int, int, int]


def conversation(body: Mapping[str, object], kind: str) -> Said:
    """Read a request's messages, its prompt or its input; `kind` is the endpoint, another one is read as chat."""
    key = MESSAGE_KEYS.get(kind, "messages")
    if compiled is not None and type(body) is dict:
        found = compiled(body, key)
        if found is not None:
            return found
    return Conversation.of(body, key).told()


class Conversation:
    """Who said what: the system prompt, the last user turn, what came between, and a prefilled beginning of the answer."""

    __slots__ = ("earlier", "prefill", "system", "tool_results", "turns", "user")

    def __init__(self) -> None:
        self.system = Reading(SYSTEM_CAP)
        self.user = Reading(USER_CAP)
        self.earlier = Reading(EARLIER_CAP)
        self.prefill = Reading(EARLIER_CAP)
        self.tool_results = 0
        self.turns = 0

    @classmethod
    def of(cls, body: Mapping[str, object], key: str) -> Conversation:
        """Sort the request's messages; a bare string or a list without roles is one user turn."""
        said = cls()
        for before in ("system", "instructions"):
            read(body.get(before), said.system)
        items = body.get(key)
        if isinstance(items, list) and _has_messages(items):
            said._sort(ends(items, SEEN_MESSAGES))
            said.turns = len(items)
        else:
            read(items, said.user)
            said.turns = int(items is not None)
        return said

    def _sort(self, items: Sequence[object]) -> None:
        """Walk backwards, so that the newest turns have the first claim on the room there is."""
        found = False
        for item in reversed(items):
            if not is_object(item):
                continue
            role, kind = item.get("role"), item.get("type")
            content = item.get("content", item)
            if type(role) is not str:
                role = str(role) if isinstance(role, str) else None if role is None else ""
            if role in _SYSTEM:
                read(content, self.system)
            elif kind == "function_call_output" or role in _RESULT:
                self.tool_results += not found
                read(content, self.earlier)
            elif not found and (role == "user" or (role is None and kind not in ("function_call", "reasoning"))):
                read(content, self.user)
                found = bool(self.user.chars or self.user.token_ids)
            elif not found and role == "assistant":
                read(content, self.prefill)
            else:
                read(content, self.earlier)

    def told(self) -> Said:
        """Return what a view takes from it."""
        user, earlier = self.user, self.earlier
        return (
            user.text,
            self.system.text,
            earlier.text,
            self.prefill.text,
            user.chars,
            self.tool_results,
            self.turns,
            user.images + earlier.images,
            user.audio + earlier.audio,
            user.files + earlier.files,
            self.tokens(),
        )

    def tokens(self) -> int:
        """A rough count of prompt tokens over what was seen."""
        total = 0.0
        for part in (self.system, self.user, self.earlier, self.prefill):
            a_token = 4.0
            if part.texts and not (sample := part.texts[0][:256]).isascii():
                a_token -= 2.5 * min(1.0, (len(sample.encode("utf-8", "replace")) - len(sample)) / len(sample))
            total += part.chars / a_token + part.token_ids
        return int(total) + 4 * min(self.turns, 2 * SEEN_MESSAGES)
