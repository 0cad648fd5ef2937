"""The write-ahead journal of one origin: batches on the local disk, from before the Store has them until it surely has.

A directory per origin holds a lock and segments, text files of frames, one a line: length, checksum, JSON. Every line
stands for itself, so a torn or damaged one costs nothing but itself. Segments are only appended to and, when the Store
has had all of their batches for a while, removed: a Redis that restarts from an older state gets them again.

Nothing here is for the event loop: every method may wait for the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from gateway.store.contract import Batch

SEGMENT_BYTES: Final = 4 << 20
LIMIT_BYTES: Final = 256 << 20  # at 3 KB a second, what a day without the Store makes
# The loosest of Redis' default save points is an hour: whoever restores such a snapshot has lost at most that.
RETAIN_SECONDS: Final = 7200.0
FSYNC_SECONDS: Final = 1.0
_RECENT: Final = 256  # batches kept in memory, so that delivery seldom reads what was just written
_LOCK: Final = "lock"
_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(Batch).decode


def frame(batch: Batch) -> bytes:
    """Return a batch as one line: eight hex digits of length, eight of CRC-32, and its JSON."""
    payload = _ENCODE(batch)
    return b"%08x %08x %s\n" % (len(payload), crc32(payload), payload)


def parse(line: bytes) -> Batch | None:
    """Return the batch of a line without its end, or None if it is torn or damaged."""
    payload = line[18:]
    try:
        whole = int(line[:8], 16) == len(payload) and int(line[9:17], 16) == crc32(payload)
        return _DECODE(payload) if whole else None
    except (ValueError, msgspec.DecodeError):
        return None


@dataclass(slots=True)
class _Segment:
    path: Path
    last: int = 0  # the highest sequence number in it, 0: none
    size: int = 0
    written: float = 0.0  # when the last frame came

    def batches(self) -> Iterator[Batch]:
        """Read the batches that are whole, in the order of the file."""
        for line in self.path.read_bytes().split(b"\n"):
            batch = parse(line)
            if batch is not None:
                yield batch


class Busy(Exception):
    """Another process holds the journal, or has just removed it."""


class Journal:
    """The journal of one origin, held by one process at a time."""

    def __init__(self, directory: Path, *, now: float, fsync_seconds: float = FSYNC_SECONDS) -> None:
        """Create or take over the journal in `directory`, whose name is the origin.

        Raises Busy if another process holds it and OSError if the disk refuses. `now` is a Unix time, here and below:
        it only says when to sync and how long to retain, and if it jumps, that happens sooner.
        """
        self.origin = directory.name
        self.directory = directory
        self.damaged = 0  # lines that were no whole frame
        self._fsync_seconds = fsync_seconds
        self._synced = now - fsync_seconds
        self._dirty = False
        self._recent: deque[Batch] = deque(maxlen=_RECENT)
        self._segments: list[_Segment] = []
        self._handle: int | None = None  # of the segment that grows
        self._lock = _locked(directory)
        try:
            self._scan()
        except BaseException:
            os.close(self._lock)
            raise

    def __repr__(self) -> str:
        return f"<Journal {self.origin} up to {self.last}, {self.size} bytes in {len(self._segments)} segments>"

    @property
    def last(self) -> int:
        """The highest sequence number written, 0 before the first."""
        return max((segment.last for segment in self._segments), default=0)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(segment.size for segment in self._segments)

    def append(self, batch: Batch, now: float) -> None:
        """Write a batch; raises OSError if the disk or the journal is full, and then nothing was written.

        A sequence number that is there already is not written again.
        """
        if batch.seq <= self.last:
            return
        line = frame(batch)
        if self.size + len(line) > LIMIT_BYTES:
            raise OSError(f"the journal has reached its limit of {LIMIT_BYTES >> 20} MiB; is the Store away?")
        segment, handle = self._growing(len(line))
        # At the end of what is whole: a part that got through before an error is overwritten by the next try.
        if os.pwrite(handle, line, segment.size) != len(line):
            os.ftruncate(handle, segment.size)
            raise OSError(f"no room for {len(line)} bytes in {segment.path}")
        segment.last = batch.seq
        segment.size += len(line)
        segment.written = now
        self._recent.append(batch)
        self._dirty = True

    def sync(self, now: float) -> None:
        """Make what was written outlive the machine, not only the process, unless that was done just now."""
        if self._dirty and abs(now - self._synced) >= self._fsync_seconds:
            self._sync()
            self._synced = now

    def after(self, seq: int, count: int) -> list[Batch]:
        """Return the `count` lowest batches above `seq`, ascending."""
        if self.last <= seq:
            return []
        if self._recent and self._recent[0].seq <= seq + 1:
            return [batch for batch in self._recent if batch.seq > seq][:count]
        found: list[Batch] = []
        for segment in self._segments:
            if segment.last > seq and len(found) < count:
                found += [batch for batch in segment.batches() if batch.seq > seq]
        return found[:count]

    def prune(self, delivered: int, now: float, retain_seconds: float = RETAIN_SECONDS) -> None:
        """Remove segments that the Store has had for `retain_seconds`, earlier if half the limit is used."""
        for segment in list(self._segments):
            old = abs(now - segment.written) > retain_seconds or self.size > LIMIT_BYTES // 2
            if segment.last > delivered or not old:
                return
            self._close_growing(segment)
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def close(self) -> None:
        """Sync and let go; another process may take it over."""
        try:
            self._sync()
        finally:
            self._let_go()

    def remove(self) -> None:
        """Delete an empty journal's directory and let go of it."""
        self._let_go(delete=True)

    def _sync(self) -> None:
        if self._handle is not None:
            os.fdatasync(self._handle)
        self._dirty = False

    def _let_go(self, *, delete: bool = False) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if delete:  # before unlocking: whoever waits for the lock finds that the file is gone
            (self.directory / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # somebody has just begun to look into it
                self.directory.rmdir()
        os.close(self._lock)

    def _scan(self) -> None:
        for path in sorted(self.directory.glob("*.wal")):
            status = path.stat()
            segment = _Segment(path, size=status.st_size, written=status.st_mtime)
            for batch in segment.batches():
                segment.last = batch.seq
            self.damaged += _damaged(path)
            self._segments.append(segment)

    def _growing(self, length: int) -> tuple[_Segment, int]:
        """Return the segment to write to and its handle: a new one if there is none open or it is full."""
        if self._handle is not None and self._segments[-1].size + length <= SEGMENT_BYTES:
            return self._segments[-1], self._handle
        number = int(self._segments[-1].path.stem) + 1 if self._segments else 1
        segment = _Segment(self.directory / f"{number:08d}.wal")
        handle = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        if self._handle is not None:
            os.fdatasync(self._handle)  # nobody comes back to this one
            os.close(self._handle)
        self._handle = handle
        self._segments.append(segment)
        return segment, handle

    def _close_growing(self, segment: _Segment) -> None:
        if self._handle is not None and segment is self._segments[-1]:
            os.close(self._handle)
            self._handle = None


def _damaged(path: Path) -> int:
    return sum(1 for line in path.read_bytes().split(b"\n") if line and parse(line) is None)


def _locked(directory: Path) -> int:
    """Return an open, locked lock file; raises Busy if another process has it.

    A new directory appears under its name only when it is locked: nobody takes it for a dead process's.
    """
    existed = directory.is_dir()
    place = directory if existed else directory.with_name(f".{directory.name}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:  # else its former holder removed it between our opening and locking
            if not existed:
                place.rename(directory)
            return handle
    os.close(handle)
    raise Busy(str(directory))
