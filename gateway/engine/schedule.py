"""Continuous batching: slots, a first-come queue, and one clock whose step all running sequences share."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gateway.engine.sequence import Sequence
from gateway.engine.settings import EngineSettings


@dataclass(slots=True)
class Dial:
    """The settings that may change while the engine runs; seconds are before `speed` divides them."""

    step_seconds: float
    step_growth: float
    ttft_seconds: float
    speed: float
    draft_quality: float

    @classmethod
    def of(cls, settings: EngineSettings) -> Dial:
        """Return the dial as the engine starts with it."""
        return cls(
            settings.step, settings.step_growth, settings.ttft_seconds, settings.speed, settings.draft_quality
        )

    def step(self, running: int) -> float:
        """Return the real seconds of one step with `running` sequences in the batch."""
        return self.step_seconds * (1 + self.step_growth * max(0, running - 1)) / self.speed


class Watcher(Protocol):
    """What the batch tells of its work."""

    def first(self, sequence: Sequence) -> None:
        """A sequence got its first token."""

    def stepped(self, sequence: Sequence, seconds: float, tokens: int) -> None:
        """A sequence made a step of `seconds` that brought `tokens`."""

    def finished(self, sequence: Sequence, now: float) -> None:
        """A sequence left its slot."""


class Batch:
    """The running sequences and those that wait; everything happens in the clock's callbacks."""

    def __init__(self, settings: EngineSettings, dial: Dial, watcher: Watcher) -> None:
        self._slots = settings.slots
        self._window = settings.window
        self._dial = dial
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Sequence] = deque()
        self._prefilling: dict[Sequence, asyncio.TimerHandle] = {}
        self._decoding: list[Sequence] = []
        self._tick: asyncio.TimerHandle | None = None
        self._due = 0.0

    def __repr__(self) -> str:
        return f"<Batch {self.running}/{self._slots} waiting {self.waiting}>"

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; it starts at once when a slot is free."""
        sequence.submitted = self._loop.time()
        self._waiting.append(sequence)
        self._admit()

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot is free when this returns."""
        if sequence.finish is not None:
            return
        sequence.finish = "abort"
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._prefilling:
            self._prefilling.pop(sequence).cancel()
        elif sequence in self._decoding:
            self._decoding.remove(sequence)
        self._watcher.finished(sequence, self._loop.time())
        self._admit()

    def close(self) -> None:
        """Drop everything."""
        for timer in self._prefilling.values():
            timer.cancel()
        if self._tick is not None:
            self._tick.cancel()
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()

    def _admit(self) -> None:
        while self._waiting and self.running < self._slots:
            sequence = self._waiting.popleft()
            sequence.admitted = self._loop.time()
            delay = self._dial.ttft_seconds / self._dial.speed
            self._prefilling[sequence] = self._loop.call_later(delay, self._start, sequence)

    def _start(self, sequence: Sequence) -> None:
        del self._prefilling[sequence]
        sequence.first_token = self._loop.time()
        self._decoding.append(sequence)
        sequence.prefill()
        self._watcher.first(sequence)
        if sequence.finish is not None:
            self._leave(sequence)
        elif self._tick is None:
            self._due = self._loop.time()
            self._schedule()

    def _schedule(self) -> None:
        if not self._decoding:
            self._tick = None
            return
        # Late ticks are not made up for beyond one step: an engine that fell behind is slow, it does not burst.
        self._due = max(self._due + self._dial.step(self.running), self._loop.time() - self._dial.step(1))
        self._tick = self._loop.call_at(self._due, self._step)

    def _step(self) -> None:
        seconds = self._dial.step(self.running)
        for sequence in tuple(self._decoding):
            if sequence.held or sequence.finish is not None:
                continue
            before = sequence.tally.tokens
            sequence.advance(self._window)
            self._watcher.stepped(sequence, seconds, sequence.tally.tokens - before)
            if sequence.finish is not None and sequence in self._decoding:
                self._leave(sequence)
        self._schedule()

    def _leave(self, sequence: Sequence) -> None:
        self._decoding.remove(sequence)
        self._watcher.finished(sequence, self._loop.time())
        self._admit()
