"""What processes tell each other: sums under keys that name everything they belong to, so that adding them is all it takes.

A delta is namespace → key → numbers, as the Store adds them up: [weight, tokens, model, calls]. A key is a JSON list whose
last element is the time of the sums' face value (a grid time, see `evidence`); sums of another block of time have another
key, so old keys come to rest and may be dropped. Numbers are never negative. Exactly-once delivery is the Store's affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from gateway.routing.evidence import Sums

Deltas = Mapping[str, Mapping[str, Sequence[float]]]

MAX_PENDING = 50_000  # keys that wait to be told; a Store that is away for longer costs the oldest


class Outbox:
    """What this process has learned and not yet told. `add` is on the path of every finished call."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: dict[tuple[object, ...], list[float]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, key: tuple[object, ...], sums: Sums) -> None:
        """Add sums to what waits under a key: (namespace, …, time of face value)."""
        held = self._pending.get(key)
        if held is None:
            self._pending[key] = list(sums)
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
        else:
            held[0] += sums[0]
            held[1] += sums[1]
            held[2] += sums[2]
            held[3] += sums[3]

    def take(self) -> dict[str, dict[str, list[float]]]:
        """Return all that waits, and wait for nothing any more."""
        pending, self._pending = self._pending, {}
        return told(pending)


def told(pending: Mapping[tuple[object, ...], Sequence[float]]) -> dict[str, dict[str, list[float]]]:
    """Return sums by tuple keys as plain dicts and lists."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, sums in pending.items():
        name = json.dumps(list(islice(key, 1, None)), separators=(",", ":"), ensure_ascii=False)
        found.setdefault(str(key[0]), {})[name] = list(sums)
    return found


def heard(deltas: Deltas, namespace: str, parts: int) -> Iterator[tuple[list[object], float, Sequence[float]]]:
    """Yield (key without its time, time of face value, sums) of a namespace, leaving out what is not well-formed."""
    for name, sums in deltas.get(namespace, {}).items():
        try:
            key = json.loads(name)
        except ValueError:
            continue
        if isinstance(key, list) and len(key) == parts + 1 and len(sums) == 4:
            at = key.pop()
            if isinstance(at, (int, float)) and all(number >= 0.0 for number in sums):
                yield key, float(at), sums
