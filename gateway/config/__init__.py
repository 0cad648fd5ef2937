"""The configuration: what may be set (`schema`), what must hold between settings (`rules`), how it is read (`load`)."""

from gateway.config.exposure import LOOPBACK_NAMES, key_digest, loose_files
from gateway.config.load import ConfigError, load, parse
from gateway.config.schema import (
    FEATURES,
    Budget,
    Classifier,
    Config,
    Embedded,
    Limits,
    Model,
    Period,
    PoolConfig,
    Replica,
    Routing,
    Server,
    Store,
    TenantConfig,
)

__all__ = [
    "FEATURES",
    "LOOPBACK_NAMES",
    "Budget",
    "Classifier",
    "Config",
    "ConfigError",
    "Embedded",
    "Limits",
    "Model",
    "Period",
    "PoolConfig",
    "Replica",
    "Routing",
    "Server",
    "Store",
    "TenantConfig",
    "key_digest",
    "load",
    "loose_files",
    "parse",
]
