"""Where two pools' answers part: the first prompt whose answers differ, asked once more on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import httpx
import msgspec

from gateway.measure.load.answer import endpoint_of
from gateway.measure.load.sending import Endpoint, Timeouts, body_of, open_client
from gateway.measure.load.trace import Request
from gateway.measure.paired.result import Difference

_SHOWN: Final = 40  # characters of each text from where they part, and half as many before


def parted(found: Difference, first: str, second: str) -> Difference:
    """Return the difference with the place where two texts part; as it was where they are equal after all."""
    if first == second:
        return found
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    begin = max(0, at - _SHOWN // 2)
    return msgspec.structs.replace(found, character=at, texts=(first[begin : at + _SHOWN], second[begin : at + _SHOWN]))


async def look(
    found: Difference, requests: Sequence[Request], endpoints: tuple[Endpoint, Endpoint], timeouts: Timeouts
) -> Difference:
    """Ask both endpoints once more and return where their answers part; as it was where they do not say."""
    request = next((one for one in requests if (one.line, one.id) == (found.line, found.id)), None)
    if request is None:
        return found
    async with open_client() as client:
        texts = [await _text(client, endpoint, request, timeouts) for endpoint in endpoints]
    return found if texts[0] is None or texts[1] is None else parted(found, texts[0], texts[1])


async def _text(client: httpx.AsyncClient, endpoint: Endpoint, request: Request, timeouts: Timeouts) -> str | None:
    kind = endpoint_of(request.path)
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    body = body_of(request.body, kind, endpoint.model, stream=False)
    try:
        response = await client.post(
            endpoint.origin + request.path, json=body, headers=headers, timeout=timeouts.silence
        )
        return _of(response.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError, OSError):
        return None


def _of(answer: Mapping[str, Any]) -> str:
    choice = answer["choices"][0]
    message = choice.get("message")
    if message is None:
        return str(choice["text"])
    content = message.get("content")
    return content if isinstance(content, str) else msgspec.json.encode(message, order="sorted").decode()
