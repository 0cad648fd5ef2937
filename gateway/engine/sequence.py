"""One sequence: the target's tokens, the draft's proposals, and verification, a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from gateway.engine.drafting import Draft
from gateway.engine.tokenizer import TOKENIZER, Decoder

Finish = Literal["stop", "length", "abort"]


class Target:
    """The target's tokens by position, written as they are needed; after the last comes the end-of-sequence token."""

    __slots__ = ("_pieces", "_tokens")

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._tokens: list[int] = []

    def at(self, position: int) -> int:
        """Return the token at `position`, which the target gives whatever was drafted there."""
        tokens = self._tokens
        while position >= len(tokens):
            piece = next(self._pieces, None)
            if piece is None:
                return TOKENIZER.end
            tokens.extend(TOKENIZER.encode(piece))
        return tokens[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a sequence ends: `max_tokens` counts all output tokens, `stop` strings end it wherever they appear."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False


@dataclass(slots=True)
class Tally:
    """What a sequence has come to: its verification steps by number of accepted draft tokens, and its tokens."""

    prompt: int
    tokens: int = 0
    steps: int = 0
    spec_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step brought: tokens, the text that may be shown, and how the sequence ended, if it did."""

    tokens: list[int]
    text: str
    finish: Finish | None
    stop_reason: str | int | None


class Sequence:
    """A running completion; `advance` makes one verification step and hands its `Emission` to `sink`."""

    def __init__(
        self, prompt: list[int], target: Target, draft: Draft | None, limits: Limits, sink: Callable[[Emission], None]
    ) -> None:
        self.prompt = prompt
        self.tally = Tally(len(prompt))
        self.limits = limits
        self.finish: Finish | None = None
        self.held = False  # a fault keeps it in its slot without progress
        self.submitted = self.admitted = self.first_token = 0.0
        self._target = target
        self._draft = draft
        self._sink = sink
        self._decoder = Decoder(TOKENIZER)
        self._text = ""
        self._shown = 0
        self._hold = max((len(stop) for stop in limits.stop), default=1) - 1

    def __repr__(self) -> str:
        return f"<Sequence {self.tally.tokens}/{self.limits.max_tokens} {self.finish or 'running'}>"

    def prefill(self) -> None:
        """Make the first step, which reads the prompt and yields one token without a draft."""
        self._emit(self._verify([]))

    def advance(self, window: int) -> None:
        """Draft up to `window` tokens, keep the longest agreeing prefix and the target's own next token."""
        drafted = self._draft.propose(window) if self._draft is not None else []
        self._emit(self._verify(drafted))

    def _verify(self, drafted: list[int]) -> list[int]:
        at, position = self._target.at, self.tally.tokens
        kept: list[int] = []
        for proposal in drafted:
            token = at(position + len(kept))
            kept.append(token)
            if token != proposal:
                break
        else:
            kept.append(at(position + len(kept)))
        tokens = self._until_end(kept)
        accepted = min(len(tokens), len(kept) - 1)
        self._count(len(tokens), len(drafted), accepted)
        if self._draft is not None:
            self._draft.observe(tokens)
        return tokens

    def _until_end(self, kept: list[int]) -> list[int]:
        limits = self.limits
        room = limits.max_tokens - self.tally.tokens
        for index, token in enumerate(kept[:room]):
            if token == TOKENIZER.end or token in limits.stop_token_ids:
                self.finish = "stop"
                return kept[: index + 1]
        if len(kept) >= room:
            self.finish = "length"
        return kept[:room]

    def _count(self, tokens: int, drafted: int, accepted: int) -> None:
        tally = self.tally
        tally.tokens += tokens
        tally.steps += 1
        if drafted:
            tally.spec_steps += 1
            tally.drafted += drafted
            tally.accepted += accepted
            tally.histogram.extend([0] * (accepted + 1 - len(tally.histogram)))
            tally.histogram[accepted] += 1

    def _emit(self, tokens: list[int]) -> None:
        stop_reason: str | int | None = None
        for index, token in enumerate(tokens):
            self._text += self._decoder.feed(token)
            stopped = self._stopped()
            if stopped is not None:
                self.tally.tokens -= len(tokens) - index - 1
                tokens, stop_reason, self.finish = tokens[: index + 1], stopped, "stop"
                break
        until = len(self._text) if self.finish else max(self._shown, len(self._text) - self._hold)
        text, self._shown = self._text[self._shown : until], until
        if self.finish == "stop" and stop_reason is None and tokens and tokens[-1] in self.limits.stop_token_ids:
            stop_reason = tokens[-1]
        self._sink(Emission(tokens, text, self.finish, stop_reason))

    def _stopped(self) -> str | None:
        limits = self.limits
        if not limits.stop or self.tally.tokens < limits.min_tokens:
            return None
        for stop in limits.stop:
            found = self._text.find(stop, max(0, self._shown - len(stop)))
            if found >= 0:
                self._text = self._text[: found + len(stop) * limits.include_stop]
                return stop
        return None
