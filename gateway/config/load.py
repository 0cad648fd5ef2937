"""Reading a configuration: from a file or tables to a frozen `Config`, or to the list of everything that is wrong."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import rules
from gateway.config.prices import Currency, Price
from gateway.config.schema import (
    IN_WORDS,
    Budget,
    Classifier,
    Config,
    Embedded,
    Limits,
    Model,
    PoolConfig,
    Replica,
    Routing,
    Server,
    Store,
    TenantConfig,
)
from gateway.config.section import Section

# The tables of the file by their key path without indices, for hints at misspelt keys.
TABLES: Final[Mapping[tuple[str, ...], type[Section]]] = {
    (): Config,
    ("server",): Server,
    ("limits",): Limits,
    ("model",): Model,
    ("pool",): PoolConfig,
    ("pool", "replica"): Replica,
    ("pool", "embedded"): Embedded,
    ("routing",): Routing,
    ("tenant",): TenantConfig,
    ("tenant", "budget"): Budget,
    ("pool", "price"): Price,
    ("currency",): Currency,
    ("store",): Store,
    ("classifier",): Classifier,
}
_SHOWN: Final = 60  # characters of a wrong value that a problem repeats


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds all reasons, each "key path: what is wrong and what to do"."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load(path: str | Path, env: Mapping[str, str] = os.environ) -> Config:
    """Read a TOML file; raises ConfigError with every problem of syntax, schema, rules and environment."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else f"not UTF-8 text at byte {wrong.start}"
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError([f"{path}: is not valid TOML: {wrong}"]) from None
    return parse(raw, env)


def parse(raw: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> Config:
    """Check tables as `tomllib` returns them; raises ConfigError with every problem."""
    problems = rules.broken(raw, env)
    try:
        config = Config.model_validate(raw)
    except ValidationError as wrong:
        told = {problem.split(":", 1)[0] for problem in problems}
        schema = [problem for error in wrong.errors() if (problem := _problem(error)).split(":", 1)[0] not in told]
        raise ConfigError(schema + problems) from None
    if problems:
        raise ConfigError(problems)
    return config


def _problem(error: ErrorDetails) -> str:
    """One schema error in the words of the file."""
    where, what = _path(error["loc"]), str(error["msg"])
    match error["type"]:
        case "extra_forbidden":
            *table, key = error["loc"]
            return f"{where}: there is no such setting{rules.did_you_mean(str(key), _keys(table))}"
        case "missing":
            return f"{where}: is missing"
        case "tuple_type" if where in {"model", "pool", "tenant"} or where.endswith((".replica", ".budget", ".price")):
            return f"{where}: is a list of tables; write [[{'.'.join(_plain(error['loc']))}]]"
        case "model_type" | "model_attributes_type":
            return f"{where}: must be a table of settings"
        case "string_pattern_mismatch":
            what = IN_WORDS[error["ctx"]["pattern"]]
        case "value_error":
            return f"{where}: {what.removeprefix('Value error, ')}"
    return f"{where}: {what.replace('Input should', 'must')}{_shown(error)}"


def _shown(error: ErrorDetails) -> str:
    """The wrong value, unless it is long, or may be a secret that was pasted into the wrong place."""
    where, value = _path(error["loc"]), error["input"]
    if "key" in where or not isinstance(value, str | int | float) or len(repr(value)) > _SHOWN:
        return ""
    return f", not {value!r}"


def _path(loc: Iterable[int | str]) -> str:
    """("pool", 1, "url") as "pool[1].url"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _plain(loc: Iterable[int | str]) -> tuple[str, ...]:
    return tuple(part for part in loc if isinstance(part, str))


def _keys(table: Iterable[int | str]) -> list[str]:
    """The settings that a table knows, under their names in the file."""
    section = TABLES.get(_plain(table))
    return [field.alias or name for name, field in section.model_fields.items()] if section else []
