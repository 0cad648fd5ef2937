"""Files of observations in one directory, shared by all processes that keep some: each writes its own and none waits.

A file is only appended to, whole lines at a time, and locked while it grows; a process that is killed leaves at most one torn
line, at the end of its last file. What is too old, or beyond what all files may take, goes by whole files, oldest first.

Nothing here is for the event loop: every method may wait for the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LARGEST_FILE: Final = 8 << 20
SMALLEST_FILE: Final = 64 << 10
_SUFFIX: Final = ".jsonl"


class Files:
    """What one process writes, under `origin`, a name that no other process has.

    Args:
        directory: where; made when the first line comes.
        origin: what the files' names begin with.
        most_bytes: what all files together may take.
        seconds: after which a file that no longer grows is removed.
        writers: processes that share `most_bytes`: files that grow are spared, so they must be small beside it.
    """

    def __init__(self, directory: Path, origin: str, *, most_bytes: int, seconds: float, writers: int = 1) -> None:
        self._directory = directory
        self._origin = origin
        self._most = most_bytes
        self._seconds = seconds
        self._largest = max(SMALLEST_FILE, min(LARGEST_FILE, most_bytes // (4 * writers)))
        self._number = 0
        self._handle: int | None = None
        self._size = 0

    def __repr__(self) -> str:
        return f"<Files {self._directory} {self._origin}-{self._number} {self._size} bytes>"

    def append(self, lines: bytes) -> None:
        """Write whole lines; raises OSError if the disk refuses, and then none was written."""
        if self._handle is None or self._size + len(lines) > self._largest:
            self._begin()
        handle = self._handle
        assert handle is not None
        written = os.pwrite(handle, lines, self._size)
        if written != len(lines):
            os.ftruncate(handle, self._size)
            raise OSError(f"no room for {len(lines)} bytes in {self._directory}")
        self._size += written

    def expire(self, now: float) -> int:
        """Remove files that are too old or too many, whoever wrote them; return the lines that went with them."""
        kept, gone = 0, 0
        for path in reversed(stored(self._directory)):
            with suppress(FileNotFoundError):  # another process was quicker
                status = path.stat()
                if kept + status.st_size <= self._most and now - status.st_mtime <= self._seconds:
                    kept += status.st_size
                    continue
                lines = _remove(path)
                gone += lines or 0
                kept += status.st_size if lines is None else 0
        return gone

    def close(self) -> None:
        """Let the file go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _begin(self) -> None:
        """Open the next file, locked for as long as this process writes to it."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._directory / f"{self._origin}-{self._number + 1:06d}{_SUFFIX}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.close()
        self._handle, self._size, self._number = handle, 0, self._number + 1


def stored(directory: Path) -> list[Path]:
    """Return the files of a directory, the one that was written to longest ago first."""
    found: list[tuple[float, str, Path]] = []
    with suppress(FileNotFoundError):
        for path in directory.iterdir():
            if path.suffix == _SUFFIX:
                with suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime, path.name, path))
    return [path for _, _, path in sorted(found)]


def lines(directory: Path) -> Iterator[bytes]:
    """Yield every line of a directory's files, without its end; a file that is removed meanwhile is read to its end."""
    for path in stored(directory):
        with suppress(FileNotFoundError), path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


def _remove(path: Path) -> int | None:
    """Remove a file and return how many lines it had; None, and it stays, while a process writes to it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        count = sum(1 for _ in file)
        path.unlink()
        return count
