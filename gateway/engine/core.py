"""The engine itself: from a parsed ask to running sequences."""

from __future__ import annotations

import hashlib
from functools import cache
from random import Random

from gateway.engine.api import chat, completions
from gateway.engine.api.answer import Answer, Shape
from gateway.engine.api.ask import Ask
from gateway.engine.drafting import Draft, Skill
from gateway.engine.api.fields import Fields, decode
from gateway.engine.http import Reply, Request
from gateway.engine.writing.pen import Pen
from gateway.engine.api.refusal import Refusal, unknown_model
from gateway.engine.schedule import Batch, Dial
from gateway.engine.sequence import Sequence, Target
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import Form, write


class Quiet:
    """A watcher that keeps nothing."""

    def first(self, sequence: Sequence) -> None:
        """A sequence got its first token."""

    def stepped(self, sequence: Sequence, seconds: float, tokens: int) -> None:
        """A sequence made a step."""

    def finished(self, sequence: Sequence, now: float) -> None:
        """A sequence left its slot."""


class Engine:
    """Answers requests; construct inside a running event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.dial = Dial.of(settings)
        self.batch = Batch(settings, self.dial, Quiet())
        self._requests = 0

    def __call__(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        try:
            self._route(request, reply)
        except Refusal as refusal:
            reply.json(refusal.status, refusal.body, refusal.headers)

    def _route(self, request: Request, reply: Reply) -> None:
        if request.path == "/health":
            reply.whole(200, b"", [])
        elif request.path == "/v1/models":
            reply.json(200, {"object": "list", "data": [{"id": self.settings.model, "object": "model", "created": 0,
                                                          "owned_by": "vllm", "max_model_len": self.settings.max_model_len}]})
        elif request.path == "/v1/chat/completions":
            fields = self._fields(request)
            self._start(chat.ChatShape(chat.parse(fields, self.settings), self.settings.model), reply)
        elif request.path == "/v1/completions":
            fields = self._fields(request)
            self._start(completions.CompletionShape(completions.parse(fields, self.settings), self.settings.model), reply)
        else:
            reply.json(404, {"detail": "Not Found"})

    def _fields(self, request: Request) -> Fields:
        fields = Fields(decode(request.body))
        name = fields.text("model")
        if name is not None and name.partition("@")[0] != self.settings.model:
            raise unknown_model(name)
        return fields

    def _start(self, shape: Shape, reply: Reply) -> None:
        answer = Answer(shape, reply, self.batch.cancel)
        self._requests += 1
        for index in range(shape.ask.n):
            answer.sequences.append(self._sequence(shape.ask, index, answer))
        for sequence in answer.sequences:
            self.batch.submit(sequence)

    def _sequence(self, ask: Ask, index: int, answer: Answer) -> Sequence:
        context = _seed(self.settings.seed, ask.prompt)
        ordinal = self._requests if ask.seed is None else f"seed {ask.seed}"
        dice = Random(f"{context} {ordinal} {index}")
        pen = Pen(Random(context), dice, ask.sampling)
        target = Target(write(ask.messages, ask.form, pen))
        draft = None
        if self.settings.speculative:
            draft = Draft(ask.prompt, None, Skill.of(self.dial.draft_quality), Random(context))
        return Sequence(list(ask.prompt), target, draft, ask.limits, answer.sink(index))


@cache
def _salt(seed: int) -> bytes:
    return seed.to_bytes(16, "big", signed=True)


def _seed(seed: int, prompt: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(repr(prompt).encode(), key=_salt(seed), digest_size=8)
    return int.from_bytes(digest.digest())
