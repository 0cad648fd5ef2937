"""The ledger of one process: every finished call counts here at once, in memory; batches of it are taken away to be kept.

`append` runs on the request's path: it adds to sums and copies an entry into the black box, about 2 µs, and waits for
nothing. Memory is bounded by the number of keys, not of calls. One thread, the event loop's, calls all methods.
"""

from __future__ import annotations

from gateway.ledger.blackbox import Blackbox
from gateway.ledger.totals import Totals, entry_of
from gateway.record import Finished
from gateway.store.contract import Batch, Deltas


class Ledger:
    """Sums since the last batch, and the batch on its way.

    There is at most one such batch: until it is `settled`, its sequence number and content stay as they are, since the
    Store may have it without our knowing, and what comes in the meantime adds up for the next one.
    """

    __slots__ = ("_box", "_previous", "_totals", "seq", "taken", "unguarded")

    def __init__(self, box: Blackbox | None = None) -> None:
        """Start to count; without a black box, kill -9 loses what came since the last batch."""
        self._box = box
        self._totals = Totals()
        self._previous = 0  # the last batch that taught something
        self.seq = 1  # of the batch that the sums will become
        self.taken: Batch | None = None
        self.unguarded = 0  # calls for which the black box had no room

    def __repr__(self) -> str:
        waiting = f", batch {self.taken.seq} on its way" if self.taken else ""
        return f"<Ledger batch {self.seq} {self._totals!r}{waiting}>"

    def append(self, call: Finished) -> None:
        """Count a finished call."""
        entry = entry_of(call)
        self._totals.add(entry)
        if self._box is not None and not self._box.record(entry):
            self.unguarded += 1

    @property
    def empty(self) -> bool:
        """Whether nothing was counted since the last batch was taken."""
        return not self._totals

    def take(self, deltas: Deltas) -> Batch | None:
        """Turn what was counted, and the learning given, into the next batch; None if there is nothing.

        Only when the former batch is settled.
        """
        if self.taken is not None:
            raise RuntimeError(f"batch {self.taken.seq} is still on its way")
        if not self._totals and not any(deltas.values()):
            return None
        self.taken = Batch(self.seq, self._totals.rows(), deltas, self._previous)
        if any(deltas.values()):
            self._previous = self.seq
        self._totals = Totals()
        self.seq += 1
        if self._box is not None:
            self._box.turn(self.seq)
        return self.taken

    def settled(self) -> None:
        """The taken batch is safe: in the journal or in the Store."""
        if self.taken is not None and self._box is not None:
            self._box.forget(self.taken.seq)
        self.taken = None

    def close(self) -> None:
        """Remove the black box if all that it holds is safe."""
        if self._box is not None and self.taken is None and self.empty:
            self._box.close()
            self._box = None
