"""What Draftlane does with a call, top to bottom. Read `Pipeline.open` and you know the product."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway import routing, splice, wire
from gateway.attempts import Outgoing, Stream
from gateway.conversations import Conversations, Place, affinity
from gateway.errors import BadRequest, Forbidden, RateLimited, Unavailable
from gateway.headers import Headers, values
from gateway.hygiene import headers_for_engine
from gateway.lockstep import OTHERS
from gateway.mirror import Mirror
from gateway.routing import Ask, Needs
from gateway.upstream import Upstream

if TYPE_CHECKING:
    from classifier.scorer import Score, Scorer
    from gateway.admission import Admission
    from gateway.config import Config
    from gateway.exchange import Exchange
    from gateway.learning import Learning
    from gateway.pools import Pools
    from gateway.routing import Curves, Plan
    from gateway.routing.thresholds import Thresholds
    from gateway.tenants import Tenant, Tenants
    from gateway.traffic import Observer
    from gateway.wire import Call, Endpoint

Body = Callable[[], Awaitable[bytes]]
_ROUTES = ("auto", "speculative", "baseline")


@dataclass(slots=True)
class Live:
    """What a call meets: replaced as a whole by a reload, each part keeping what it has learned or counted."""

    config: Config
    tenants: Tenants
    scorer: Scorer
    pools: Pools
    curves: Curves
    learning: Learning
    upstream: Upstream
    conversations: Conversations
    mirror: Mirror
    thresholds: Thresholds
    clock: Callable[[], float]  # monotonic seconds; an event loop's own clock may step by whole milliseconds
    chance: Callable[[], float]  # draws from [0, 1)
    observer: Observer | None = None  # of calls that showed an acceptance, where they are kept


class Pipeline:
    """The way of a call from its headers to an opened stream."""

    __slots__ = ("live",)

    def __init__(self, live: Live) -> None:
        self.live = live

    async def open(self, exchange: Exchange, endpoint: Endpoint, headers: Headers, read_body: Body) -> Stream:
        """Identify, parse, admit, score, plan, open: each step may raise the error that the client gets."""
        live = self.live
        exchange.tenant = tenant = live.tenants.identify(headers)  # 401
        body = await read_body()  # 400 408 413
        exchange.has_body()
        await OTHERS
        exchange.resume()
        route = _route(headers, tenant)  # 400 403
        scored = tenant.policy != "baseline" or route == "speculative"  # otherwise no score could change anything
        exchange.call = call = wire.parse(body, endpoint, viewed="whole" if scored else "by size")  # 400
        exchange.mark("parse")
        exchange.model = model = live.tenants.resolve(tenant, call.model).name  # 404
        exchange.admission = await _admit(live, exchange, tenant, _tokens(call))  # 429
        exchange.pools = live.pools.of_model(model)
        score = None
        if scored:
            await OTHERS
            exchange.resume()
            exchange.score = score = live.scorer.score(call.view)  # never raises
            exchange.mark("score")
        await OTHERS
        exchange.resume()  # and nobody comes between, as a plan counts the calls that are under way
        place = live.conversations.find(tenant.name, model, call.conversation, time.time())
        plan = self.plan(tenant, model, call, score, route, place)  # 503
        if live.pools[plan.pools[0]].full:
            plan = await self._in_turn(  # 429 503
                exchange, tenant, plan, lambda: self.plan(tenant, model, call, score, route, place)
            )
        exchange.plan = plan
        exchange.mark("plan")
        expected = live.config.routing.expected_output_tokens
        out = _outgoing(call, headers, exchange.request_id, plan, place, expected)
        exchange.stream = await live.upstream.open(plan.pools, out, exchange.sent)  # 502 503 504; fails over until then
        self._look_after(exchange, call, plan, out)
        return exchange.stream

    def _look_after(self, exchange: Exchange, call: Call, plan: Plan, out: Outgoing) -> None:
        """Offer to go on with a stream that breaks, where that is wanted, and copy a share of shadow calls."""
        live = self.live
        if live.config.routing.resume_streams and _says_the_same(call):
            exchange.again = lambda: self._open_again(exchange, plan, out)
        live.mirror.consider(exchange, out, live.config.routing.shadow_share)

    async def _open_again(self, exchange: Exchange, plan: Plan, out: Outgoing) -> Stream:
        """Ask another engine for an answer that broke off, where there is room first; where there is none, in turn."""
        live, limits, broken = self.live, self.live.config.limits, exchange.stream
        known = [name for name in plan.pools if name in live.pools]  # a reload may have removed some meanwhile
        pools = sorted(known, key=lambda name: live.pools[name].full)
        if pools and live.pools[pools[0]].full and exchange.tenant is not None:
            await live.pools[pools[0]].turns.wait(
                exchange.tenant.name, most=limits.max_waiting, seconds=limits.idle_seconds, retry_after=1.0
            )
        return await live.upstream.open(pools, out, exchange.sent, without=broken.replica if broken else None)

    async def open_other(
        self, exchange: Exchange, method: bytes, target: bytes, headers: Headers, read_body: Body
    ) -> Stream:
        """Pass a call of any other path to a baseline pool of the model it names, or of the tenant's first one."""
        live = self.live
        exchange.tenant = tenant = live.tenants.identify(headers)
        body = await read_body()
        exchange.has_body()
        name = splice.named_model(body)
        model = live.tenants.resolve(tenant, name).name if name is not None else _first_model(live, tenant)
        exchange.model = model
        exchange.admission = await _admit(live, exchange, tenant, 1)

        def body_for(served_model: str) -> bytes:
            return body if name in (None, served_model) else splice.rename_model(body, served_model)

        exchange.stream = await live.upstream.open(
            _baseline_first(live, model),
            Outgoing(
                method=method,
                target=target,
                headers=headers_for_engine(headers, exchange.request_id),
                body_for=body_for,
                stream=False,
                idempotent=method in (b"GET", b"HEAD"),
            ),
            exchange.sent,
        )
        return exchange.stream

    async def _in_turn(self, exchange: Exchange, tenant: Tenant, plan: Plan, decide: Callable[[], Plan]) -> Plan:
        """Wait for a place, as the chosen pool is full, and decide again: by then another may be better.

        Raises:
            Unavailable: no pool can take it, or none had a place in time. RateLimited: too many of the tenant's wait.
        """
        live, limits, began = self.live, self.live.config.limits, exchange.clock()
        while True:
            pool = live.pools[plan.pools[0]]
            view = pool.view(live.clock())
            await pool.turns.wait(
                tenant.name,
                most=limits.max_waiting,
                seconds=limits.queue_seconds - (exchange.clock() - began),
                retry_after=1.0 + view.queued / max(1, view.slots),  # a slot is free again every second or so
            )
            plan = decide()
            chosen = live.pools[plan.pools[0]]
            if chosen.name == pool.name or not chosen.full:
                break
            pool.let_in()  # what is free there is for somebody else
        exchange.has_queued(exchange.clock() - began)
        return plan

    def plan(
        self, tenant: Tenant, model: str, call: Call, score: Score | None, route: str | None, place: Place | None = None
    ) -> Plan:
        """Decide where a call goes; a dry run asks the same way."""
        live = self.live
        pools = live.pools.view(model, live.clock())
        if score is None:
            return routing.plain(model, _needs(call), pools)
        return routing.plan(
            self.ask(tenant, model, call, score, route, place),
            pools,
            live.curves,
            now=time.time(),
            chance=live.chance,
            published=live.thresholds,
        )

    def ask(
        self, tenant: Tenant, model: str, call: Call, score: Score, route: str | None, place: Place | None = None
    ) -> Ask:
        """Put the call as the question that routing answers."""
        return Ask(
            model=model,
            tenant=tenant.name,
            policy=tenant.policy,
            route=route,  # type: ignore[arg-type]
            cost_weight=tenant.cost_weight,
            explore=tenant.explore,
            needs=_needs(call),
            score=score,
            template=call.view.template,
            affinity=affinity(place),
        )


