"""Calls that are ready at once take each step of the pipeline together, one call after the other.

A step's code and data do not fit the processor's first caches beside those of all other steps. Taken by one call from end to
end, each step finds them cold; taken by twenty calls in a row, nineteen find them warm. A scored call costs a quarter less CPU
so (docs/performance.md). A call that is alone waits for nobody.
"""

from __future__ import annotations

from collections.abc import Generator


class Lockstep:
    """Awaited between two steps: whoever else is ready goes first. `ready` counts the calls that have a step to take."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        self.ready = 0

    def __repr__(self) -> str:
        return f"<Lockstep {self.ready} ready>"

    def __await__(self) -> Generator[None, None, None]:
        """Let the event loop run what is ready, unless nothing is: a bare yield puts a task at the end of its queue."""
        if self.ready:
            self.ready += 1
            try:
                yield
            finally:
                self.ready -= 1


OTHERS = Lockstep()  # of this process, whose event loop is one
