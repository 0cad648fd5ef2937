"""The engine itself: what answers which path, and from a parsed ask to running sequences."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar, TypeAlias

from gateway.engine.api import chat, completions, messages, responses
from gateway.engine.api.answer import Answer
from gateway.engine.api.ask import Ask
from gateway.engine.api.fields import Fields, decode
from gateway.engine.api.refusal import Refusal, unknown_model
from gateway.engine.api.shape import Service, Shape
from gateway.engine.distilled import distil
from gateway.engine.drafting import Draft, Skill
from gateway.engine.faults import Fault, Faults
from gateway.engine.http import Reply, Request
from gateway.engine.journal import Journal
from gateway.engine.metrics import Metrics
from gateway.engine.record import Entry, Record
from gateway.engine.schedule import Batch, Dial
from gateway.engine.sequence import Sequence, Target
from gateway.engine.settings import EngineSettings
from gateway.engine.writing import endless, write
from gateway.engine.writing.pen import Pen

_Endpoint: TypeAlias = tuple[Callable[[Fields, EngineSettings], Ask], Callable[[Ask, Service, str | None], Shape]]


class Engine:
    """Answers requests; construct inside a running event loop."""

    endpoints: ClassVar[dict[str, _Endpoint]] = {
        "/v1/chat/completions": (chat.parse, chat.ChatShape),
        "/v1/completions": (completions.parse, completions.CompletionShape),
        "/v1/responses": (responses.parse, responses.ResponsesShape),
        "/v1/messages": (messages.parse, messages.MessagesShape),
    }

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.dial = Dial.of(settings)
        self.metrics = Metrics(settings)
        self.record = Record(settings.record_limit)
        self.faults = Faults()
        self.batch = Batch(settings, self.dial, self.metrics)
        self.journal = Journal(Path(settings.journal)) if settings.journal is not None else None
        self._loop = asyncio.get_running_loop()
        told = settings.window if settings.speculative and settings.per_request_metrics else None
        mark = hashlib.blake2b(repr((settings.model, settings.kind, settings.seed)).encode(), digest_size=4)
        self._service = Service(settings.model, f"vllm-0.32.0-{mark.hexdigest()}", told)
        self._requests = 0
        if settings.speculative:
            distil(round(100 * settings.draft_quality))  # read before the first request rather than during it

    def generate(self, request: Request, reply: Reply, entry: Entry) -> None:
        """Answer a request for completions; raises Refusal."""
        parse, shape = self.endpoints[request.path]
        fields = Fields(decode(request.body))
        name = fields.text("model")
        if name is not None and name.partition("@")[0] != self.settings.model:
            raise unknown_model(name)
        try:
            fault = self.faults.take(name, self._loop.time())
        except ValueError as error:
            raise Refusal(str(error), param="model") from None
        entry.fault = fault.kind if fault is not None else None
        reply.on_gone = partial(self._left, entry)
        if fault is not None and self._refuses(fault, fields, reply):
            return
        ask = parse(fields, self.settings)
        given = request.header(b"x-request-id")
        self._start(shape(ask, self._service, given.decode("latin-1") if given else None), reply, entry, fault)

    def _refuses(self, fault: Fault, fields: Fields, reply: Reply) -> bool:
        """Let a fault happen that comes before the answer; return whether there is none to come."""
        if fault.refusal is not None:
            raise fault.refusal
        if (
            fault.kind == "prefill"
            and (messages := fields.objects("messages"))
            and messages[-1].text("role") == "assistant"
        ):
            raise Refusal("This model does not go on from a message of the assistant.", param="messages")
        if fault.kind == "reset" and fault.after_events is None:
            reply.reset()
            return True
        return fault.kind == "silent"

    def _left(self, entry: Entry) -> None:
        entry.gone = self._loop.time()

    def _start(self, shape: Shape, reply: Reply, entry: Entry, fault: Fault | None) -> None:
        answer = Answer(shape, reply, entry, fault, self.batch.cancel, self.settings.stream_interval)
        if self.journal is not None:
            answer.on_whole = partial(self.journal.write, entry.request)
        self._requests += 1
        for index in range(shape.ask.choices):
            answer.sequences.append(self._sequence(shape.ask, index, answer))
        delay = fault.seconds or 1.0 if fault is not None and fault.kind == "slow" else 0.0
        for sequence in answer.sequences:
            self.batch.submit(sequence, delay)

    def _sequence(self, ask: Ask, index: int, answer: Answer) -> Sequence:
        prompt = ask.prompt_of(index)
        context = _seed(self.settings.seed, prompt.ids)
        throw = self._requests if ask.seed is None else f"seed {ask.seed}"
        pen = Pen(Random(context), Random(f"{context} {throw} {index}"), ask.sampling)
        pieces = write(prompt.messages, ask.form, pen)
        target = Target(pieces, endless(prompt.messages, pen), ask.least, ask.bias)
        draft = None
        if self.settings.speculative:
            quality = self.dial.draft_quality
            model = distil(round(100 * quality)) if self.settings.drafter != "ngram" else None
            draft = Draft(prompt.ids, model, Skill.of(quality), Random(context))
        return Sequence(len(prompt.ids), target, draft, ask.limits, answer.sink(index))


def _seed(seed: int, prompt: tuple[int, ...]) -> int:
    """Return a number that follows from the engine's seed and the prompt, in every process alike."""
    digest = hashlib.blake2b(repr(prompt).encode(), key=seed.to_bytes(16, "big", signed=True), digest_size=8)
    return int.from_bytes(digest.digest())
