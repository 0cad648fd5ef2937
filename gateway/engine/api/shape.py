"""What all endpoints' answers have in common: choices, usage, and the frame of an event."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import uuid4

import msgspec

from gateway.engine.api.ask import Ask
from gateway.engine.sequence import Emission, Finish, Tally

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def sse(value: object) -> bytes:
    """Return one server-sent event with JSON data."""
    return b"data: %b\n\n" % encode(value)


@dataclass(slots=True)
class Choice:
    """One of the completions of a request, as far as it has come."""

    index: int
    parts: list[str] = field(default_factory=list)
    length: int = 0  # characters of text
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.parts)

    def take(self, emission: Emission) -> None:
        """Add a step's outcome."""
        self.tokens.extend(emission.tokens)
        self.parts.append(emission.text)
        self.length += len(emission.text)
        self.finish, self.stop_reason = emission.finish, emission.stop_reason


@dataclass(frozen=True, slots=True)
class Service:
    """What an answer says of the engine: the model's name, a fingerprint, and the draft's window where it tells of that."""

    model: str
    fingerprint: str
    window: int | None


class Shape(ABC):
    """How an endpoint writes its answer, whole or in events."""

    prefix: ClassVar[str]

    def __init__(self, ask: Ask, service: Service, request_id: str | None = None) -> None:
        self.ask = ask
        self.model = service.model
        self.id = f"{self.prefix}{request_id or uuid4().hex}"
        self.created = int(time.time())
        self.choices = [Choice(index) for index in range(ask.choices)]
        self.tallies: list[Tally] = []
        self._service = service

    @abstractmethod
    def opening(self, choice: Choice) -> list[bytes]:
        """Return the events before a choice's first text."""

    @abstractmethod
    def delta(self, choice: Choice, emission: Emission) -> list[bytes]:
        """Return the events of one step, which `choice` has already taken."""

    @abstractmethod
    def closing(self) -> list[bytes]:
        """Return the events after the last choice's end."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the body of an answer that is not streamed."""

    def tokens(self) -> int:
        """Return the number of tokens generated for all choices."""
        return sum(len(choice.tokens) for choice in self.choices)

    def usage(self) -> dict[str, object]:
        """Return the usage of all choices."""
        return _usage(sum(len(prompt.ids) for prompt in self.ask.prompts), self.tokens())

    def usage_of(self, choice: Choice) -> dict[str, object]:
        """Return the usage of one choice as it stands."""
        return _usage(len(self.ask.prompt_of(choice.index).ids), len(choice.tokens))

    def metrics(self) -> dict[str, object]:
        """Return `{"metrics": …}` about drafting where the engine offers it and a single sequence ran, else {}."""
        window = self._service.window
        if window is None or len(self.tallies) != 1:
            return {}
        tally = self.tallies[0]
        histogram = tally.histogram + [0] * (window + 1 - len(tally.histogram))
        steps = sum(histogram)
        found = {
            "mean_acceptance_length": 1 + tally.accepted / steps if steps else 1.0,
            "draft_acceptance_rate": tally.accepted / tally.drafted if tally.drafted else 0.0,
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": tally.accepted,
            "num_draft_tokens": tally.drafted,
            "num_spec_tokens": window,
        }
        return {"metrics": {"speculative_decoding": found}}


def _usage(prompt: int, completion: int) -> dict[str, object]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
