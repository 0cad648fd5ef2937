"""What the engine received, for tests to read: bounded, newest kept."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from gateway.engine.http import Reply, Request

_BODY_KEPT = 1024 * 1024


class Entry:
    """One request as it arrived, and what became of it; times are seconds of the event loop's clock."""

    __slots__ = (
        "_reply",
        "arrived",
        "attempt",
        "events",
        "fault",
        "finished",
        "gone",
        "number",
        "request",
        "sha256",
        "size",
        "tokens",
    )

    def __init__(self, number: int, request: Request, reply: Reply, arrived: float) -> None:
        self._reply = reply
        self.number = number
        self.size = len(request.body)
        self.sha256 = hashlib.sha256(request.body).hexdigest()
        self.request = request if self.size <= _BODY_KEPT else replace(request, body=b"")
        self.arrived = arrived
        self.attempt = 1  # how many of the requests kept had this very body, this one included
        self.fault: str | None = None
        self.events = 0  # server-sent events written
        self.tokens = 0  # generated, whether or not they were delivered
        self.finished = False  # the whole answer was handed to the socket
        self.gone: float | None = None  # when the client left before that

    @property
    def status(self) -> int | None:
        """The status answered with, None while there is no answer."""
        return self._reply.status or None

    def __repr__(self) -> str:
        end = "finished" if self.finished else "gone" if self.gone is not None else "running"
        return (
            f"<Entry {self.number} {self.request.method} {self.request.path} {self.status} {end}, {self.tokens} tokens>"
        )

    @property
    def path(self) -> str:
        """The path asked for."""
        return self.request.path

    @property
    def body(self) -> bytes:
        """The body; empty when it was too large to be kept, see `size` and `sha256`."""
        return self.request.body

    @property
    def headers(self) -> dict[str, str]:
        """The headers, names in lower case; of repeated ones the last."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.request.headers}

    def json(self) -> Any:
        """Return the body as JSON; raises msgspec.DecodeError when it is none."""
        return msgspec.json.decode(self.body)

    def shown(self) -> dict[str, object]:
        """Return the entry as `GET /engine/record` shows it."""
        return {
            "number": self.number,
            "attempt": self.attempt,
            "method": self.request.method,
            "path": self.path,
            "connection": self.request.connection,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.request.headers],
            "body": self.body.decode("utf-8", "replace"),
            "size": self.size,
            "sha256": self.sha256,
            "fault": self.fault,
            "status": self.status,
            "events": self.events,
            "tokens": self.tokens,
            "finished": self.finished,
            "disconnected_after": None if self.gone is None else self.gone - self.arrived,
        }


class Record:
    """The last requests, oldest first; `total` counts all of them, `probes` those for health and metrics."""

    def __init__(self, limit: int) -> None:
        self._entries: deque[Entry] = deque()
        self._limit = limit
        self._seen: Counter[str] = Counter()
        self.total = 0
        self.probes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index]

    def add(self, request: Request, reply: Reply, now: float) -> Entry:
        """Note a request."""
        self.total += 1
        entry = Entry(self.total, request, reply, now)
        self._seen[entry.sha256] += 1
        entry.attempt = self._seen[entry.sha256]
        self._entries.append(entry)
        if len(self._entries) > self._limit:
            oldest = self._entries.popleft().sha256
            self._seen[oldest] -= 1
            if not self._seen[oldest]:
                del self._seen[oldest]
        return entry

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._seen.clear()
        self.total = self.probes = 0
