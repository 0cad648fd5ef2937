"""A blind relay: bytes from each client to the engine and back; what it parses of a request, it throws away.

    python -m bench.reference PORT ENGINE_PORT

It is what the gate measures against in the same run: a program of the same interpreter and event loop that does a fixed
amount of interpreted work for each request (parsing a mail, all over the standard library) and the least that can be done
for each event, so that a slower or busier machine makes both slower and leaves their ratio where it was.
"""

from __future__ import annotations

import asyncio
import email
import sys
from typing import Any

import uvloop

MAIL = "\n".join(f'X-Field-{number}: value; of="{number}"' for number in range(12)) + "\n\nThe end.\n"


class Half(asyncio.Protocol):
    """One direction: what comes in here goes out of the other half."""

    def __init__(self, engine_port: int | None = None) -> None:
        self._engine_port = engine_port
        self._before: list[bytes] = []
        self.other: Half | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client's half opens the engine's."""
        self.transport = transport
        if self._engine_port is not None:
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open(loop, self._engine_port))

    async def _open(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        _, other = await loop.create_connection(Half, "127.0.0.1", port)
        self.other, other.other = other, self
        other.transport.write(b"".join(self._before))

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; those of a client are a request."""
        if self._engine_port is not None:
            email.message_from_string(MAIL).get_params(header="x-field-1")
        if self.other is None:
            self._before.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        """Close the other half too."""
        if self.other is not None:
            self.other.transport.close()


async def main(port: int, engine_port: int) -> None:
    """Relay until the process is ended."""
    server = await asyncio.get_running_loop().create_server(lambda: Half(engine_port), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
