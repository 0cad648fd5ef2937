"""All that happened to one call, filled in as it goes, settled exactly once when it ends.

Whatever ends a call (an answer, an error, a client that leaves, a shutdown) passes through `__exit__`, which cannot wait:
the stream is closed, the lease and the tenant's place are given back, and one `Finished` goes to the sinks, unless it has
gone to them already, because the answer was whole. No other place does that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from gateway import observation
from gateway.errors import GatewayError, Unavailable
from gateway.ledger.cost import Terms, attributed, counterfactuals, held
from gateway.observation import Observation
from gateway.record import Finished, Outcome
from gateway.trace import Trace
from gateway.usage import Speculation, Usage

if TYPE_CHECKING:
    from classifier.scorer import Score
    from gateway.admission import Admission
    from gateway.attempts import Attempt, Stream
    from gateway.pools import Pool
    from gateway.routing import Plan
    from gateway.sse import Reader
    from gateway.tenants import Tenant
    from gateway.traffic import Observer
    from gateway.wire import Call

Sink = Callable[[Finished], None]
SHADOW = "(shadow)"  # whose bill shadow copies are on: no tenant's, but somebody's money
_log = logging.getLogger(__name__)


class UnderWay(msgspec.Struct):
    """How many calls are."""

    calls: int = 0


class Exchange(msgspec.Struct):
    """One call from its first byte to its last. `clock` is monotonic seconds; `endpoint` is "other" for paths not scored."""

    request_id: str
    endpoint: str
    sinks: Sequence[Sink]
    clock: Callable[[], float]
    artefact: str = ""
    keeps_prompt: bool = False
    copy_of: str = ""
    observer: Observer | None = None
    trace: Trace | None = None
    under_way: UnderWay | None = None
    pools: Sequence[Pool] = ()  # of the call's model: where it might have gone
    started: float = 0.0
    tenant: Tenant | None = None
    call: Call | None = None
    model: str = ""
    admission: Admission | None = None
    score: Score | None = None
    plan: Plan | None = None
    attempt: Attempt | None = None  # the last request that went out
    stream: Stream | None = None
    again: Callable[[], Awaitable[Stream]] | None = None  # asks another engine for the same, where that may be wanted
    broken: Stream | None = None  # that broke off, while `stream` goes on with its answer
    broke_at: float = 0.0
    reader: Reader | None = None
    usage: Usage | None = None
    speculation: Speculation | None = None
    status: int = 0
    outcome: Outcome = "internal"
    error: str | None = None
    body_at: float = 0.0  # when the client's part was done
    since: float = 0.0  # when the phase that is under way began
    phases: dict[str, float] = msgspec.field(default_factory=dict)  # seconds of the gateway's own work
    queued: float = 0.0  # seconds that it waited for its turn
    booked: bool = False
    settled: bool = False

    def __enter__(self) -> Self:
        self.started = self.clock()
        if self.under_way is not None:
            self.under_way.calls += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        self.settled = True
        if self.under_way is not None:
            self.under_way.calls -= 1
        self.again = None  # it knows this exchange: a cycle would have to wait for the collector
        if self.stream is not None:
            self.stream.close()
        self.book()
        if self.admission is not None:
            self.admission.release()

    def book(self) -> None:
        """Write the call into the books, once. Whoever hands a client the end of a whole answer does so first.

        Then nobody holds a whole answer that is not in the ledger, even if this process is killed at that very moment.
        """
        if self.booked:
            return
        self.booked = True
        ended = self.clock()
        finished = self._finish(ended)
        if self.admission is not None:
            self.admission.settle(finished.prompt_tokens + finished.completion_tokens, finished.cost_usd, ended)
        for sink in self.sinks:
            try:
                sink(finished)
            except Exception:  # noqa: BLE001 - one sink that fails must not take the others along
                _log.exception("a sink failed on call %s", self.request_id)
        if self.observer is not None and self.call is not None:
            try:
                self.observer(finished, self.call)
            except Exception:  # noqa: BLE001 - as with the sinks
                _log.exception("call %s could not be observed", self.request_id)

    def whole(self, usage: Usage | None, speculation: Speculation | None) -> None:
        """The answer is whole, and this is what the engine told of it: book it."""
        if not self.booked:
            self.usage, self.speculation, self.outcome = usage, speculation, "ok"
            self.book()

    def sent(self, attempt: Attempt) -> None:
        """Note a request that went out to an engine."""
        self.attempt = attempt

    async def reopen(self) -> Stream:
        """Ask another engine for the same answer, once; its stream takes the place of the one that broke off.

        Raises:
            GatewayError: none answers.
        """
        again, self.again, old = self.again, None, self.stream
        if again is None or old is None:
            raise Unavailable("There is no other engine to ask.", code="no_replica")
        self.broke_at = self.clock()
        old.close()
        stream = await again()
        stream.attempts += old.attempts
        stream.first_byte_at = old.first_byte_at  # the client's first token is not the new engine's
        self.stream, self.broken = stream, old
        return stream

    def go_back(self, reader: Reader) -> None:
        """The other engine was no help: what the client holds, and pays for, is the answer that broke off."""
        if self.broken is not None and self.stream is not None:
            self.stream.close()
            self.stream, self.broken, self.reader = self.broken, None, reader

    def has_body(self) -> None:
        """The whole request is here: from now on it is the gateway's time."""
        self.body_at = self.since = self.clock()

    def resume(self) -> None:
        """Begin a phase after others have had their turn."""
        self.since = self.clock()

    def has_queued(self, seconds: float) -> None:
        """So long it waited for a place at a pool, which is no work of the gateway's."""
        self.queued = seconds
        self.since += seconds

    def mark(self, phase: str) -> None:
        """Note that a phase of the gateway's own work has ended."""
        now = self.clock()
        self.phases[phase] = now - self.since
        self.since = now

    def fail(self, error: GatewayError, outcome: Outcome | None = None) -> None:
        """Note the error that the client is told; its fault decides the outcome unless one is given."""
        self.status = self.status or error.status
        self.error = error.code or error.type
        self.outcome = outcome or _OUTCOMES.get(error.status, "rejected" if error.fault == "client" else "internal")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that tell what the gateway did."""
        found = [(b"x-request-id", self.request_id.encode())]
        if self.admission is not None:
            found += self.admission.headers
        if self.stream is not None:
            found.append((b"x-draftlane-pool", self.stream.pool.name.encode()))
        plan = self.plan
        if plan is not None:
            if plan.score is not None:
                found.append((b"x-draftlane-score", b"%.3f" % plan.score))
            if plan.threshold is not None:
                found.append((b"x-draftlane-threshold", b"%.3f" % plan.threshold))
            found.append((b"x-draftlane-reason", plan.reason.encode()))
        return found

    def _finish(self, ended: float) -> Finished:
        """Return the record of the call. It is long because it fills every field of one record in one place."""
        call, plan, stream, place = self.call, self.plan, self.stream, self.stream or self.attempt
        seen = self._observe()
        usage = self.usage
        estimated = 0 if usage and usage.completion_tokens else self._estimated_tokens()
        completion_tokens = estimated or (usage.completion_tokens if usage else 0)
        # An engine that did not answer is on nobody's bill; one whose answer a client did not wait for has worked.
        slot_seconds = 0.0
        if place and (stream or self.outcome == "client_gone"):
            slot_seconds = held(self._until(ended) - place.sent_at, place.running, place.pool.slots)
        cost = attributed(slot_seconds, place.pool.price_per_slot_second) if place else 0.0
        return Finished(
            request_id=self.request_id,
            time=time.time() - (ended - self.started),
            endpoint=self.endpoint,
            tenant=SHADOW if self.copy_of else self.tenant.name if self.tenant else "",
            copy_of=self.copy_of,
            trace=self.trace,
            conversation=call.conversation if call else "",
            model=self.model,
            stream=bool(call and call.stream),
            status=self.status,
            outcome=self.outcome,
            error=self.error,
            pool=place.pool.name if place else "",
            replica=place.replica.name if place else "",
            revision=place.pool.revision if place else "",
            resumed_from=self.broken.pool.name if self.broken else "",
            speculative=bool(place and place.pool.speculative),
            attempts=place.attempts if place else 0,
            running=place.running if place else 0,
            reason=plan.reason if plan else "",
            detail=plan.detail if plan else "",
            score=plan.score if plan else None,
            scored=self.score,
            artefact=self.artefact,
            threshold=plan.threshold if plan else None,
            break_even=plan.break_even if plan else None,
            expected=plan.expected if plan else None,
            propensity=plan.propensity if plan else 1.0,
            explored=bool(plan and plan.explored),
            shadow=(plan.shadow or "") if plan else "",
            template=call.view.template if call else "",
            temperature=call.temperature if call else None,
            prompt=call.body[:_PROMPT_BYTES].decode(errors="replace") if call and self.keeps_prompt else "",
            prompt_tokens=usage.prompt_tokens if usage else (call.view.prompt_tokens if call and estimated else 0),
            completion_tokens=completion_tokens,
            usage_source="events" if estimated else "engine" if usage else "none",
            duration=ended - self.started,
            queued=self.queued,
            ttft=max(stream.first_byte_at - self.started, 0.0) if stream and call and call.stream else None,
            overhead=self._overhead(stream),
            acceptance=seen.acceptance,
            steps=seen.steps,
            step_seconds=seen.step_seconds,
            source=seen.source,
            biased=seen.biased,
            slot_seconds=slot_seconds,
            cost_usd=cost,
            counterfactual=self._elsewhere(completion_tokens, cost),
        )

    def _until(self, ended: float) -> float:
        """Return when the engine's slot was free again: with the last byte of a whole reply, however slow its reader."""
        stream = self.stream
        if stream is None or not stream.reply.complete:
            return self.broke_at if self.broke_at and self.broken is None else ended
        return min(max(stream.reply.last_byte_at, stream.sent_at), ended)

    def _elsewhere(self, tokens: int, paid: float) -> dict[str, float]:
        """Return what the answer would have cost under each policy; nothing for a call that no engine answered."""
        stream, plan = self.stream, self.plan
        if stream is None or plan is None or plan.expected is None or not tokens:
            return {}
        terms: dict[str, Terms] = {}
        for pool in self.pools:
            kind = pool.kind
            if kind not in terms and pool is not stream.pool:
                terms[kind] = Terms(
                    price_per_slot_second=pool.price_per_slot_second,
                    step_seconds=pool.step_seconds,
                    ttft_seconds=pool.ttft_seconds,
                    acceptance_length=plan.expected if pool.speculative else 1.0,
                    spread=self.score.spread if self.score and pool.speculative else 0.0,
                    most=(pool.window or 0) + 1.0,
                )
        return counterfactuals(tokens=tokens, paid=paid, ran_on=stream.pool.kind, terms=terms, score=plan.score)

    def _overhead(self, stream: Stream | None) -> dict[str, float]:
        """Return seconds per phase of the gateway's own work before the engine was asked.

        The total holds what lies between the phases too: the same work for other calls.
        """
        phases = self.phases
        if stream is not None and self.body_at and self.broken is None:
            phases["total"] = stream.sent_at - self.body_at - self.queued
        return phases

    def _observe(self) -> Observation:
        """Learn from whole answers only: a cut one says less about its engine than about its client."""
        stream, reader, call = self.stream, self.reader, self.call
        if stream is None or call is None or self.outcome != "ok" or self.broken is not None:
            return Observation()
        decode = stream.reply.last_byte_at - stream.first_byte_at
        if reader is None:
            decode = stream.reply.last_byte_at - stream.sent_at - stream.pool.ttft_seconds
        return observation.observe(
            observation.Evidence(
                usage=self.usage,
                speculation=self.speculation,
                token_events=self._token_events(),
                streamed=reader is not None,
                decode_seconds=decode,
                step_seconds_expected=stream.pool.configured_step(stream.running) * stream.pool.load_factor,
                window=stream.pool.window if stream.pool.speculative else None,
                several="n" in call.features,
                swallowed=reader.swallowed if reader else False,
                lagging=stream.reply.paused,
            )
        )

    def _token_events(self) -> int:
        """Count the steps that events showed; without speculation a silent last token was a step of its own."""
        reader, stream = self.reader, self.stream
        if reader is None or stream is None:
            return 0
        unseen = reader.silent_last and not stream.pool.speculative
        return reader.events - reader.silent_first + unseen

    def _estimated_tokens(self) -> int:
        """Count tokens by events where the engine has not: a broken-off stream used its slot all the same."""
        reader, stream = self.reader, self.stream
        if reader is None or stream is None:
            return 0
        per_event = ((self.plan and self.plan.expected) or 1.0) if stream.pool.speculative else 1.0
        return round(max(reader.events - reader.silent_first, 0) * per_event)


_PROMPT_BYTES = 4096  # of a body that the operator wants in the log
_OUTCOMES: dict[int, Outcome] = {502: "upstream_failed", 503: "unavailable", 504: "upstream_timeout"}
