"""Writing what a command gives out, so that a full disk is told with what it left unwritten, and no figure is lost by it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a place to write a file to, which becomes it at the end of the block: it is there whole, or as it was before.

    Devices, pipes and links, such as /dev/stdout, are written to themselves.

    Raises:
        OSError: what the block raised, with the file's name: of a full disk the system alone does not say which.
    """
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    part = path.with_name(f"{path.name}.part") if plain else path
    try:
        yield part
        if plain:
            part.replace(path)
    except OSError as error:
        if plain:
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def to_stdout(text: str) -> bool:
    """Write a text to standard output; what that does not take follows on standard error. Returns whether it was taken.

    Raises:
        BrokenPipeError: whoever read it has seen enough.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still buffered would be tried again, and fail, at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"standard output: {error.strerror or error}; what it did not take:\n{text}")
        return False
    return True
