"""`vllm serve` command lines, read by the flags that an image's vLLM has: a flag carried to another image is a problem here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.measure.doctor.releases import IMAGES, Kind, Release

_SUFFIXES: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(slots=True)
class Command:
    """A command line, read: the model, its flags with typed values, and what is wrong with it.

    `unknown` has those flags that the release's table lacks; each is among the problems too.
    """

    model: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)  # flag → the problem


def read(args: Sequence[str], image: str) -> Command:
    """Read what follows `vllm serve` as the vLLM of `image` would."""
    release = IMAGES.get(image)
    if release is None:
        return Command(problems=[f"nothing is known of the flags of {image}"])
    return read_as(args, release)


def read_as(args: Sequence[str], release: Release) -> Command:
    """Read what follows `vllm serve` as this vLLM would."""
    command = Command()
    rest = list(args)
    if rest and not rest[0].startswith("-"):
        command.model = rest.pop(0)
    else:
        command.problems.append("the model comes first")
    while rest:
        _take(rest, release, command)
    _check_speculation(command, release)
    return command


def _take(rest: list[str], release: Release, command: Command) -> None:
    """Move one flag with its value from `rest` to the command."""
    flag, _, inline = rest.pop(0).partition("=")
    kind = release.flags.get(flag)
    if kind is None:
        command.unknown[flag] = f"{release.name} has no {flag}"
        command.problems.append(command.unknown[flag])
        if rest and not rest[0].startswith("--"):
            rest.pop(0)
        return
    if flag in command.values:
        command.problems.append(f"{flag} stands twice")
    if kind is bool:
        command.values[flag] = True
        return
    if not inline and (not rest or rest[0].startswith("--")):
        command.problems.append(f"{flag} lacks its value")
        return
    text = inline or rest.pop(0)
    try:
        command.values[flag] = _value(kind, text)
    except ValueError:
        command.problems.append(f"{flag} takes {'JSON' if kind is dict else kind.__name__}, not {text!r}")
        return
    if kind is dict:
        command.problems += _unknown(flag, command.values[flag], release.fields.get(flag))


def _value(kind: Kind, text: str) -> Any:
    if kind is int:
        return _whole(text)
    if kind is float:
        return float(text)
    return json.loads(text) if kind is dict else text


def _whole(text: str) -> int:
    """Read a whole number as vLLM does: 8k is 8000, 8K is 8192."""
    factor = _SUFFIXES.get(text[-1:])
    return round(float(text[:-1]) * factor) if factor else int(text)


def _unknown(where: str, value: Any, known: Any) -> list[str]:
    """Say which fields of a JSON value nobody knows; `known` of None knows all."""
    if not isinstance(value, dict):
        return [f"{where} takes a JSON object"]
    if known is None:
        return []
    found = [f"{where} has no field {name!r}" for name in value if name not in known]
    if isinstance(known, dict):
        for name, inner in known.items():
            if name in value:
                found += _unknown(f"{where}.{name}", value[name], inner)
    return found


def _check_speculation(command: Command, release: Release) -> None:
    config = command.values.get("--speculative-config")
    if not isinstance(config, dict):
        return
    method = config.get("method", "draft_model")
    if method not in release.methods:
        command.problems.append(f"{release.name} does not draft by {method!r}")
    window = config.get("num_speculative_tokens")
    if not isinstance(window, int) or window < 1:
        command.problems.append("--speculative-config needs num_speculative_tokens")
    if method in ("draft_model", "eagle", "eagle3") and not config.get("model"):
        command.problems.append("--speculative-config needs the draft's model")
