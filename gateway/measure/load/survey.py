"""A trace that is looked through before anything is sent, and can be read again: what is in it, and what cannot be sent."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gateway.measure.load import trace
from gateway.measure.load.trace import Request, Source, TraceError


@dataclass(slots=True)
class Survey:
    """What a trace holds. Where a line is given it is the first of its kind.

    Attributes:
        requests: that can be sent.
        bad: lines that cannot.
        models: each model that is named, "" where none is, with its line.
        tenants: each tenant that is named, "" where none is, with its line.
        untimed: a line without a time.
        backwards: a line whose time lies before that of the line above.
        last: seconds from the first timestamp to the last.
        digest: SHA-256 of all lines.
    """

    requests: int = 0
    bad: list[TraceError] = field(default_factory=list)
    models: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    untimed: int | None = None
    backwards: int | None = None
    last: float = 0.0
    digest: str = ""

    @property
    def span(self) -> float:
        """Seconds that one pass over the trace takes, with the usual gap after its last request."""
        return self.last + (self.last / (self.requests - 1) if self.requests > 1 else 0.0)

    def note(self, request: Request) -> None:
        """Take account of one request."""
        self.requests += 1
        self.models.setdefault(str(request.body.get("model") or ""), request.line)
        self.tenants.setdefault(request.tenant, request.line)
        if request.at is None:
            self.untimed = self.untimed or request.line
        elif request.at < self.last:
            self.backwards = self.backwards or request.line
        else:
            self.last = request.at


class Trace:
    """A trace on disk; standard input and pipes are copied there first, as each can be read only once.

    Attributes:
        defaults: fields for bodies that lack them.
    """

    def __init__(
        self,
        source: Source,
        *,
        model: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        self.model = model
        self._source = source
        self.defaults = dict(defaults or {})
        self._limit = limit
        self._stack = ExitStack()
        self._path: Path

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.push(self._stack)
            self._path = self._on_disk()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def requests(self) -> Iterator[Request]:
        """Read the requests that can be sent, up to the limit."""
        found = trace.read(self._path, model=self.model, defaults=self.defaults, on_bad=_pass_over)
        return islice(found, self._limit)

    def survey(self) -> Survey:
        """Look through the trace, as far as it will be sent.

        Raises:
            TraceError: the file cannot be read.
        """
        found, digest = Survey(), sha256()

        def noted(lines: Iterable[bytes]) -> Iterator[bytes]:
            for line in lines:
                digest.update(line)
                yield line

        with trace.opened(self._path) as lines:
            whole = noted(lines)
            requests = trace.parse(whole, model=self.model, defaults=self.defaults, on_bad=found.bad.append)
            for request in islice(requests, self._limit):
                found.note(request)
            for _ in whole:
                pass  # beyond the limit: of no concern but to the digest
        found.digest = digest.hexdigest()
        return found

    def _on_disk(self) -> Path:
        if self._source != "-" and (self._source.is_file() or not self._source.exists()):
            return self._source
        try:
            copy = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="draftlane-"))) / "trace"
            source = sys.stdin.buffer if self._source == "-" else self._stack.enter_context(self._source.open("rb"))
            with copy.open("wb") as file:
                shutil.copyfileobj(source, file)
        except OSError as error:
            raise TraceError(0, f"{self._source}: {error.strerror or error}") from error
        return copy


def _pass_over(error: TraceError) -> None:
    """Leave out a line that the survey has told of."""