UNLIKELY = 8.0  # times the expected tokens that an answer is not expected to have


def _outgoing(
    call: Call, headers: Headers, request_id: str, plan: Plan, place: Place | None, expected: float
) -> Outgoing:
    """Return what the engines are sent; `expected` is the tokens of an answer of which nothing better is known."""
    return Outgoing(
        method=b"POST",
        target=wire.TARGETS[call.endpoint],
        headers=headers_for_engine(headers, request_id),
        body_for=call.body_for,
        stream=call.stream,
        prefer=place.replica if place else "",
        seconds={option.pool: option.time_seconds for option in plan.options},
        most_tokens=min(
            math.inf if call.max_tokens is None else call.max_tokens, UNLIKELY * (plan.output_tokens or expected)
        ),
    )


async def _admit(live: Live, exchange: Exchange, tenant: Tenant, tokens: int) -> Admission:
    """Let the call in; a limit that frees up at once, as a shared one does when it was asked for, is waited for.

    Raises:
        RateLimited: a limit is reached.
    """
    now = exchange.clock()
    until = now + _PATIENCE_SECONDS
    while True:
        try:
            return live.tenants.admit(tenant, model=None, tokens=tokens, now=now)
        except RateLimited as limited:
            if limited.retry_after is None or now + limited.retry_after > until:
                raise
            wait = limited.retry_after
        await asyncio.sleep(wait)
        now = exchange.clock()


