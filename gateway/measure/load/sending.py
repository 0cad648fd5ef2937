"""One measured call: sent, read as fast as it comes, timed, and told as a Sample, whatever the endpoint does.

Times are taken when bytes arrive and before they are looked at. httpx takes some 100 µs of a core per event and 1 to 2 ms per
call: 64 streams of 50 events a second are a third of a core. `busy.py` notices a sender that is too slow to be believed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec

from gateway import observation, sse, usage
from gateway.measure.load.answer import Answer, endpoint_of, message_of
from gateway.measure.load.sample import Sample
from gateway.measure.load.trace import Request

# Steps that httpcore tells of, after which a call costs no more of the sender's time until an answer comes.
_ON_ITS_WAY: Final = frozenset({"connection.connect_tcp.started", "http11.send_request_body.complete"})
_COUNTS: Final = frozenset({"chat", "completions"})  # endpoints that tell usage on streams only when asked
_MAX_EVENT: Final = 16 << 20
_MAX_ERROR: Final = 1 << 16  # bytes of an error's body that are read
_IDLE: Final = (
    2.0  # seconds that a connection is kept: less than servers do (5 in uvicorn), so that none is met closing
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What is measured: a label, an origin (a trailing /v1 is allowed), a key, and what a slot of it costs.

    `price_per_hour` is US dollars for a replica of `slots` concurrent requests; `headers` go along with every call.
    """

    name: str
    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    price_per_hour: float | None = None
    slots: int = 1
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def origin(self) -> str:
        """The URL without a trailing slash or /v1, which paths begin with."""
        return self.url.rstrip("/").removesuffix("/v1")

    def cost(self, seconds: float) -> float | None:
        """Return what a slot costs for so many seconds."""
        return None if self.price_per_hour is None else self.price_per_hour / self.slots * seconds / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds until a call is given up: to connect, between two pieces of an answer (the first included), in all."""

    connect: float = 5.0
    silence: float = 300.0
    total: float = 3600.0


class Client(httpx.AsyncClient):
    """A client that measures well: no proxies, no cookies, no waiting for a free connection, one call after the other sent.

    Calls that begin together would each have begun before the work of sending all of them is done, and the endpoint would be
    charged for the sender's time. So they take turns, and each one's clock begins with its turn.
    """

    def __init__(self, connections: int | None = None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=connections, keepalive_expiry=_IDLE)
        super().__init__(limits=limits, trust_env=False, follow_redirects=False, timeout=Timeouts().silence)
        self.turn = asyncio.Lock()


def open_client(connections: int | None = None) -> Client:
    """Return a client for measured calls; `connections` is how many it keeps open between them, None for all."""
    return Client(connections)


async def measure(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    request: Request,
    *,
    repeat: int = 0,
    stream: bool = True,
    timeouts: Timeouts | None = None,
) -> Sample:
    """Send one request and return what it gave; whatever the endpoint does is told in the sample, never raised."""
    call = _Call(endpoint, request, stream=stream)
    limits = timeouts or Timeouts()
    try:
        async with asyncio.timeout(limits.total):
            await call.run(client, limits)
    except TimeoutError:
        call.fail("timeout", f"no end after {limits.total:g} s")
    except httpx.TimeoutException as error:
        connecting = isinstance(error, httpx.ConnectTimeout)
        call.fail(
            "timeout", f"no connection after {limits.connect:g} s" if connecting else f"silent for {limits.silence:g} s"
        )
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError, OSError) as error:
        call.fail("broken" if call.sent else "connect", str(error) or type(error).__name__)
    except sse.EventTooLarge as error:
        call.fail("malformed", str(error))
    return call.sample(repeat)


class _Call:
    """The state of one call between sending and its sample."""

    def __init__(self, endpoint: Endpoint, request: Request, *, stream: bool) -> None:
        self.endpoint, self.request = endpoint, request
        self.kind = endpoint_of(request.path)
        self.streams = stream and self.kind != "other"
        self.content = msgspec.json.encode(body_of(request.body, self.kind, endpoint.model, stream=self.streams))
        self.answer = Answer(self.kind)
        self.reader: sse.Reader | None = None
        self.usage: usage.Usage | None = None
        self.speculation: usage.Speculation | None = None
        self.headers: Mapping[str, str] = {}
        self.status = 0
        self.sent = False  # something of an answer has come
        self.error: str | None = None
        self.started = time.time()
        self._begun = self._last = time.perf_counter()
        self._first: float | None = None

    def fail(self, kind: str, detail: str) -> None:
        """Note what went wrong; what has been noted first stands."""
        self._last = time.perf_counter()
        self.error = self.error or f"{kind}: {detail}"

    async def run(self, client: httpx.AsyncClient, limits: Timeouts) -> None:
        """Send the request and read the answer."""
        headers = {"content-type": "application/json", "accept-encoding": "identity", **dict(self.endpoint.headers)}
        if self.endpoint.key:
            headers["authorization"] = f"Bearer {self.endpoint.key}"
        timeout = httpx.Timeout(connect=limits.connect, read=limits.silence, write=limits.silence, pool=None)
        url = self.endpoint.origin + self.request.path
        request = client.build_request("POST", url, content=self.content, headers=headers, timeout=timeout)
        response = await self._send(client, request)
        try:
            self.sent, self._last = True, time.perf_counter()
            self.status, self.headers = response.status_code, response.headers
            if response.status_code >= 300:
                await self._read_refusal(response)
            elif "text/event-stream" in response.headers.get("content-type", ""):
                await self._read_stream(response)
            else:
                await self._read_whole(response)
        finally:
            await response.aclose()

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Send the request in its turn, which ends when it is on its way or waits for a connection."""
        turn = client.turn if isinstance(client, Client) else asyncio.Lock()
        await turn.acquire()
        ours = True

        async def passed(step: str, _: object) -> None:
            nonlocal ours
            if ours and step in _ON_ITS_WAY:
                ours = False
                turn.release()

        request.extensions = {**request.extensions, "trace": passed}
        self.started, self._begun = time.time(), time.perf_counter()
        try:
            return await client.send(request, stream=True)
        finally:
            if ours:
                turn.release()

    async def _read_stream(self, response: httpx.Response) -> None:
        reader = self.reader = sse.Reader(self.kind, strip_usage=False, max_event_bytes=_MAX_EVENT)
        async for data in response.aiter_raw():
            now = time.perf_counter()
            if whole := reader.feed(data):
                self._last = now
                if self._first is None and sse.opens(whole):
                    self._first = now
                self._take(whole)
        self.usage, self.speculation = reader.usage, reader.speculation
        if reader.failed:
            self.error = f"stream: {self.answer.error or 'an error event'}"
        elif not (reader.ended or reader.finished):
            self.fail("broken", "the stream ended before the answer did")

    def _take(self, events: bytes) -> None:
        try:
            self.answer.events(events)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.error = self.error or f"malformed: an event is no JSON of this endpoint ({error})"

    async def _read_whole(self, response: httpx.Response) -> None:
        pieces: list[bytes] = []
        async for data in response.aiter_raw():
            self._last = time.perf_counter()
            pieces.append(data)
        body = b"".join(pieces)
        told = usage.read(body)
        self.usage, self.speculation = told.usage, told.speculation
        try:
            self.answer.body(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.error = f"malformed: the answer is no JSON of this endpoint ({error})"

    async def _read_refusal(self, response: httpx.Response) -> None:
        body = b""
        async for data in response.aiter_raw():
            self._last = time.perf_counter()
            body = (body + data)[:_MAX_ERROR]
        self.error = f"http {self.status}: {message_of(body)}"

    def sample(self, repeat: int) -> Sample:
        """Return what the call gave."""
        seconds = self._last - self._begun
        observed = self._observe()
        told = observed.acceptance is not None and not observed.biased.replace("short", "")
        source = observed.source if observed.source in ("engine", "events") else None
        return Sample(
            line=self.request.line,
            id=self.request.id,
            category=self.request.category,
            tenant=self.request.tenant,
            target=self.endpoint.name,
            pool=self.headers.get("x-draftlane-pool"),
            repeat=repeat,
            started=self.started,
            status=self.status,
            error=self.error,
            ttft_seconds=None if self._first is None else self._first - self._begun,
            e2e_seconds=seconds,
            prompt_tokens=self.usage.prompt_tokens if self.usage else None,
            completion_tokens=self.usage.completion_tokens if self.usage else None,
            events=self._token_events(),
            acceptance_length=observed.acceptance if told else None,
            acceptance_source=source if told else None,
            cost_usd=self.endpoint.cost(seconds) if self.status else None,
            output_sha256=self.answer.digest if self.error is None else "",
            request_id=self.headers.get("x-request-id"),
            reason=self.headers.get("x-draftlane-reason"),
            finish=self.answer.finish,
        )

    def _token_events(self) -> int:
        return 0 if self.reader is None else max(self.reader.events - self.reader.silent_first, 0)

    def _observe(self) -> observation.Observation:
        """Read acceptance as the gateway does; the window is not known here, so nothing lies above it."""
        several = self.request.body.get("n") not in (None, 1)
        if self.error is not None or (several and self.speculation is None):
            return observation.Observation()
        return observation.observe(
            observation.Evidence(
                usage=self.usage,
                speculation=self.speculation,
                token_events=self._token_events(),
                streamed=self.reader is not None,
                decode_seconds=None,
                step_seconds_expected=1.0,
                window=_MAX_EVENT,
                several=several,
                swallowed=self.reader.swallowed if self.reader else False,
                lagging=False,
            )
        )


def body_of(body: Mapping[str, Any], kind: str, model: str | None, *, stream: bool) -> dict[str, Any]:
    """Return the body as it is sent: streamed with its usage told, or in one piece; of the endpoint's model if it names one."""
    found = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    if model is not None:
        found["model"] = model
    if stream:
        found["stream"] = True
        options = body.get("stream_options")
        if kind in _COUNTS:
            found["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return found
