"""Keys as digests, and what strangers could use when a listener is open beyond this machine."""

from __future__ import annotations

import hashlib
import ipaddress
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.config.schema import Config

LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})
DEMO_KEYS: Final = ("dl-demo", "dl-admin")


def key_digest(key: str) -> str:
    """Return the SHA-256 of a key as the 64 hex characters that `key_sha256` takes."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host.lower() in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loose_files(path: Path, config: Config) -> list[str]:
    """Return which files others on this machine could change or read to the gateway's harm."""
    found = []
    if _mode(path) & (stat.S_IWGRP | stat.S_IWOTH):
        found.append(f"{path}: others may write to it, and so decide where calls go; chmod go-w it")
    keys = [("server.tls_key", config.server.tls_key)]
    keys += [(f"pool[{i}].tls_key", pool.tls_key) for i, pool in enumerate(config.pools)]
    for where, key in keys:
        if key is not None and _mode(Path(key)) & (stat.S_IRGRP | stat.S_IROTH):
            found.append(f"{where}: others may read {key}; chmod go-r it")
    return found


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def exposure(config: Config) -> list[str]:
    """Return what strangers could use, each a sentence with its key path; nothing when only this machine can come."""
    server = config.server
    if is_loopback(server.host):
        return []
    where = f"server.host: {server.host} is open beyond this machine"
    demo = {key_digest(key) for key in DEMO_KEYS}
    keyed = [tenant.name for tenant in config.tenants if demo & {*tenant.key_sha256}]
    keyless = [tenant.name for tenant in config.tenants if tenant.anonymous]
    found = [f"{where}, and tenant {name} accepts a published demo key; replace it" for name in keyed]
    found += [f"{where}, and tenant {name} takes calls without a key" for name in keyless]
    if server.admin_key_sha256 in demo:
        found.append(f"{where}, and the admin key is the published demo key; replace it")
    if server.tls_cert is None:
        found.append(f"{where} without TLS; set tls_cert and tls_key, or put a proxy that ends TLS before it")
    return found
