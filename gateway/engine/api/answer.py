"""One request's answer: its running choices written as they come, the client's leaving, and the faults on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.engine.api.shape import Choice, Shape
from gateway.engine.faults import Fault
from gateway.engine.http import Reply
from gateway.engine.record import Entry
from gateway.engine.sequence import Emission, Sequence

_SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_JSON_HEADERS = [(b"content-type", b"application/json")]
_MALFORMED = b'data: {"id": "broken", "choices": [{"index": 0, "delta": {"content": \n\n'


class Answer:
    """Runs a request's sequences and writes their shape; a client that leaves cancels them.

    Steps are merged into one event while fewer than `interval` tokens are due or the client lags, as vLLM does.
    """

    def __init__(
        self,
        shape: Shape,
        reply: Reply,
        entry: Entry,
        fault: Fault | None,
        cancel: Callable[[Sequence], None],
        interval: int,
    ) -> None:
        self._shape = shape
        self._reply = reply
        self._entry = entry
        self._fault = fault
        self._cancel = cancel
        self._interval = interval
        self._pending: dict[int, Emission] = {}
        self._broken = False
        self.sequences: list[Sequence] = []
        self.on_whole: Callable[[dict[str, object]], None] = _nothing  # hears the usage before the client has the end
        reply.on_gone = self._gone
        reply.on_drain = self._flush

    def sink(self, index: int) -> Callable[[Emission], None]:
        """Return where the sequence of that choice delivers its steps."""
        return partial(self._stepped, self._shape.choices[index])

    def _stepped(self, choice: Choice, emission: Emission) -> None:
        first = not choice.tokens
        choice.take(emission)
        self._entry.tokens += len(emission.tokens)
        if self._shape.ask.stream and not self._broken:
            if not self._reply.started:
                self._reply.open(200, _SSE_HEADERS)
            if first:
                self._write(self._shape.opening(choice))
            waiting = self._pending.pop(choice.index, None)
            emission = emission if waiting is None else _merged(waiting, emission)
            full = first or emission.finish is not None or len(emission.tokens) >= self._interval
            if full and not self._reply.congested:
                self._write(self._shape.delta(choice, emission))
            else:
                self._pending[choice.index] = emission
        if emission.finish is not None and all(one.finish is not None for one in self._shape.choices):
            self._end()

    def _flush(self) -> None:
        """Write what was held back while the client lagged."""
        pending, self._pending = self._pending, {}
        for index, emission in pending.items():
            self._write(self._shape.delta(self._shape.choices[index], emission))
        if pending and all(one.finish is not None for one in self._shape.choices):
            self._end()

    def _write(self, events: list[bytes]) -> None:
        for event in events:
            if self._broken:
                return
            self._reply.write(event)
            self._entry.events += 1
            if self._fault is not None and self._entry.events == (self._fault.after_events or 1):
                self._break(self._fault)

    def _break(self, fault: Fault) -> None:
        """Let a fault of the middle of a stream happen."""
        if fault.kind == "malformed":
            self._reply.write(_MALFORMED)
        elif fault.kind in ("cut", "reset", "stall"):
            self._broken = True
            if fault.kind == "stall":
                self._hold()
            else:
                (self._reply.cut if fault.kind == "cut" else self._reply.reset)()

    def _end(self) -> None:
        if self._pending or self._broken:
            return
        self._shape.tallies = [sequence.tally for sequence in self.sequences]
        self.sequences = []  # they know this answer; nobody is left to cancel
        if not self._shape.ask.stream:
            self._end_whole(self._shape.whole())
            return
        closing = self._shape.closing()
        if self._fault is not None and self._fault.kind == "no_done":
            del closing[-1]
        if not self._reply.over:
            self.on_whole(self._shape.usage())
        self._write(closing)
        if not self._broken:
            self._entry.finished = True
            self._reply.close()

    def _end_whole(self, body: bytes) -> None:
        kind = self._fault.kind if self._fault is not None else ""
        if kind in ("cut", "stall", "reset"):
            self._broken = True
            self._reply.part(200, body[: len(body) // 2], _JSON_HEADERS, length=len(body))
            if kind == "cut":
                self._reply.cut()
            elif kind == "reset":
                self._reply.reset()
        else:
            self._entry.finished = True
            if kind != "malformed" and not self._reply.over:
                self.on_whole(self._shape.usage())
            self._reply.whole(200, body[: len(body) // 2] if kind == "malformed" else body, _JSON_HEADERS)

    def _hold(self) -> None:
        for sequence in self.sequences:
            sequence.held = True

    def _gone(self) -> None:
        self._entry.gone = asyncio.get_running_loop().time()
        sequences, self.sequences = self.sequences, []
        for sequence in sequences:
            self._cancel(sequence)


def _nothing(usage: dict[str, object]) -> None:
    """Hear of a whole answer and keep nothing."""


def _merged(first: Emission, second: Emission) -> Emission:
    return Emission(first.tokens + second.tokens, first.text + second.text, second.finish, second.stop_reason)
