"""One sequence: the target's tokens, the draft's proposals, and verification, a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.engine.drafting import Draft
from gateway.engine.tokenizer import TOKENIZER, Decoder

Finish = Literal["stop", "length", "abort"]


class Target:
    """The target's tokens by position, written as they are needed; after the last comes the end-of-sequence token.

    Where the text is shorter than `least` tokens it goes on with `more`. `bias` holds the ids that a client forbids (False)
    or forces (True) by a logit bias at the end of its range.
    """

    __slots__ = ("_bias", "_forced", "_least", "_more", "_pieces", "_tokens")

    def __init__(
        self, pieces: Iterator[str], more: Iterator[str], least: int = 0, bias: Mapping[int, bool] | None = None
    ) -> None:
        self._pieces = pieces
        self._more = more
        self._least = least
        self._tokens: list[int] = []
        self._bias = bias or {}
        self._forced = next((token for token, forced in self._bias.items() if forced), None)

    def at(self, position: int) -> int:
        """Return the token at `position`, which the target gives whatever was drafted there."""
        if self._forced is not None:
            return self._forced
        tokens = self._tokens
        while position >= len(tokens):
            piece = next(self._pieces, None)
            if piece is None and len(tokens) < self._least:
                piece = next(self._more, None)
            if piece is None:
                return TOKENIZER.end
            ids = TOKENIZER.encode(piece)
            tokens.extend([one for one in ids if one not in self._bias] if self._bias else ids)
        return tokens[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a sequence ends: `max_tokens` counts all output tokens, `stop` strings end it wherever they appear."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False


@dataclass(slots=True)
class Tally:
    """What a sequence has come to; `histogram` counts its steps with a draft by how many of its tokens were accepted."""

    prompt: int
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """One step's outcome in numbers: tokens that were kept, drafted, and accepted of those drafted."""

    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step brought: tokens, the text that may be shown, and how the sequence ended, if it did."""

    tokens: list[int]
    text: str
    finish: Finish | None
    stop_reason: str | int | None


class Sequence:
    """A running completion; each step hands its `Emission` to `sink` and returns its numbers."""

    def __init__(
        self, prompt: int, target: Target, draft: Draft | None, limits: Limits, sink: Callable[[Emission], None]
    ) -> None:
        self.tally = Tally(prompt)
        self.limits = limits
        self.finish: Finish | None = None
        self.held = False  # a fault keeps it in its slot without progress
        self.late = 0.0  # seconds that a fault adds to its prefill
        self.submitted = self.admitted = self.first_token = 0.0
        self._target = target
        self._draft = draft
        self._sink = sink
        self._decoder = Decoder(TOKENIZER)
        self._tail = ""  # text that is written and not yet shown: a stop string may begin in it
        self._hold = max((len(stop) for stop in limits.stop), default=1) - 1

    def __repr__(self) -> str:
        return f"<Sequence {self.tally.tokens}/{self.limits.max_tokens} {self.finish or 'running'}>"

    def prefill(self) -> Step:
        """Make the first step, which reads the prompt and yields one token without a draft."""
        return self._verify([])

    def advance(self, window: int) -> Step:
        """Draft up to `window` tokens, keep the longest agreeing prefix and the target's own next token."""
        return self._verify(self._draft.propose(window) if self._draft is not None else [])

    def _verify(self, drafted: list[int]) -> Step:
        at, position = self._target.at, self.tally.tokens
        kept: list[int] = []
        for proposal in drafted:
            token = at(position + len(kept))
            if token != proposal:
                break
            kept.append(token)
        agreed = len(kept)
        kept.append(at(position + agreed))
        tokens, text, stop_reason = self._until_end(kept)
        step = Step(len(tokens), len(drafted), min(agreed, len(tokens)))
        self._count(step)
        if self._draft is not None and self.finish is None:
            self._draft.observe(tokens)
        self._sink(Emission(tokens, text, self.finish, stop_reason))
        return step

    def _until_end(self, kept: list[int]) -> tuple[list[int], str, str | int | None]:
        """Return the tokens up to the end, if it comes, the text that may be shown, and what stopped it."""
        limits = self.limits
        reason: str | int | None = None
        room = limits.max_tokens - self.tally.tokens
        tokens: list[int] = []
        for token in kept[:room]:
            tokens.append(token)
            if token == TOKENIZER.end:
                self.finish = "stop"
            elif token in limits.stop_token_ids and self.tally.tokens + len(tokens) > limits.min_tokens:
                self.finish, reason = "stop", token
            else:
                self._tail += self._decoder.feed(token)
                reason = self._stopped(self.tally.tokens + len(tokens)) if limits.stop else None
                self.finish = "stop" if reason is not None else None
            if self.finish is not None:
                break
        if self.finish is None and len(tokens) == room:
            self.finish = "length"
        until = len(self._tail) if self.finish else max(0, len(self._tail) - self._hold)
        text, self._tail = self._tail[:until], self._tail[until:]
        return tokens, text, reason

    def _stopped(self, tokens: int) -> str | None:
        if tokens < self.limits.min_tokens:
            return None
        for stop in self.limits.stop:
            found = self._tail.find(stop)
            if found >= 0:
                self._tail = self._tail[: found + len(stop) * self.limits.include_stop]
                return stop
        return None

    def _count(self, step: Step) -> None:
        tally = self.tally
        tally.tokens += step.tokens
        tally.steps += 1
        if step.drafted:
            tally.drafted += step.drafted
            tally.accepted += step.accepted
            tally.histogram.extend([0] * (step.accepted + 1 - len(tally.histogram)))
            tally.histogram[step.accepted] += 1
