"""All journals that this process answers for: its own, and those that dead processes left behind on this machine.

Nothing here is for the event loop: every method may wait for the disk. The properties may be read from any thread.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from gateway.ledger import blackbox
from gateway.ledger.totals import Totals
from gateway.ledger.wal import Busy, Journal
from gateway.store.contract import Batch


def new_origin() -> str:
    """Return a name for this run of this process that no other run has."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"{host or 'host'}-{os.getpid()}-{uuid4().hex[:12]}"


class Outbox:
    """Batches that wait for the Store, or that it may yet lose, by origin; `clock` returns Unix seconds."""

    def __init__(self, directory: Path | None, origin: str, *, clock: Callable[[], float] = time.time) -> None:
        """Make the journal of `origin` if the disk lets us; without a directory nothing is ever written."""
        self.origin: Final = origin
        self._directory = directory
        self._clock = clock
        self._journals: dict[str, Journal] = {}
        with suppress(OSError):  # the first batch will try again, and report
            self._own()

    def __repr__(self) -> str:
        return f"<Outbox {list(self._journals.values())!r}>"

    @property
    def writes(self) -> bool:
        """Whether batches are to be written to the disk at all."""
        return self._directory is not None

    @property
    def last(self) -> Mapping[str, int]:
        """The highest sequence number of every journal held."""
        return {origin: journal.last for origin, journal in list(self._journals.items())}

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(journal.size for journal in list(self._journals.values()))

    @property
    def damaged(self) -> int:
        """Lines that were torn or damaged in the journals taken over."""
        return sum(journal.damaged for journal in list(self._journals.values()))

    def seal(self, batch: Batch | None) -> None:
        """Write a batch, if there is one, to the own journal, and sync when it is time; raises OSError if the disk refuses.

        The same batch may be sealed again after an error; it is written once.
        """
        if batch is not None:
            self._own().append(batch, self._clock())
        for journal in self._journals.values():
            journal.sync(self._clock())

    def after(self, origin: str, seq: int, count: int) -> list[Batch]:
        """Return the `count` lowest batches of an origin above `seq`."""
        journal = self._journals.get(origin)
        return [] if journal is None else journal.after(seq, count)

    def adopt(self) -> list[str]:
        """Take over the journals of dead processes, with what their black boxes hold; return their origins."""
        if self._directory is None or not self._directory.is_dir():
            return []
        adopted = []
        for path in sorted(self._directory.iterdir()):
            if path.name in self._journals or path.name.startswith(".") or not path.is_dir():
                continue
            with suppress(Busy, FileNotFoundError):
                journal = Journal(path, now=self._clock())
                self._journals[path.name] = journal
                adopted.append(path.name)
                self._recover(journal, path.parent)
        return adopted

    def prune(self, delivered: Mapping[str, int]) -> None:
        """Remove what the Store has had for long enough, and journals of the dead of which nothing is left."""
        for origin, journal in list(self._journals.items()):
            journal.prune(delivered.get(origin, 0), self._clock())
            if origin != self.origin and not journal.size:
                journal.remove()
                del self._journals[origin]

    def close(self) -> None:
        """Let go of all journals; whoever comes next takes them over."""
        for journal in self._journals.values():
            with suppress(OSError):
                journal.close()
        self._journals.clear()

    def _own(self) -> Journal:
        journal = self._journals.get(self.origin)
        if journal is None:
            if self._directory is None:
                raise OSError("no directory for journals is configured")
            journal = self._journals[self.origin] = Journal(self._directory / self.origin, now=self._clock())
        return journal

    def _recover(self, journal: Journal, directory: Path) -> None:
        """Turn what a dead process had counted but not yet written into batches, under the numbers they would have had."""
        box = blackbox.place(directory, journal.origin)
        for seq, entries in blackbox.recover(box):
            if seq > journal.last and entries:
                totals = Totals()
                for entry in entries:
                    totals.add(entry)
                journal.append(Batch(seq, totals.rows()), self._clock())
        box.unlink(missing_ok=True)
