"""A replica's circuit breaker: what opens it, how long, how it is probed. Pure: time and chance are arguments.

| state     | success             | failure               | the wait is over        |
|-----------|---------------------|-----------------------|-------------------------|
| closed    | count to zero       | the third in a row → open | –                   |
| open      | (late) ignored      | ignored               | → half-open, one probe  |
| half-open | → closed            | → open, wait doubled  | –                       |

Only what speaks of the replica's health is reported here: failed connections, silence, 5xx. A 4xx is the client's business.
"""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "half-open"]
STATES: tuple[State, ...] = ("closed", "open", "half-open")

FAILURES_TO_OPEN = 3
FIRST_WAIT = 1.0  # seconds
LONGEST_WAIT = 15.0  # a replica that recovers is found within this, jitter included


class Breaker:
    """One replica's breaker. `now` is monotonic seconds; `chance`, in [0, 1), spreads the probes of many gateways."""

    __slots__ = ("_failures", "_probing", "_until", "_wait", "state")

    def __init__(self) -> None:
        self.state: State = "closed"
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until = 0.0
        self._probing = False

    def __repr__(self) -> str:
        return f"<Breaker {self.state} failures={self._failures}>"

    def allows(self, now: float) -> bool:
        """Whether a request may go out now; an open breaker whose wait is over lets one probe through (see `begin`)."""
        if self.state == "closed":
            return True
        if self.state == "open":
            return now >= self._until
        return not self._probing

    def begin(self, now: float) -> bool:
        """A request goes out; return whether it is the probe of a breaker that was open."""
        if self.state == "open" and now >= self._until:
            self.state = "half-open"
        if self.state != "half-open":
            return False
        self._probing = True
        return True

    def success(self) -> None:
        """The replica answered."""
        if self.state != "open":
            self.state = "closed"
            self._wait = FIRST_WAIT
            self._failures = 0
        self._probing = False

    def failure(self, now: float, chance: float) -> None:
        """The replica failed: connection, silence or 5xx."""
        self._probing = False
        if self.state == "half-open":
            self._open(now, chance, min(self._wait * 2, LONGEST_WAIT))
        elif self.state == "closed":
            self._failures += 1
            if self._failures >= FAILURES_TO_OPEN:
                self._open(now, chance, FIRST_WAIT)

    def abandon(self) -> None:
        """The probe ended without a verdict on the replica: the client left. It may be tried again."""
        self._probing = False

    def _open(self, now: float, chance: float, wait: float) -> None:
        self.state = "open"
        self._wait = wait
        self._failures = 0
        self._until = now + wait * (0.75 + 0.25 * chance)
