"""One request's answer: its running choices, the shape they take on the wire, and the client's leaving."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar
from uuid import uuid4

import msgspec

from gateway.engine.api.ask import Ask
from gateway.engine.http import Reply
from gateway.engine.sequence import Emission, Finish, Sequence

encode = msgspec.json.Encoder().encode
_SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_JSON_HEADERS = [(b"content-type", b"application/json")]


def sse(value: object) -> bytes:
    """Return one server-sent event with JSON data."""
    return b"data: %b\n\n" % encode(value)


@dataclass(slots=True)
class Choice:
    """One of the `n` completions of a request, as far as it has come."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None


class Shape(ABC):
    """How an endpoint writes its answer, whole or in events."""

    prefix: ClassVar[str]

    def __init__(self, ask: Ask, model: str) -> None:
        self.ask = ask
        self.model = model
        self.id = f"{self.prefix}-{uuid4().hex}"
        self.created = int(time.time())
        self.choices = [Choice(index) for index in range(ask.n)]

    @abstractmethod
    def opening(self, choice: Choice) -> bytes:
        """Return the events before a choice's first text."""

    @abstractmethod
    def delta(self, choice: Choice, emission: Emission) -> bytes:
        """Return the events of one step."""

    @abstractmethod
    def closing(self) -> bytes:
        """Return the events after the last choice's end."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the body of an answer that is not streamed."""

    def usage(self) -> dict[str, object]:
        """Return the usage of all choices."""
        return self._usage(sum(len(choice.tokens) for choice in self.choices))

    def usage_of(self, choice: Choice) -> dict[str, object]:
        """Return the usage of one choice as it stands."""
        return self._usage(len(choice.tokens))

    def _usage(self, completion: int) -> dict[str, object]:
        prompt = len(self.ask.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Answer:
    """Runs a request's sequences and writes their shape; a client that leaves cancels them."""

    def __init__(self, shape: Shape, reply: Reply, cancel: Callable[[Sequence], None]) -> None:
        self._shape = shape
        self._reply = reply
        self._cancel = cancel
        self._stream = shape.ask.stream
        self.sequences: list[Sequence] = []
        reply.on_gone = self._gone

    def sink(self, index: int) -> Callable[[Emission], None]:
        """Return where the sequence of that choice delivers its steps."""
        return partial(self._stepped, self._shape.choices[index])

    def _stepped(self, choice: Choice, emission: Emission) -> None:
        first = not choice.tokens
        choice.tokens.extend(emission.tokens)
        choice.text += emission.text
        choice.finish, choice.stop_reason = emission.finish, emission.stop_reason
        if self._stream:
            if not self._reply.started:
                self._reply.open(200, _SSE_HEADERS)
            if first and (opening := self._shape.opening(choice)):
                self._reply.write(opening)
            self._reply.write(self._shape.delta(choice, emission))
        if all(one.finish is not None for one in self._shape.choices):
            self._end()

    def _end(self) -> None:
        if self._stream:
            self._reply.close(self._shape.closing())
        else:
            self._reply.whole(200, self._shape.whole(), _JSON_HEADERS)

    def _gone(self) -> None:
        for sequence in self.sequences:
            self._cancel(sequence)
