"""Keeping one process's curves equal to what the Store has learned from all, each push counted once. Pure.

In the steady state the pushes of others arrive in the Store's log and are merged. `seen` holds the last sequence merged
of every origin, so whatever arrives twice counts once. When the log cannot be trusted (it was cut, the Store restarted or
was away), the whole state is compared with `mirror`, which holds what the curves already contain of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, zip_longest

from gateway.store.contract import MAX_KEYS, Batch, Deltas, Pulled, Snapshot, Sums, add, plus

OLDEST = ""  # the position before all pushes that are kept


class Follower:
    """What one process has merged, and where it goes on. `astray` says that only a snapshot can tell what is missing."""

    __slots__ = ("_lenient", "_mirror", "_origin", "_seen", "astray", "epoch", "position")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._seen: dict[str, int] = {}
        self._mirror: dict[tuple[str, str], list[float]] = {}
        self._lenient = False  # comparing was no use, so a gap in the log has to be put up with
        self.epoch = ""
        self.position = OLDEST
        self.astray = True

    def __repr__(self) -> str:
        return f"<Follower {len(self._seen)} origins, {len(self._mirror)} keys{', astray' if self.astray else ''}>"

    @property
    def seen_own(self) -> int:
        """The last of our own batches that has come back."""
        return self._seen.get(self._origin, 0)

    def absorb(self, pulled: Pulled) -> Sums:
        """Return what is new in the pushes of others, and go on behind them."""
        if pulled.epoch != self.epoch or not pulled.whole:
            self.astray = True
            return {}
        news: Sums = {}
        for push in pulled.pushes:
            seen = self._seen.get(push.origin, 0)
            if push.seq <= seen:
                continue
            if push.previous > seen and not self._lenient:  # something between was never shown to us
                self.astray = True
                return news
            self._seen[push.origin] = push.seq
            self._reflect(push.deltas)
            if push.origin != self._origin:
                add(news, push.deltas)
        self.position = pulled.position
        return news

    def compare(self, snapshot: Snapshot, own: Iterable[Batch]) -> Sums:
        """Return what the curves lack of a snapshot, and follow the log from there.

        `own` are this process's batches after `seen_own`: the curves hold them, whether or not the Store does. If the
        Store lacks what we have seen, it has lost something: nothing can be subtracted then, and the log is read from its
        oldest push, as whoever lost batches brings them again under their old numbers.
        """
        self.epoch, self.astray = snapshot.epoch, False
        self._lenient = any(snapshot.applied.get(origin, 0) < seq for origin, seq in self._seen.items())
        if self._lenient:
            self.position = OLDEST
            return {}
        applied = snapshot.applied.get(self._origin, 0)
        for batch in own:
            if self.seen_own < batch.seq <= applied:
                self._reflect(batch.deltas)
        missing: Sums = {}
        for namespace, keys in snapshot.sums.items():
            for key, numbers in keys.items():
                held = self._mirror.get((namespace, key), [])
                lacking = [_rounded(total, part) for total, part in zip_longest(numbers, held, fillvalue=0.0)]
                # Less than we hold: the Store had forgotten the key and begun anew, and we know more than it does.
                if any(lacking) and not any(number < 0 for number in lacking):
                    missing.setdefault(namespace, {})[key] = lacking
        self._mirror = {(name, key): list(held) for name, keys in snapshot.sums.items() for key, held in keys.items()}
        self._seen = dict(snapshot.applied)
        self.position = snapshot.position
        return missing

    def _reflect(self, deltas: Deltas) -> None:
        mirror = self._mirror
        for namespace, keys in deltas.items():
            for key, numbers in keys.items():
                mirror[namespace, key] = plus(mirror.pop((namespace, key), []), numbers)
        for name in list(islice(mirror, max(0, len(mirror) - MAX_KEYS))):
            del mirror[name]


def _rounded(total: float, part: float) -> float:
    """Return the difference, or 0 where it is only the rounding of sums that were added in another order."""
    return 0.0 if abs(total - part) <= 1e-9 * abs(total) else total - part
