"""What several worker processes tell each other for the operator's page: whichever is asked speaks for all of them.

Each leaves a file in a folder every second; one that has not written for some seconds is no more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway import atomic
from gateway.console.lately import Step
from gateway.record import Finished

ALIVE_SECONDS: Final = 5.0
_TOLD: Final = (
    "request_id time tenant model endpoint stream status outcome error pool replica reason detail score threshold break_even"
    " expected acceptance explored prompt_tokens completion_tokens ttft duration cost_usd copy_of"
).split()


@dataclass(slots=True, kw_only=True)
class Told:
    """What one process tells: its calls under way by pool, its last minutes, and its last decisions, newest first."""

    running: Mapping[str, int] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    decisions: Sequence[Mapping[str, Any]] = ()


class Colleagues:
    """The other processes, by a folder that all share; `name` is this one's own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / f"{name}.told"

    def tell(self, told: Told) -> None:
        """Leave what this process has to tell, whole or not at all."""
        with contextlib.suppress(OSError):  # the page is not worth a call
            atomic.write(self._path, msgspec.json.encode(told))

    def hear(self) -> list[Told]:
        """Return what the others have told of late."""
        heard = []
        for path in sorted(self._folder.glob("*.told")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                if path != self._path and time.time() - path.stat().st_mtime < ALIVE_SECONDS:
                    heard.append(msgspec.json.decode(path.read_bytes(), type=Told))
        return heard


def decision(call: Finished) -> dict[str, Any]:
    """Return what the page tells of a call; what was said in it is not told."""
    return {name: getattr(call, name) for name in _TOLD}
