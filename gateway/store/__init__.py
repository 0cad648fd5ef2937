"""Where ledger, learning, quotas and receipts persist and meet those of other processes: memory, SQLite or Redis.

Layering: this package knows the configuration and nothing above it; `gateway.ledger` builds on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config import Store as StoreConfig
from gateway.store.contract import Batch, Deltas, Grant, Pulled, Push, Row, Snapshot, Store, StoreError, Sums
from gateway.store.memory import MemoryStore

__all__ = [
    "Batch",
    "Deltas",
    "Grant",
    "MemoryStore",
    "Pulled",
    "Push",
    "Row",
    "Snapshot",
    "Store",
    "StoreError",
    "Sums",
    "open_store",
]

DEFAULT_PATH: Final = "draftlane.db"


def open_store(settings: StoreConfig, env: Mapping[str, str] = os.environ) -> Store:
    """Return the Store that the configuration names; nothing is connected or created yet.

    Raises StoreError if the variable with the address of Redis is not set.
    """
    if settings.kind == "sqlite":
        from gateway.store.sqlite import SqliteStore

        return SqliteStore(Path(settings.path or DEFAULT_PATH))
    if settings.kind == "redis":
        from gateway.store.redis import RedisStore  # here: redis takes a quarter of a second to import

        url = env.get(settings.url_env or "", "")
        if not url:
            raise StoreError(
                f"store.url_env: set {settings.url_env or 'it'} to an address such as redis://127.0.0.1:6379/0"
            )
        return RedisStore(url)
    return MemoryStore()
