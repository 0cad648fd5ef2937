"""Writing what a command gives out, so that a full disk is told with what it left unwritten, and no figure is lost by it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have a failure to write inside the block name the file: of a full disk the system alone does not say which.

    Raises:
        OSError: what the block raised, with the file's name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def give_out(text: str) -> bool:
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
