"""Decisions for gateways that carry the traffic themselves: which pool a request should go to, without sending it there.

Who asks is a tenant with its own key, and gets what its call would get: its models, policy and cost weight hold. Advice takes
nothing from limits and budgets, which belong to who serves, and never explores: what nobody observes teaches nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from gateway import wire
from gateway.errors import BadRequest, Forbidden, GatewayError
from gateway.explain import endpoint_of
from gateway.wire import Endpoint

if TYPE_CHECKING:
    from gateway.pipeline import Pipeline
    from gateway.pools import Pools
    from gateway.routing import Option, Plan
    from gateway.tenants import Tenant

Route = Literal["auto", "speculative", "baseline"]
ROUTES: Final[tuple[Route, ...]] = ("auto", "speculative", "baseline")
MAX_REQUESTS: Final = 64  # in one batch: at 1 ms for a very long prompt they take no longer than one network hop


class Question(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One request of a batch: its body as a client would send it, and what the path and headers would have said."""

    body: msgspec.Raw
    endpoint: Endpoint | None = None  # None: told by the field that holds the prompt
    route: Route = "auto"


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    requests: list[Question]


_decode = msgspec.json.Decoder(_Batch).decode


def questions(body: bytes) -> list[Question]:
    """Read a batch.

    Raises:
        BadRequest: not JSON, a field that is wrong, no request at all or too many.
    """
    try:
        found = _decode(body).requests
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"The batch could not be read: {error}.", param="requests", code="invalid_json") from None
    if not 1 <= len(found) <= MAX_REQUESTS:
        raise BadRequest(f"'requests' must hold 1 to {MAX_REQUESTS} requests.", param="requests", code="invalid_value")
    return found


async def advise(pipeline: Pipeline, tenant: Tenant, batch: list[Question]) -> dict[str, Any]:
    """Return advice for every request of a batch, in its order; one that cannot be served has its error instead.

    Between two requests other calls have their turn.
    """
    found = []
    for index, question in enumerate(batch):
        try:
            told = advice(pipeline, tenant, bytes(question.body), endpoint=question.endpoint, route=question.route)
        except GatewayError as error:
            told = {"status": error.status, **msgspec.json.decode(error.body())}
        found.append({"index": index, **told})
        await asyncio.sleep(0)
    return {"object": "list", "artefact": pipeline.live.scorer.version, "data": found}


def advice(pipeline: Pipeline, tenant: Tenant, body: bytes, *, endpoint: Endpoint | None, route: str) -> dict[str, Any]:
    """Return the pool that one request should go to, the order to try after it, and the numbers behind that.

    Raises:
        GatewayError: what the request itself would get: 400, 403, 404 or 503.
    """
    _allow(tenant, route)
    live = pipeline.live
    call = wire.parse(body, endpoint or endpoint_of(body))
    model = live.tenants.resolve(tenant, call.model).name
    score = live.scorer.score(call.view)
    plan = pipeline.plan(replace(tenant, explore=False), model, call, score, route)
    return {"endpoint": call.endpoint, "model": model, **_told(plan, live.pools)}


def _allow(tenant: Tenant, route: str) -> None:
    if route not in ROUTES:
        raise BadRequest(
            f"'x-draftlane-route' must be one of {', '.join(ROUTES)}.", param="x-draftlane-route", code="invalid_value"
        )
    if route != "auto" and not tenant.allow_route_header:
        raise Forbidden("This key may not choose the pool.", param="route", code="route_not_allowed")


def _told(plan: Plan, pools: Pools) -> dict[str, Any]:
    """Return a plan as plain data; `order` holds the primary pool first, then where to go when that fails."""
    primary = pools[plan.pools[0]].config
    return {
        "pool": primary.name,
        "kind": primary.kind,
        "served_model": primary.served_model,
        "order": list(plan.pools),
        "reason": plan.reason,
        "detail": plan.detail,
        "score": plan.score,
        "threshold": plan.threshold,
        "break_even": plan.break_even,
        "expected_acceptance_length": plan.expected,
        "output_tokens": plan.output_tokens,
        "shadow": plan.shadow,
        "options": [_option(option, pools) for option in plan.options],
    }


def _option(option: Option, pools: Pools) -> dict[str, Any]:
    config = pools[option.pool].config
    return {
        "pool": option.pool,
        "kind": config.kind,
        "served_model": config.served_model,
        "time_seconds": option.time_seconds,
        "cost_usd": option.cost_usd,
        "acceptance_length": option.acceptance_length,
        "unfit": option.unfit,
    }
