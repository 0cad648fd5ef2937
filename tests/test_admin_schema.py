"""The admin plane under every request that its own OpenAPI document allows, and many that it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import schemathesis
from harness import ADMIN_KEY, config_for, serving
from hypothesis import HealthCheck, Phase, given, settings

OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}


# What schemathesis draws by itself, and when, is its affair; whether hypothesis tells so depends on the examples.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
async def test_no_request_of_the_schema_is_a_defect() -> None:
    """Whatever the document lets one send, and what it does not, no answer is a 5xx but for a Store that is away."""
    config = config_for({"spec": ["http://127.0.0.1:9"], "plain": ["http://127.0.0.1:10"]})
    async with serving(config) as gateway, httpx.AsyncClient(headers=OPERATOR) as client:
        document = (await client.get(f"{gateway.url}/draftlane/openapi.json")).json()
        statuses = await asyncio.to_thread(exercise, document, gateway.url)

    assert len(document["paths"]) >= 5
    assert set(statuses) == {
        f"{method.upper()} {path}" for path, found in document["paths"].items() for method in found
    }
    assert not [(name, codes) for name, codes in statuses.items() if any(code >= 500 for code in codes)]


def exercise(document: dict[str, Any], url: str) -> dict[str, set[int]]:
    """Send generated requests for every operation of a document; return the statuses of each."""
    schema = schemathesis.openapi.from_dict(document)
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=20) as client:
        operations = [result.ok() for result in schema.get_all_operations()]
        return {f"{each.method.upper()} {each.path}": tried(each, client, url) for each in operations}


def tried(operation: Any, client: httpx.Client, url: str) -> set[int]:
    """Return the statuses that generated requests for one operation got."""
    codes: set[int] = set()

    @settings(max_examples=15, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        sent = case.as_transport_kwargs(base_url=url)
        codes.add(
            client.request(
                sent["method"],
                sent["url"],
                params=sent.get("params"),
                json=sent.get("json"),
                content=sent.get("data"),
            ).status_code
        )

    send()
    return codes


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/draftlane/openapi.json"])
async def test_strangers_are_shown_no_document(path: str) -> None:
    """Without the admin key there is no OpenAPI document, and nowhere a page about it."""
    async with serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway, httpx.AsyncClient() as client:
        assert (await client.get(f"{gateway.url}{path}")).status_code in (401, 404)
