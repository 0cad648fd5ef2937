"""The HTTP edge under a client that does anything in any order: it is always answered or closed, and engines stay clean."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fakes import ANSWER, CHAT, CHAT_EVENTS, DONE, ScriptedEngine, reply, scripted, sse
from harness import Running, config_for, serving
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

T = TypeVar("T")
HEAD = b"host: x\r\nauthorization: Bearer sk-test\r\n"
PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
}
BODIES = st.one_of(
    st.just(json.dumps(CHAT).encode()),
    st.just(json.dumps({**CHAT, "stream": True}).encode()),
    st.binary(max_size=40),
    st.text(max_size=20).map(lambda text: json.dumps({**CHAT, "model": text}).encode()),
)


class Background:
    """A gateway and its engine on an event loop in a thread of their own, so that tests may block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._opened = AsyncExitStack()
        self.engine: ScriptedEngine
        self.gateway: Running
        self.run(self._open)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(20)

    async def _open(self) -> None:
        self.engine = await self._opened.enter_async_context(scripted([reply(ANSWER)], sse(*CHAT_EVENTS, DONE)))
        config = config_for(
            {"plain": [self.engine.url]},
            limits={"header_seconds": 0.5, "max_header_bytes": 4096, "max_body_bytes": 65536},
        )
        self.gateway = await self._opened.enter_async_context(serving(config))

    def close(self) -> None:
        """Stop everything."""
        self.run(self._opened.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Edge(RuleBasedStateMachine):
    """Connections that send heads, bodies, halves and nonsense, in any order and side by side."""

    connections = Bundle("connections")

    it: Background  # one for all lives, as a gateway outlives its clients

    def __init__(self) -> None:
        super().__init__()
        self.open: list[socket.socket] = []

    @initialize(target=connections)
    def first(self) -> socket.socket:
        """There is a connection to begin with."""
        return self._connect()

    @rule(target=connections)
    def connect(self) -> socket.socket:
        """One more client comes."""
        return self._connect()

    @rule(connection=connections, path=st.sampled_from(sorted(PATHS)), body=BODIES)
    def ask(self, connection: socket.socket, path: str, body: bytes) -> None:
        """A whole request, right or wrong."""
        self._send(
            connection, b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), HEAD, len(body), body)
        )

    @rule(connection=connections, cut=st.integers(1, 120))
    def ask_in_part(self, connection: socket.socket, cut: int) -> None:
        """The beginning of a request; whatever comes next on this connection is its rest."""
        body = json.dumps(CHAT).encode()
        whole = b"POST /v1/chat/completions HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (HEAD, len(body), body)
        self._send(connection, whole[:cut])

    @rule(connection=connections, body=BODIES, size=st.integers(1, 9))
    def ask_in_chunks(self, connection: socket.socket, body: bytes, size: int) -> None:
        """A request whose body has no length."""
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        self._send(
            connection,
            b"POST /v1/chat/completions HTTP/1.1\r\n"
            + HEAD
            + b"transfer-encoding: chunked\r\n\r\n"
            + chunks
            + b"0\r\n\r\n",
        )

    @rule(connection=connections, nonsense=st.binary(min_size=1, max_size=60))
    def babble(self, connection: socket.socket, nonsense: bytes) -> None:
        """Bytes that mean nothing."""
        self._send(connection, nonsense)

    @rule(connection=connections)
    def smuggle(self, connection: socket.socket) -> None:
        """A request that hides another one in its body."""
        hidden = b"POST /engine/faults HTTP/1.1\r\nhost: x\r\n\r\n"
        self._send(
            connection,
            b"POST /v1/chat/completions HTTP/1.1\r\n%bcontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n%b"
            % (HEAD, len(hidden) + 5, hidden),
        )

    @rule(connection=connections, size=st.integers(1, 4000))
    def read(self, connection: socket.socket, size: int) -> None:
        """The client reads what there is."""
        connection.setblocking(False)
        try:
            connection.recv(size)
        except OSError:
            return
        finally:
            connection.settimeout(5)

    @rule(connection=consumes(connections))
    def leave(self, connection: socket.socket) -> None:
        """The client goes."""
        connection.close()

    @invariant()
    def health_is_told(self) -> None:
        """Whatever others do, health is answered."""
        with socket.create_connection(("127.0.0.1", self.it.gateway.port), timeout=5) as asking:
            asking.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert asking.recv(1000).startswith(b"HTTP/1.1 200 ")

    @invariant()
    def engines_see_whole_calls_only(self) -> None:
        """What reached an engine is one of the paths that pass, with a body that is JSON and no credential of the client."""
        while self.it.engine.seen:
            seen = self.it.engine.seen.pop()
            assert (seen.method, seen.target in PATHS) == ("POST", True)
            assert seen.header("authorization") is None

    def teardown(self) -> None:
        """When all have left, nothing is in hand any more."""
        for connection in self.open:
            connection.close()
        self.it.run(self._at_rest)

    async def _at_rest(self) -> None:
        live = self.it.gateway.gateway
        async with asyncio.timeout(10):
            while live.api.running or any(pool.running for pool in live.pipeline.live.pools):
                await asyncio.sleep(0.01)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.it.gateway.port), timeout=5)
        self.open.append(connection)
        return connection

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
        except OSError:  # refused before
            return


class TestEdge(Edge.TestCase):  # type: ignore[name-defined,misc]
    """Thirty clients' lives of up to thirty steps."""

    settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

    @classmethod
    def setUpClass(cls) -> None:
        """Start the gateway."""
        Edge.it = Background()

    @classmethod
    def tearDownClass(cls) -> None:
        """Stop it."""
        Edge.it.close()
