"""A trace: requests to send, one JSON value per line. Read line by line, and checked before anything is sent. No network.

A line is one of four things, and each line may be another:

| a line | becomes |
|---|---|
| `"text"` | a chat completion with one user message |
| `{"prompt": "text", …}` without a model | the same; the other fields are kept |
| an OpenAI body: `messages` (chat), `input` (responses), `prompt` and `model` (completions) | itself |
| OpenAI's batch format: `{"custom_id", "method", "url", "body"}` | its body at its url |

Beside these, a line may name itself (`custom_id`, `id`), its `category`, its `tenant` and its time (`timestamp`, `at` or
`created`: ISO 8601, or seconds since 1970 or since anything else; numbers over 1e11 are milliseconds). None of them is sent.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Source = Path | Literal["-"]
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
_TIMES: Final = ("timestamp", "at", "created")
_OWN: Final = ("custom_id", "id", "category", "tenant", *_TIMES)  # of the line, never of the body
_MILLISECONDS: Final = 1e11  # as seconds, a number like this lies three thousand years ahead
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"  # a byte order mark, as some editors write it


class TraceError(Exception):
    """A line that cannot be sent; the message names the line and what to do. `line` is its number from 1, 0 for the file."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.line = line


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace, ready to be sent; `at` is seconds since the trace's first timestamp."""

    line: int
    id: str
    path: str
    body: dict[str, Any]
    category: str = ""
    tenant: str = ""
    at: float | None = None


def read(
    source: Source,
    *,
    model: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    on_bad: Callable[[TraceError], None] | None = None,
) -> Iterator[Request]:
    """Read a trace, plain or gzipped, "-" for standard input; blank lines are passed over.

    Args:
        source: the file.
        model: what every body's `model` becomes; None leaves them as they are.
        defaults: fields for bodies that lack them, such as `max_tokens`.
        on_bad: hears of lines that cannot be sent, and reading goes on; without it they are raised.

    Raises:
        TraceError: a line cannot be sent, or the file not be read.
    """
    with opened(source) as lines:
        yield from parse(lines, model=model, defaults=defaults, on_bad=on_bad)


def parse(
    lines: Iterable[bytes],
    *,
    model: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    on_bad: Callable[[TraceError], None] | None = None,
) -> Iterator[Request]:
    """Read lines as `read` reads those of a file."""
    first: float | None = None
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_MARK).strip()
        if not text:
            continue
        try:
            request, time = _request(number, text, model, defaults or {})
        except TraceError as error:
            if on_bad is None:
                raise
            on_bad(error)
            continue
        if time is not None:
            first = time if first is None else first
            request = msgspec.structs.replace(request, at=time - first)
        yield request


@contextmanager
def opened(source: Source) -> Iterator[Iterable[bytes]]:
    """Open a trace's bytes, unpacked.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with ExitStack() as stack:
            plain = sys.stdin.buffer if source == "-" else stack.enter_context(source.open("rb"))
            assert isinstance(plain, io.BufferedReader)
            packed = plain.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            yield stack.enter_context(gzip.open(plain)) if packed else plain
    except (OSError, EOFError, zlib.error) as error:
        name = "standard input" if source == "-" else source
        reason = getattr(error, "strerror", None) or error
        raise TraceError(0, f"{name}: {reason}; name a file that can be read") from error


def _request(number: int, text: bytes, model: str | None, defaults: Mapping[str, Any]) -> tuple[Request, float | None]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            number, f"no JSON ({error}); mend or delete it, or pass such lines over with --skip-bad"
        ) from None
    line: dict[str, Any] = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(line, dict):
        raise TraceError(number, f"a JSON {_kind(value)}; expected an object with a body, or a prompt as a string")
    path, body = _batch(number, line) if "body" in line else _plain(number, line)
    if model is not None:
        body["model"] = model
    for name, default in defaults.items():
        body.setdefault(name, default)
    request = Request(
        line=number,
        id=_name(number, line, "custom_id") or _name(number, line, "id") or f"line-{number}",
        path=path,
        body=body,
        category=_name(number, line, "category"),
        tenant=_name(number, line, "tenant"),
    )
    return request, _time(number, line)


def _batch(number: int, line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Read OpenAI's batch format; without a url its body says what it is."""
    body, method, url = line["body"], line.get("method", "POST"), line.get("url")
    if not isinstance(body, dict):
        raise TraceError(number, f"body: a JSON {_kind(body)}; expected an object, the request's body")
    if method != "POST":
        raise TraceError(number, f"method: expected POST, got {method!r}")
    if url is None:
        return _plain(number, body)
    if not isinstance(url, str) or not url.startswith("/v1/"):
        raise TraceError(number, f"url: expected a path such as {CHAT}, got {url!r}")
    return url, dict(body)


def _plain(number: int, line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Read an OpenAI body, or a prompt that becomes a user's message."""
    body = {name: value for name, value in line.items() if name not in _OWN}
    if "messages" in body:
        if not isinstance(body["messages"], list) or not body["messages"]:
            raise TraceError(number, "messages: expected a list of at least one message")
        return CHAT, body
    if "input" in body:
        return RESPONSES, body
    if "prompt" not in body:
        raise TraceError(number, "no messages, prompt, input or body in it; expected one of them")
    if "model" in body:
        return COMPLETIONS, body
    prompt = body.pop("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise TraceError(number, "prompt: expected a text; a line with a model may hold lists, for /v1/completions")
    return CHAT, {"messages": [{"role": "user", "content": prompt}], **body}


def _name(number: int, line: Mapping[str, Any], field: str) -> str:
    value = line.get(field)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TraceError(number, f"{field}: expected a name, got a JSON {_kind(value)}")
    return str(value)


def _time(number: int, line: Mapping[str, Any]) -> float | None:
    field = next((name for name in _TIMES if line.get(name) is not None), None)
    if field is None:
        return None
    value = line[field]
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        seconds = float(value) if not isinstance(value, bool) else float("nan")
    except (ValueError, TypeError):
        seconds = float("nan")
    if not abs(seconds) < float("inf"):
        raise TraceError(number, f"{field}: expected ISO 8601 such as 2026-11-01T09:30:00Z, or seconds, got {value!r}")
    return seconds / 1000 if abs(seconds) > _MILLISECONDS else seconds


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
