"""A dry run: what would happen to a request and why, without calling an engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gateway import splice, wire
from gateway.errors import BadRequest, GatewayError, NotFound
from gateway.routing.explain import explain as dry_run

if TYPE_CHECKING:
    from gateway.pipeline import Pipeline
    from gateway.tenants import Tenant


def explain(
    pipeline: Pipeline, body: bytes, *, tenant: str | None = None, endpoint: str | None = None
) -> dict[str, Any]:
    """Return score, the features that moved it, curve value, break-even, threshold and what decided, for one request body.

    Raises:
        BadRequest, NotFound: the body or the tenant is not right. Other errors that the request would get are in the answer.
    """
    live = pipeline.live
    who = _tenant(pipeline, tenant)
    call = wire.parse(body, endpoint or endpoint_of(body))  # type: ignore[arg-type]
    model = live.tenants.resolve(who, call.model).name
    score = live.scorer.score(call.view)
    told: dict[str, Any] = {"endpoint": call.endpoint, "artefact": live.scorer.version}
    try:
        return told | dry_run(
            pipeline.ask(who, model, call, score, None),
            live.pools.view(model, live.clock()),
            live.curves,
            live.scorer.explain(call.view),
            now=time.time(),
            published=live.thresholds,
        )
    except GatewayError as error:
        return told | {"model": model, "tenant": who.name, "error": {"status": error.status, "message": error.message}}


def _tenant(pipeline: Pipeline, name: str | None) -> Tenant:
    tenants = pipeline.live.tenants
    found = tenants.first() if name is None else tenants.named(name)
    if found is None:
        raise NotFound(f"There is no tenant '{str(name)[:100]}'.", param="tenant", code="unknown_tenant")
    return found


def endpoint_of(body: bytes) -> wire.Endpoint:
    """Guess the endpoint by the field that holds the prompt; raises BadRequest when there is none."""
    fields = splice.field_names(body)
    if "messages" in fields:
        return "chat"
    if "input" in fields:
        return "responses"
    if "prompt" in fields:
        return "completions"
    raise BadRequest(
        "The body needs 'messages', 'prompt' or 'input'.", param="messages", code="missing_required_parameter"
    )
