"""Unpacking compressed request bodies within bounds. Pure."""

from __future__ import annotations

import zlib

from gateway.errors import BadRequest, TooLarge

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def unpack(body: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """Return the body as it was before `content-encoding`.

    Raises:
        BadRequest: an encoding that is not served, or bytes that are not in it. TooLarge: over `max_bytes` when unpacked.
    """
    encoding = encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return body
    window = _WINDOW.get(encoding)
    if window is None:
        name = encoding.decode("latin-1")[:40]
        raise BadRequest(
            f"'content-encoding: {name}' is not supported; use gzip, deflate or none.",
            param="content-encoding",
            code="unsupported_encoding",
        )
    unpacker = zlib.decompressobj(window)
    try:
        plain = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _broken(f"is not valid: {error}") from None
    if len(plain) > max_bytes:
        raise TooLarge(f"The unpacked request body is over {max_bytes} bytes.", code="request_too_large")
    if not unpacker.eof:
        raise _broken("is cut short")
    if unpacker.unused_data:
        raise _broken("goes on behind its end")
    return plain


def _broken(what: str) -> BadRequest:
    return BadRequest(f"The compressed request body {what}.", param="content-encoding", code="invalid_encoding")
