"""Compressed request bodies: unpacked within bounds, whatever they claim to hold."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.encoding import unpack
from gateway.errors import BadRequest, TooLarge

LIMIT = 1000
PACKERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
}


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_body_comes_out_as_it_went_in(encoding: bytes, size: int) -> None:
    """Up to the limit, and with the name of the encoding in any case, unpacking undoes packing."""
    plain = bytes(range(256)) * 4

    assert unpack(PACKERS[encoding](plain[:size]), b" " + encoding.upper(), LIMIT) == plain[:size]


@pytest.mark.parametrize("encoding", [b"", b"identity", b" Identity "])
def test_a_plain_body_is_the_same_object(encoding: bytes) -> None:
    """Nothing is done where nothing was encoded."""
    body = b"{}"

    assert unpack(body, encoding, LIMIT) is body


@pytest.mark.parametrize("encoding", PACKERS)
def test_one_byte_too_much_is_too_large(encoding: bytes) -> None:
    """The limit bounds what the body unpacks to."""
    with pytest.raises(TooLarge) as caught:
        unpack(PACKERS[encoding](bytes(LIMIT + 1)), encoding, LIMIT)

    assert caught.value.status == 413


@pytest.mark.parametrize("encoding", PACKERS)
def test_a_bomb_costs_no_more_than_the_limit(encoding: bytes) -> None:
    """A body of 20 KB that unpacks to 20 MB is refused without being unpacked."""
    bomb = PACKERS[encoding](bytes(20 * 1024 * 1024))
    limit = 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpack(bomb, encoding, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(bomb) < 30_000
    assert peak < 3 * limit


def test_a_bomb_in_a_bomb_is_no_request() -> None:
    """What is packed twice is unpacked once: the inner bomb stays what it is, some bytes that are no JSON."""
    inner = gzip.compress(bytes(100_000))

    assert unpack(gzip.compress(inner), b"gzip", LIMIT) == inner


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip;q=1", b"x" * 1000])
def test_other_encodings_are_refused_by_name(encoding: bytes) -> None:
    """What is not served is a 400 that says what is."""
    with pytest.raises(BadRequest, match="use gzip") as caught:
        unpack(b"x", encoding, LIMIT)

    assert caught.value.param == "content-encoding"
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        gzip.compress(b"x" * 500)[:-1],
        gzip.compress(b"x" * 500)[:12],
        gzip.compress(b"x")[:-8] + bytes(8),
        gzip.compress(b'{"a":1}') + gzip.compress(b'{"b":2}'),
        gzip.compress(b"{}") + b"junk",
    ],
    ids=["empty", "plain", "cut", "cut at the head", "wrong checksum", "two members", "junk behind"],
)
def test_bytes_that_are_not_in_the_encoding_are_refused(body: bytes) -> None:
    """A body that is no gzip, is cut, corrupt or goes on behind its end is a 400, never half a request."""
    with pytest.raises(BadRequest) as caught:
        unpack(body, b"gzip", LIMIT)

    assert caught.value.code == "invalid_encoding"


@given(st.binary(max_size=200), st.sampled_from(sorted(PACKERS)))
def test_no_bytes_do_more_than_be_refused(body: bytes, encoding: bytes) -> None:
    """Whatever bytes come, they are unpacked, or refused as the client's mistake."""
    try:
        assert len(unpack(body, encoding, LIMIT)) <= LIMIT
    except (BadRequest, TooLarge) as error:
        refused = error.fault
    else:
        refused = "client"
    assert refused == "client"
