"""What is fuzzed: each target takes bytes, and raises when a law is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from classifier.scorer import Scorer
from classifier.view import View
from gateway import splice, sse, usage, verdict, wire
from gateway.encoding import unpack
from gateway.errors import GatewayError
from gateway.hygiene import headers_for_engine, passes, request_id_of
from gateway.rejoin import Diverged, Rejoin, Told
from gateway.sse import EventTooLarge, Reader

Target = Callable[[bytes], None]
_ENDPOINTS: Final[tuple[wire.Endpoint, ...]] = ("chat", "completions", "responses", "messages")
_MOST: Final = 4096
_scorer: Final = Scorer.load()


def body(data: bytes) -> None:
    """A body is refused by an error of ours, or forwarded with nothing changed but the model's name and the wish for usage."""
    for endpoint in _ENDPOINTS:
        try:
            call = wire.parse(data, endpoint)
        except GatewayError as error:
            _client_s(error)
            continue
        assert call.body_for(call.model) == data or call.adds_usage
        sent, meant = _loaded(call.body_for("other")), _loaded(data)
        assert sent["model"] == "other"
        for name in meant.keys() - {"model", "stream_options"}:
            assert sent[name] == meant[name], name
        score = _scorer.score(call.view)
        assert 0.0 <= score.value <= 1.0
        assert score.acceptance_length >= 1.0


def view(data: bytes) -> None:
    """Whatever a JSON object holds, the classifier reads it and scores it."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    if isinstance(found, dict):
        for endpoint in _ENDPOINTS:
            score = _scorer.score(View.of(found, endpoint))
            assert 0.0 <= score.value <= 1.0


def stream(data: bytes) -> None:
    """However reads cut a stream, nothing is forwarded that did not come, in another order, or twice."""
    for endpoint in ("chat", "responses"):
        for pieces in ([data], [data[at : at + 7] for at in range(0, len(data), 7)]):
            forwarded = _forwarded(endpoint, pieces)
            assert forwarded is None or _is_within(forwarded, data)
    usage.read(data)
    sse.opens(data)
    sse.fails(data)


def rejoined(data: bytes) -> None:
    """An answer that goes on from any events, with any events, is either refused or holds all of the first one's text."""
    first, _, second = data.partition(b"\0")
    told = Told()
    told.keep(first)
    try:
        Rejoin(told).feed(second)
    except Diverged:
        return


def packed(data: bytes) -> None:
    """Compressed bodies unpack within bounds or are refused."""
    for encoding in (b"gzip", b"deflate", b"identity", data[:20]):
        try:
            assert len(unpack(data, encoding, _MOST)) <= max(_MOST, len(data))
        except GatewayError as error:
            _client_s(error)


def heads(data: bytes) -> None:
    """What reaches an engine of any headers holds no credential and no line break that was not there; ids are plain."""
    lines = [line.partition(b":")[::2] for line in data.split(b"\n")]
    headers = [(name.strip().lower(), value.strip()) for name, value in lines]
    request_id = request_id_of(headers)
    assert request_id.isprintable()
    assert len(request_id) <= 128
    for name, _ in headers_for_engine(headers, request_id):
        assert name not in {b"authorization", b"cookie", b"x-api-key", b"host", b"transfer-encoding"}
    assert not (passes(data) and (b"/." in data or b"//" in data or b"%" in data))
    judged = verdict.judge(429, headers, data, speculative=True, now=0.0)
    assert 0.0 <= judged.cool_seconds <= verdict.LONGEST_COOL_SECONDS
    verdict.judge(400, headers, data, speculative=True, now=0.0)


def rename(data: bytes) -> None:
    """Bodies of other paths keep all but the model's name."""
    name = splice.named_model(data)
    if name is not None:
        assert splice.named_model(splice.rename_model(data, "other")) == "other"


TARGETS: Final[dict[str, Target]] = {
    target.__name__: target for target in (body, view, stream, rejoined, packed, heads, rename)
}


def _client_s(error: GatewayError) -> None:
    """A refusal blames the client, and tells it why."""
    assert 400 <= error.status < 500, error
    assert json.loads(error.body())["error"]["message"]


def _loaded(data: bytes) -> dict[str, Any]:
    """Return an object of which only the names at the top are decoded; of doubled ones the last counts, as in engines."""
    found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return {name: msgspec.json.decode(raw) if name == "model" else bytes(raw) for name, raw in found.items()}


def _is_within(part: bytes, whole: bytes) -> bool:
    """Whether `part` is `whole` with some events left out."""
    at = 0
    for event in sse.events(part):
        at = whole.find(event, at)
        if at < 0:
            return False
        at += len(event)
    return True


def _forwarded(endpoint: str, pieces: list[bytes]) -> bytes | None:
    """Return what a client gets of these reads, None when an event is too large."""
    reader = Reader(endpoint, strip_usage=True, max_event_bytes=_MOST)
    try:
        return b"".join([*(reader.feed(piece) for piece in pieces), reader.rest()])
    except EventTooLarge:
        return None
