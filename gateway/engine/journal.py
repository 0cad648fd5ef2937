"""What an engine has really done, kept where kill -9 does not reach: a line per whole answer, written before its client has it.

A line is JSON: the request's id as its header told it, and the usage that the answer tells. Whoever reads it later can
compare a ledger with it, to the token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.engine.http import Request


class Journal:
    """An open file of lines; one write per line, so that lines are whole whenever the process ends."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, request: Request, usage: Mapping[str, object]) -> None:
        """Note an answer that is about to be handed out whole."""
        name = (request.header(b"x-request-id") or b"").decode("latin-1")
        os.write(self._handle, msgspec.json.encode({"request": name, **usage}) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
