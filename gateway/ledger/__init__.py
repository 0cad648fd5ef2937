"""The ledger: what every call used and cost, counted once, kept safe and brought to the Store.

`open_ledger` makes the two ends of it: `Ledger.append` on the request's path, and the `Outbox` that `Settlement` empties.
"""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.config import Store as StoreConfig
from gateway.ledger.blackbox import Blackbox, place
from gateway.ledger.ledger import Ledger
from gateway.ledger.outbox import Outbox, new_origin
from gateway.ledger.receipts import Receipts
from gateway.ledger.settlement import Learner, Settlement, SettlementState

__all__ = [
    "Learner",
    "Ledger",
    "Outbox",
    "Receipts",
    "Settlement",
    "SettlementState",
    "journal_directory",
    "open_ledger",
]


def journal_directory(settings: StoreConfig) -> Path | None:
    """Return where the journals lie for a Store, or None for one that does not outlive the process anyway."""
    if settings.kind == "memory":
        return None
    if settings.journal is not None:
        return Path(settings.journal)
    beside = Path(settings.path) if settings.kind == "sqlite" and settings.path else Path("draftlane.db")
    return beside.with_name(f"{beside.name}.outbox")


def open_ledger(directory: Path | None, *, origin: str | None = None) -> tuple[Ledger, Outbox]:
    """Return a ledger that starts at 0, and its outbox with the journal in `directory`, under a new origin.

    A disk that refuses is not the end: the ledger counts in memory and the outbox tries again. To be called after a fork.
    """
    outbox = Outbox(directory, origin or new_origin())
    box = None
    if directory is not None:
        try:
            box = Blackbox(place(directory, outbox.origin))
        except OSError as wrong:
            logging.getLogger("draftlane.ledger").warning(
                "kill -9 will lose a flush interval, as there is no black box: %s", wrong
            )
    return Ledger(box), outbox
