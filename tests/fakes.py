"""Scripted engines: tiny HTTP/1.1 servers on real sockets that answer as a test tells them and record what reached them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

# One answer, played step by step: bytes are written, a number is a pause in seconds, CLOSE ends the connection with FIN and
# RESET with RST, SILENCE waits until the other side has left. An answer without CLOSE or RESET keeps the connection.
CLOSE: Literal["close"] = "close"
RESET: Literal["reset"] = "reset"
SILENCE: Literal["silence"] = "silence"
Step = bytes | float | Literal["close", "reset", "silence"]
Script = Sequence[Step]


@dataclass(slots=True)
class Seen:
    """One request as it reached the engine; `left` turns true when the other side closes before the answer's end."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    left: bool = False
    written: int = 0

    def header(self, name: str) -> str | None:
        """Return the value of a header, None when it is absent."""
        return next((value for found, value in self.headers if found == name), None)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass(slots=True)
class ScriptedEngine:
    """An engine that plays one script per request, the last one again and again.

    Health checks and scrapes are answered by `health`, the latter by `page` where there is one, and are neither recorded nor
    count as requests.
    """

    scripts: list[Script]
    health: int = 200
    page: bytes = b""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    open: dict[asyncio.Task[Any], asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The engine's origin."""
        return f"http://127.0.0.1:{self.port}"

    def then(self, *scripts: Script) -> None:
        """Replace what is still to be played."""
        self.scripts[:] = map(list, scripts)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until one side ends it."""
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        self.open[task] = writer
        try:
            while (seen := await _read_request(reader, number)) is not None:
                if seen.target in {"/health", "/metrics"}:
                    scraped = self.page if seen.target == "/metrics" else b""
                    writer.write(scraped or b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % self.health)
                    continue
                self.seen.append(seen)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                if not await _play(script, seen, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del self.open[task]
            writer.close()

    async def stop(self) -> None:
        """Cut every connection."""
        open_now = dict(self.open)
        for writer in open_now.values():
            writer.transport.abort()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Seen(method, target, headers, await reader.readexactly(length), connection)


async def _play(script: Script, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Play an answer; return whether the connection goes on."""
    try:
        for step in script:
            if step == CLOSE:
                return False
            if step == RESET:
                # an abort sends RST only where bytes lie unread; without lingering it always does
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            if step == SILENCE:
                seen.left = not await reader.read(1)
                return False
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                seen.written += len(step)
            elif isinstance(step, float | int):
                await asyncio.sleep(step)
    except ConnectionError:
        seen.left = True
        return False
    return True


@asynccontextmanager
async def scripted(*scripts: Script, health: int = 200, page: bytes = b"") -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine until the block ends."""
    engine = ScriptedEngine([list(script) for script in scripts], health, page)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        await engine.stop()


def reply(
    body: bytes | Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> bytes:
    """Return a whole response with a length."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    if close:
        found["connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in found.items())
    return f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode() + content


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def slowly(*writes: bytes) -> Script:
    """Return a stream whose body's bytes are written in these pieces, with a moment between them."""
    return [SSE_HEAD, *(step for data in writes for step in (data, 0.005))]


def chunk(data: bytes) -> bytes:
    """Return bytes as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def sse(*events: bytes) -> list[Step]:
    """Return the script of a whole stream, each event in a chunk and a write of its own."""
    return [SSE_HEAD, *(chunk(event) for event in events), END]


def event(**fields: Any) -> bytes:
    """Return one SSE event as vLLM writes it: compact JSON after `data: `."""
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def delta(content: str, *, finish: str | None = None, **fields: Any) -> bytes:
    """Return one chat completion event that carries text."""
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    return event(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="demo", choices=[choice], **fields)


ROLE = event(
    id="chatcmpl-1",
    object="chat.completion.chunk",
    created=1,
    model="demo",
    choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
)
USAGE_COUNTS = {"prompt_tokens": 9, "total_tokens": 15, "completion_tokens": 6}
USAGE = event(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="demo", choices=[], usage=USAGE_COUNTS)
DONE = b"data: [DONE]\n\n"
CHAT_EVENTS = (ROLE, delta("Grüße"), delta(" an"), delta(" 世界"), delta(" 🎉", finish="stop"))
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "demo",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüße an 世界 🎉"}, "finish_reason": "stop"}],
    "usage": USAGE_COUNTS,
}


def refusal(message: str, status: int = 400, kind: str = "BadRequestError", **fields: Any) -> bytes:
    """Return an error reply as vLLM writes it."""
    return reply({"error": {"message": message, "type": kind, "param": None, "code": status, **fields}}, status)


@dataclass(slots=True)
class Answer:
    """A response as a client's socket got it; `whole` is false when the connection ended inside the message."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool
    raw: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header, None when it is absent."""
        return next((value for found, value in self.headers if found == name), None)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object."""
        found: dict[str, Any] = self.json["error"]
        return found


@dataclass(slots=True)
class Visitor:
    """A plain client on one connection, which sends bytes as they are and reads one response at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """Read a response's status line and headers."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body, b"" for the last."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def until(self, mark: bytes) -> bytes:
        """Read chunks until their data ends with a mark; return it all."""
        data = b""
        while not data.endswith(mark):
            data += await self.chunk()
        return data

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one response, whole or as far as it came."""
        raw = await self.head()
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        named = dict(headers)
        body, whole = bytearray(), True
        try:
            if bodiless:
                pass
            elif named.get("transfer-encoding") == "chunked":
                while part := await self.chunk():
                    body += part
            elif "content-length" in named:
                body += await self.reader.readexactly(int(named["content-length"]))
            else:
                body += await self.reader.read()
        except asyncio.IncompleteReadError as cut:
            body += cut.partial
            whole = False
        except (ValueError, ConnectionError):
            whole = False
        return Answer(int(first.split(" ")[1]), headers, bytes(body), whole, raw + bytes(body))

    async def ended(self) -> bool:
        """Wait until the other side closes; whether nothing more came."""
        try:
            return not await self.reader.read()
        except ConnectionError:
            return True

    def leave(self) -> None:
        """Close at once."""
        self.writer.transport.abort()


@asynccontextmanager
async def visitor(port: int, **options: Any) -> AsyncIterator[Visitor]:
    """Connect to a port of this machine until the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    try:
        yield Visitor(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(body: bytes | Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """Return a POST request; keyword `content_type` becomes the header `content-type`, an empty value leaves one out."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = {
        "host": "gateway",
        "authorization": "Bearer sk-test",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in found.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Count from 1 to 9."}]}
STREAM: dict[str, Any] = {**CHAT, "stream": True}
