"""What of a client's request reaches an engine: which headers, which paths, under which request id. Pure.

No credential, cookie, hop-by-hop or own header of a client passes. `accept-encoding` does not either: engines answer
plainly, so that events can be counted as they pass.
"""

from __future__ import annotations

import random
import re

from gateway.headers import Header, Headers, values, without

_STRIPPED = frozenset(
    {
        b"authorization",
        b"proxy-authorization",
        b"api-key",
        b"x-api-key",
        b"ocp-apim-subscription-key",  # other clouds' names for a key
        b"x-goog-api-key",
        b"x-auth-token",
        b"cookie",
        b"forwarded",  # where the client sits is not the engine's business, and uvicorn there would believe it
        b"via",
        b"x-real-ip",
        b"host",
        b"content-length",
        b"content-encoding",  # bodies are forwarded unpacked
        b"accept-encoding",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"x-request-id",
    }
)
_STRIPPED_BEGINNINGS = (b"x-draftlane-", b"x-forwarded-")
_CONNECTION_OPTIONS = frozenset({b"keep-alive", b"close"})  # of one word, that names no header
# No dot segments, no empty ones and nothing escaped: whatever an engine makes of a path, it makes the same as we do.
_PASSES = re.compile(rb"/v1(?:/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*+)++")
# They make vLLM load what the caller names: that is for whoever runs the engines.
_OPERATORS_ONLY = frozenset({b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")


def headers_for_engine(headers: Headers, request_id: str) -> list[Header]:
    """Return the headers to forward and the request id; what Connection lists is hop-by-hop too (RFC 9110 §7.6.1)."""
    kept = without(headers, _STRIPPED, _STRIPPED_BEGINNINGS)
    for listed in values(headers, b"connection"):
        if listed not in _CONNECTION_OPTIONS:
            kept = without(kept, {token.strip().lower() for token in listed.split(b",")}, ())
    kept.append((b"x-request-id", request_id.encode()))
    return kept


def passes(raw_path: bytes) -> bool:
    """Whether a path that is none of the gateway's own may be asked of an engine."""
    return _PASSES.fullmatch(raw_path) is not None and raw_path not in _OPERATORS_ONLY


def request_id_of(headers: Headers) -> str:
    """Return the client's request id when it is short and plain, else a new one."""
    for value in values(headers, b"x-request-id"):
        if _REQUEST_ID.fullmatch(value):
            return value.decode()
    return f"req-{random.getrandbits(96):024x}"
