"""What a running process cannot take over from a changed configuration: what its listeners, chance and Store were made with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gateway.config import Config

_FIXED: Final[Mapping[str, Sequence[str]]] = {
    "server": (
        "host",
        "port",
        "workers",
        "admin_port",
        "cors_origins",
        "tls_cert",
        "tls_key",
        "tls_client_ca",
        "log",
        "drain_seconds",
        "traces",
    ),
    "limits": ("max_header_bytes", "header_seconds"),
    "routing": ("seed",),
}


def needs_restart(config: Config, running: Config, embedded: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield what a configuration changes that needs a restart; `embedded` are the engines that run, by pool."""
    for section, names in _FIXED.items():
        for name in names:
            if getattr(getattr(config, section), name) != getattr(getattr(running, section), name):
                yield f"{section}.{name}: changing it needs a restart"
    for index, pool in enumerate(config.pools):
        if pool.embedded is not None and len(embedded.get(pool.name, ())) != pool.embedded.replicas:
            yield f"pool[{index}].embedded: starting or stopping embedded engines needs a restart"
    for section in ("classifier", "store"):
        if getattr(config, section) != getattr(running, section):
            yield f"{section}: changing it needs a restart"
