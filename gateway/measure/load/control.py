"""What is asked of an endpoint beside the measured calls: its models before a run, and a gateway's receipts after each call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import httpx
from msgspec.structs import replace

from gateway.measure.load.answer import message_of
from gateway.measure.load.sample import Sample
from gateway.measure.load.sending import Endpoint

_WAIT: Final = 10.0  # seconds for an answer of the control plane
_TRIES: Final = 5  # a receipt is written when the call has ended on the gateway's side too
_PAUSE: Final = 0.05
_SHOWN: Final = 8


class EndpointError(Exception):
    """The endpoint is not there or does not take the key; the message says what to do."""


class WrongModel(Exception):
    """The endpoint has no such model, or it is open which one is meant; the message says what to do."""


async def models(client: httpx.AsyncClient, endpoint: Endpoint, *, option: str = "--to") -> tuple[str, ...]:
    """Return the models that an endpoint lists; none where it has no such list. `option` is what names the endpoint.

    Raises:
        EndpointError: nothing answers there, or the key is refused.
    """
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    try:
        response = await client.get(endpoint.origin + "/v1/models", headers=headers, timeout=_WAIT)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        raise EndpointError(f"{endpoint.url}: {reason}; start the endpoint, or name another with {option}") from error
    if response.status_code in (401, 403):
        raise EndpointError(f"{endpoint.url}: {message_of(response.content)} Name a key that it takes with --key-env")
    try:
        found = response.json()["data"] if response.status_code == httpx.codes.OK else []
        return tuple(str(card["id"]) for card in found)
    except (ValueError, KeyError, TypeError):
        return ()


def check_models(endpoint: Endpoint, wanted: Mapping[str, int], served: Iterable[str]) -> str | None:
    """Return the model for requests that name none; `wanted` are the trace's models, "" for none, with a line of each.

    Raises:
        WrongModel: a model is not served, or it is open which one is meant.
    """
    there = tuple(served)
    shown = ", ".join(there[:_SHOWN]) + (f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else "")
    for name, line in wanted.items():
        if there and name and name not in there:
            raise WrongModel(
                f"line {line}: model {name!r} is not served by {endpoint.url}, which has {shown}; name one with --model"
            )
    if "" not in wanted or len(there) == 1:
        return there[0] if "" in wanted else None
    several = f"{endpoint.url} has {shown}" if there else f"{endpoint.url} lists none"
    raise WrongModel(f"line {wanted['']}: no model, and {several}; name one with --model")


class Receipts:
    """A gateway's receipts, which tell what each call cost and how well it was speculated; read with the admin key."""

    def __init__(self, client: httpx.AsyncClient, url: str, key: str) -> None:
        self._client = client
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/draftlane/receipts/"
        self._headers = {"authorization": f"Bearer {key}"}
        self.missing = 0

    async def settle(self, sample: Sample) -> Sample:
        """Return the sample with its receipt's cost, and its acceptance where the answer told none."""
        if sample.request_id is None or not sample.status:
            return sample
        receipt = await self._get(sample.request_id)
        if receipt is None:
            self.missing += 1
            return sample
        cost = receipt.get("cost_usd")
        found = replace(sample, cost_usd=cost if isinstance(cost, int | float) else sample.cost_usd)
        if (
            found.acceptance_length is None
            and receipt.get("source") in ("engine", "events")
            and not receipt.get("biased")
        ):
            found = replace(found, acceptance_length=receipt["acceptance"], acceptance_source=receipt["source"])
        return found

    async def _get(self, request_id: str) -> dict[str, Any] | None:
        for tried in range(_TRIES):
            await asyncio.sleep(_PAUSE * tried)
            try:
                response = await self._client.get(self._url + request_id, headers=self._headers, timeout=_WAIT)
                if response.status_code == httpx.codes.OK:
                    found: dict[str, Any] = response.json()
                    return found
                if response.status_code != httpx.codes.NOT_FOUND:
                    return None
            except (httpx.HTTPError, ValueError):
                return None
        return None