_PATIENCE_SECONDS = 0.5  # a client would not be back sooner


def _says_the_same(call: Call) -> bool:
    """Whether every engine of the model answers the call alike, and in a form that can be compared."""
    plain = call.stream and call.endpoint in ("chat", "completions") and not call.has_tools
    return plain and call.temperature == 0 and call.features.isdisjoint({"n", "logprobs"})


def _needs(call: Call) -> Needs:
    return Needs(call.features, call.view.prompt_tokens, call.max_tokens, call.temperature)


def _tokens(call: Call) -> int:
    """Estimate the tokens of prompt and answer together, for the tenant's limits; corrected when the call ends."""
    return call.view.prompt_tokens + (call.max_tokens if call.max_tokens is not None else _ANSWER_TOKENS)


_ANSWER_TOKENS = 256  # of an answer that the client has not limited


def _route(headers: Headers, tenant: Tenant) -> str | None:
    """Return the client's wish for a kind of pool.

    Raises:
        BadRequest: not one of the routes. Forbidden: the tenant's policy leaves the client no choice.
    """
    for value in values(headers, b"x-draftlane-route"):
        route = value.decode("latin-1").strip().lower()
        if route not in _ROUTES:
            raise BadRequest(
                f"'x-draftlane-route' must be one of {', '.join(_ROUTES)}.",
                param="x-draftlane-route",
                code="invalid_value",
            )
        if route != "auto" and not tenant.allow_route_header:
            raise Forbidden(
                "This key may not set x-draftlane-route.", param="x-draftlane-route", code="route_not_allowed"
            )
        return route
    return None


def _first_model(live: Live, tenant: Tenant) -> str:
    for model in live.config.models:
        if tenant.may_use(model.name):
            return model.name
    raise Forbidden("This key may use no model.", code="no_model")


def _baseline_first(live: Live, model: str) -> tuple[str, ...]:
    now = live.clock()
    views = [view for view in live.pools.view(model, now) if view.available]
    if not views:
        raise Unavailable(f"No pool of model '{model}' is available.", code="no_replica", retry_after=1.0)
    return tuple(view.name for view in sorted(views, key=lambda view: view.speculative))
