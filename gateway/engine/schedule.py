"""Continuous batching: slots, a first-come queue, and one clock whose step all running sequences share."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gateway.engine.sequence import Finish, Sequence, Step
from gateway.engine.settings import EngineSettings


@dataclass(slots=True)
class Dial:
    """The settings that may change while the engine runs; seconds are before `speed` divides them."""

    step_seconds: float
    step_growth: float
    ttft_seconds: float
    speed: float
    draft_quality: float

    def __post_init__(self) -> None:
        if self.speed <= 0 or self.step_seconds <= 0:
            raise ValueError("speed and step_seconds: must be greater than 0")
        if not 0 <= self.draft_quality <= 1:
            raise ValueError(f"draft_quality: must lie in [0, 1], got {self.draft_quality}")

    @classmethod
    def of(cls, settings: EngineSettings) -> Dial:
        """Return the dial as the engine starts with it."""
        return cls(settings.step, settings.step_growth, settings.ttft_seconds, settings.speed, settings.draft_quality)

    def step(self, running: int) -> float:
        """Return the real seconds of one step with `running` sequences in the batch."""
        return self.step_seconds * (1 + self.step_growth * max(0, running - 1)) / self.speed


class Watcher(Protocol):
    """What the batch tells of its work."""

    def first(self, sequence: Sequence, step: Step) -> None:
        """A sequence got its first token."""

    def stepped(self, step: Step, seconds: float) -> None:
        """A sequence made a step; `seconds` is how long the whole batch took for it."""

    def finished(self, sequence: Sequence, finish: Finish, now: float) -> None:
        """A sequence left the engine."""


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
        self._decoding: dict[Sequence, None] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._due = self._began = 0.0

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

    @property
    def cached(self) -> int:
        """Tokens that the running sequences keep in the KV cache."""
        return sum(one.tally.prompt + one.tally.tokens for one in (*self._prefilling, *self._decoding))

    def submit(self, sequence: Sequence, late: float = 0.0) -> None:
        """Queue a sequence, which starts at once when a slot is free; `late` seconds are added to its prefill."""
        sequence.late = late
        sequence.submitted = self._loop.time()
        self._waiting.append(sequence)
        self._admit()

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot is free when this returns."""
        if sequence.finish is not None:
            return
        sequence.finish = "abort"
        if sequence in self._prefilling:
            self._prefilling.pop(sequence).cancel()
        elif sequence in self._decoding:
            del self._decoding[sequence]
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._watcher.finished(sequence, "abort", self._loop.time())
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
            delay = self._dial.ttft_seconds / self._dial.speed + sequence.late
            self._prefilling[sequence] = self._loop.call_later(delay, self._start, sequence)

    def _start(self, sequence: Sequence) -> None:
        del self._prefilling[sequence]
        sequence.first_token = self._loop.time()
        self._decoding[sequence] = None
        self._watcher.first(sequence, sequence.prefill())
        self._leave_if_finished(sequence)
        if self._tick is None and self._decoding:
            self._began = self._due = sequence.first_token
            self._schedule()

    def _schedule(self) -> None:
        if not self._decoding:
            self._tick = None
            return
        # A late tick is made up for by one step at most: an engine that fell behind is slow, it does not burst.
        step = self._dial.step(self.running)
        self._due = max(self._due + step, self._loop.time())
        self._tick = self._loop.call_at(self._due, self._step)

    def _step(self) -> None:
        now = self._loop.time()
        seconds, self._began = now - self._began, now
        try:
            for sequence in tuple(self._decoding):
                # A client's leaving, seen while another sequence is written, may have cancelled this one.
                if not sequence.held and sequence.finish is None:
                    self._watcher.stepped(sequence.advance(self._window), seconds)
                    self._leave_if_finished(sequence)
        finally:
            self._schedule()

    def _leave_if_finished(self, sequence: Sequence) -> None:
        if sequence.finish is not None and sequence in self._decoding:
            del self._decoding[sequence]
            self._watcher.finished(sequence, sequence.finish, self._loop.time())
            self._admit()
