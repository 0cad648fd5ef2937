"""The admin plane under every request that its own OpenAPI document allows, and many that it does not."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from harness import ADMIN_KEY, KEY, config_for, serving
from hypothesis import HealthCheck, Phase, given, settings

from gateway.engine import EngineSettings, serve

OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}
TENANT = {"authorization": f"Bearer {KEY}"}
KNOWN = {"model": ["demo", "unheard of"], "tenant": ["tester", "nobody"], "path": ["v1/chat/completions", "v1/nothing"]}
BODIES = [  # a right one, right ones in a batch, and such as no schema tells of
    b'{"model": "demo", "prompt": "Hi."}',
    b'{"requests": [{"body": {"model": "demo", "prompt": "Hi."}}]}',
    b"",
    b"\xff",
    b"[" * 100_000,
    b'{"model": "demo", "messages": ' + b"[" * 100_000,
    b'{"n": ' + b"9" * 10_000 + b"}",
]
TAKES_BODIES = {"POST /draftlane/explain", "POST /draftlane/route", "POST /draftlane/route/{path}"}


# What schemathesis draws by itself, and when, is its affair; whether hypothesis tells so depends on the examples.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
async def test_no_request_of_the_schema_is_a_defect() -> None:
    """Whatever the document lets one send, and what it does not, no answer is a 5xx but for a Store that is away."""
    async with (
        serve(EngineSettings(kind="speculative")) as spec,
        serve(EngineSettings()) as plain,
        serving(config_for({"spec": [spec.url], "plain": [plain.url]})) as gateway,
        httpx.AsyncClient(headers=OPERATOR) as client,
    ):
        document = (await client.get(f"{gateway.url}/draftlane/openapi.json")).json()
        statuses = await asyncio.to_thread(exercise, document, gateway.url)

    assert len(document["paths"]) >= 5
    assert set(statuses) == {
        f"{method.upper()} {path}" for path, found in document["paths"].items() for method in found
    }
    assert not [(name, codes) for name, codes in statuses.items() if any(code >= 500 for code in codes)]
    assert {name for name, found in operations(document) if "requestBody" in found} == TAKES_BODIES
    assert [name for name in sorted(TAKES_BODIES) if not {200, 400} <= statuses[name]] == []


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a document's operations by method and path."""
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield f"{method.upper()} {path}", operation


def knowing(part: Any) -> Any:
    """Return a part of a document with names that this gateway knows, and some that it does not, where any text is allowed."""
    if isinstance(part, list):
        return [knowing(each) for each in part]
    if not isinstance(part, dict):
        return part
    known = {name: {"enum": values} for name, values in KNOWN.items() if name in part.get("properties", ())}
    found = {key: knowing(value) for key, value in part.items()}
    if known:
        found["properties"] |= known
    if part.get("in") in ("path", "query") and part["name"] in KNOWN:
        found["schema"] = {"enum": KNOWN[part["name"]]}
    return found


def exercise(document: dict[str, Any], url: str) -> dict[str, set[int]]:
    """Send generated requests for every operation of a document; return the statuses of each."""
    schema = schemathesis.openapi.from_dict(knowing(document))
    with httpx.Client(base_url=url, timeout=20) as client:
        found = [result.ok() for result in schema.get_all_operations()]
        return {f"{each.method.upper()} {each.path}": tried(each, client, url) for each in found}


def tried(operation: Any, client: httpx.Client, url: str) -> set[int]:
    """Return the statuses that generated requests for one operation got."""
    codes: set[int] = set()
    headers = TENANT if operation.path.startswith("/draftlane/route") else OPERATOR

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
                headers=headers,
            ).status_code
        )

    send()
    if "requestBody" in operation.definition.raw:
        codes.update(
            client.post(url + operation.path.format(path="v1/completions"), content=body, headers=headers).status_code
            for body in BODIES
        )
    return codes


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/draftlane/openapi.json"])
async def test_strangers_are_shown_no_document(path: str) -> None:
    """Without the admin key there is no OpenAPI document, and nowhere a page about it."""
    async with serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway, httpx.AsyncClient() as client:
        assert (await client.get(f"{gateway.url}{path}")).status_code in (401, 404)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_an_operator_s_body_is_bounded_too(coding: str) -> None:
    """A dry run takes what a call would take, packed or not, and no more."""
    config = config_for({"plain": ["http://127.0.0.1:9"]}, limits={"max_body_bytes": 1000})
    body = b'{"model": "demo", "prompt": "%s"}'
    async with serving(config) as gateway, httpx.AsyncClient(headers=OPERATOR) as client:
        found = [
            await client.post(
                f"{gateway.url}/draftlane/explain",
                content=gzip.compress(body % text) if coding == "gzip" else body % text,
                headers={"content-encoding": coding},
            )
            for text in (b"x", b"x" * 1000)
        ]

    assert [answer.status_code for answer in found] == [200, 413]
