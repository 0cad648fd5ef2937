"""TLS: which authorities of engines are believed, and how the gateway proves itself. Verification has no switch."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from gateway.config import Config, PoolConfig, Server


def engine_context(pool: PoolConfig) -> ssl.SSLContext | None:
    """Return the context for a pool's https engines, None when all of them are plain.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or holds no certificate or key.
    """
    if not any(replica.url.startswith("https:") for replica in pool.replicas):
        return None
    context = ssl.create_default_context(cafile=pool.tls_ca)
    if pool.tls_cert is not None:
        context.load_cert_chain(pool.tls_cert, pool.tls_key)
    return context


def identity_of(pool: PoolConfig) -> tuple[object, ...]:
    """Return what connections to a pool are made with; when it changes, as by renewed files, they have to be made anew."""
    paths = [path for path in (pool.tls_ca, pool.tls_cert, pool.tls_key) if path is not None]
    return tuple((path, Path(path).stat().st_mtime_ns) for path in paths)


def problems(config: Config) -> list[str]:
    """Return which files of certificates and keys cannot be used, each with its key path and why."""
    return [*_server(config.server), *(line for i, pool in enumerate(config.pools) for line in _pool(i, pool))]


def _pool(index: int, pool: PoolConfig) -> Iterator[str]:
    try:
        engine_context(pool)
    except OSError as error:  # ssl.SSLError is one
        yield f"pool[{index}].tls_ca, tls_cert, tls_key: cannot be used: {error}"


def _server(server: Server) -> Iterator[str]:
    if server.tls_cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.tls_cert, server.tls_key)
        if server.tls_client_ca is not None:
            context.load_verify_locations(server.tls_client_ca)
    except OSError as error:
        yield f"server.tls_cert, tls_key, tls_client_ca: cannot be used: {error}"
