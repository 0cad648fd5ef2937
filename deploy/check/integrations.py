"""The example configurations for other gateways, against Envoy's published protobufs and the Gateway API's schemas."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from deploy.check import schemas
from deploy.check.documents import Finding


def envoy(path: Path) -> Iterator[Finding]:
    """Read a bootstrap configuration as Envoy would: every field must be one of its messages', those of filters too."""
    bootstrap = yaml.safe_load(path.read_text(encoding="utf-8"))
    typed: list[dict[str, Any]] = []
    plain = _without_typed(bootstrap, typed)
    yield from _parsed(path.name, "envoy.config.bootstrap.v3.Bootstrap", plain)
    while typed:
        config = dict(typed.pop())
        name = str(config.pop("@type")).rpartition("/")[2]
        yield from _parsed(path.name, name, _without_typed(config, typed))


def _without_typed(value: Any, typed: list[dict[str, Any]]) -> Any:
    """Return a copy without the messages that say their own type, and put those into `typed`."""
    if isinstance(value, list):
        return [_without_typed(item, typed) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and "@type" in inner:
            typed.append(inner)
        elif key == "typed_per_filter_config":
            typed += inner.values()
        else:
            kept[key] = _without_typed(inner, typed)
    return kept


def _parsed(where: str, message: str, value: Any) -> Iterator[Finding]:
    package, _, name = message.rpartition(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its classes are written for an older pydantic
            module = import_module(f"envoy_data_plane.{package}")
        getattr(module, name).from_dict(value)
    except (AttributeError, ModuleNotFoundError):
        yield Finding(where, f"Envoy has no {message}")
    except (KeyError, TypeError, ValueError) as wrong:
        yield Finding(where, f"{message}: {wrong}")


def gateway_api(path: Path) -> list[Finding]:
    """Check a manifest of the Gateway API."""
    return schemas.custom(yaml.safe_load_all(path.read_text(encoding="utf-8")))
