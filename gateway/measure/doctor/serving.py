"""Engines as they would be started: command lines, and manifests that hold some, read into arguments and environment.

Taken are a command (`VAR=value vllm serve MODEL --flag …`, with or without `docker run` before it), a shell script that holds
one, and YAML or JSON with containers in it: Kubernetes objects, as `kubectl kustomize` or `kubectl get -o json` print them, and
Compose files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SERVER: Final = "vllm.entrypoints.openai.api_server"
_MENTIONS: Final = re.compile(r"\bvllm\s+serve\b|" + re.escape(_SERVER))
_TELLING: Final = frozenset({"--max-model-len", "--max-num-seqs", "--speculative-config", "--tensor-parallel-size"})
_SHORT: Final = {"-tp": "--tensor-parallel-size", "-sc": "--speculative-config", "-q": "--quantization"}
_POOL: Final = "draftlane.dev/pool"
_CHIPS: Final = "aws.amazon.com/neuron"


class ServingError(Exception):
    """A text that holds no engine, or cannot be read; the message says what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One engine: `args` is what follows `vllm serve`, the model first; `env` what is set for it.

    `chips` is what its container asks for, `swallows` whether a shell stays between it and SIGTERM.
    """

    where: str
    args: tuple[str, ...]
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    chips: int | None = None
    pool: str | None = None
    swallows: bool = False


def of_words(words: Sequence[str], where: str = "command") -> Serving:
    """Read a command line in words, or in one string of a shell.

    Raises:
        ServingError: it starts no vLLM.
    """
    found = _command(_split(words[0], where) if len(words) == 1 else list(words), where)
    if found is None:
        raise ServingError(f"{where}: starts no engine; expected: vllm serve MODEL --flag …")
    return found


def of_text(text: str, where: str) -> list[Serving]:
    """Read a file's text: manifests, or a shell script.

    Raises:
        ServingError: no engine is in it.
    """
    documents = _documents(text, where)
    found = [one for document in documents for one in _in_document(document, where)]
    if not found and not documents:
        found = list(_in_script(text, where))
    if not found:
        raise ServingError(f"{where}: holds no engine: no container with vLLM's flags, and no `vllm serve`")
    return found


def _in_script(text: str, where: str) -> Iterator[Serving]:
    for line in text.replace("\\\n", " ").splitlines():
        if _MENTIONS.search(line) and not line.lstrip().startswith("#"):
            one = _command(_split(line, where), where)
            if one is not None:
                yield one


def _split(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=False)
    except ValueError as wrong:
        raise ServingError(f"{where}: no command line: {wrong}") from None


def _command(words: list[str], where: str) -> Serving | None:
    """Return the engine that a command starts; assignments and `-e` before it are its environment."""
    at = next(
        (i for i, word in enumerate(words) if word.rpartition("/")[2] == "vllm" and words[i + 1 : i + 2] == ["serve"]),
        None,
    )
    before, rest = (words[:at], words[at + 2 :]) if at is not None else ([], [])
    if at is None and _SERVER in words:
        at = words.index(_SERVER)
        before, rest = words[:at], words[at + 1 :]
    if at is None:
        return None
    env = dict(
        word.removeprefix("--env=").split("=", 1) for word in before if _ASSIGNMENT.match(word.removeprefix("--env="))
    )
    image = next((word for word in before if re.fullmatch(r"[\w.-]+(?::\d+)?(?:/[\w.-]+)+:[\w.-]+", word)), None)
    end = next((i for i, word in enumerate(rest) if word in {"&", "&&", ";", "|", "||", ">", ">>", "2>&1"}), len(rest))
    return Serving(where=where, args=normal(rest[:end]), image=image, env=env)


def normal(args: Sequence[str]) -> tuple[str, ...]:
    """Return arguments as vLLM understands them: the model first, dashes in flags, short and dotted ones in full."""
    model: list[str] = []
    found: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word in _SHORT or word.startswith("--"):
            name, sign, value = word.partition("=")
            flag, _, path = _SHORT.get(name, name).partition(".")
            flag = flag.replace("_", "-")
            if flag == "--model" or path:
                given = value if sign else rest.pop(0) if rest else ""
                if path:
                    _put(nested.setdefault(flag, {}), path.replace("-", "_").split("."), given)
                else:
                    model = [given]
                continue
            found.append(flag + sign + value)
        else:
            found.append(word)
    for flag, fields in nested.items():
        found += [flag, json.dumps(fields)]
    return (*model, *found)


def _put(fields: dict[str, Any], path: list[str], text: str) -> None:
    for part in path[:-1]:
        fields = fields.setdefault(part, {})
    try:
        fields[path[-1]] = json.loads(text)
    except ValueError:
        fields[path[-1]] = text


def _documents(text: str, where: str) -> list[Mapping[str, Any]]:
    """Return the objects of a YAML or JSON file; none when it is neither."""
    try:
        import yaml
    except ImportError:
        yaml = None
    try:
        found = [json.loads(text)] if yaml is None else list(yaml.safe_load_all(text))
    except ValueError:
        if re.search(r"^(?:apiVersion|services):", text, re.MULTILINE):
            raise ServingError(f"{where}: YAML needs PyYAML (pip install pyyaml); or give JSON") from None
        return []
    except yaml.YAMLError as wrong:
        if re.search(r"^(?:apiVersion|services):", text, re.MULTILINE):
            raise ServingError(f"{where}: no YAML: {wrong}") from None
        return []
    return [document for document in found if isinstance(document, Mapping)]


def _in_document(document: Mapping[str, Any], where: str) -> Iterator[Serving]:
    """Yield the engines of one object, each named by what holds it."""
    kind, meta = document.get("kind"), document.get("metadata")
    if kind == "List" or (kind and str(kind).endswith("List")):
        items = document.get("items")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Mapping):
                yield from _in_document(item, where)
        return
    name = meta.get("name") if isinstance(meta, Mapping) else None
    named = f"{kind} {name}" if kind and name else where
    labels = meta.get("labels") if isinstance(meta, Mapping) else None
    pool = labels.get(_POOL) if isinstance(labels, Mapping) else None
    for place, container in _containers(document):
        one = _container(container, f"{named}{place}")
        if one is not None:
            yield replace(one, pool=pool)


def _containers(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield whatever looks like a container, however deep, with a name where it has one of its own."""
    if isinstance(value, Mapping):
        services = value.get("services")
        if isinstance(services, Mapping):
            yield from ((f" {name}", one) for name, one in services.items() if isinstance(one, Mapping))
        for key, inner in value.items():
            if key == "containers" and isinstance(inner, list):
                yield from (("", one) for one in inner if isinstance(one, Mapping))
            elif key != "services":
                yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)


def _container(container: Mapping[str, Any], where: str) -> Serving | None:
    command = _words(container.get("entrypoint", container.get("command") if "args" in container else None), where)
    args = _words(container["args"] if "args" in container else container.get("command"), where)
    image = container.get("image")
    image = str(image) if image else None
    found = _started(command, args, where)
    if found is None:
        flags = {word.partition("=")[0] for word in args}
        if not flags & _TELLING or any(word in {"sh", "bash"} for word in command):
            return None
        found = Serving(where=where, args=normal(args))  # the image's own entrypoint serves
    env = {**found.env, **_environment(container.get("env", container.get("environment")))}
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    chips = limits.get(_CHIPS) if isinstance(limits, Mapping) else None
    return replace(found, image=found.image or image, env=env, chips=int(str(chips)) if str(chips).isdigit() else None)


def _started(command: list[str], args: list[str], where: str) -> Serving | None:
    """Return the engine that command and arguments of a container start, through a shell or not."""
    whole = [*command, *args]
    script = next((i for i, word in enumerate(whole) if word == "-c"), None)
    if script is not None and _MENTIONS.search(" ".join(whole[script + 1 : script + 2])):
        text = whole[script + 1].replace("\\\n", " ")
        line = next(part for part in text.splitlines() if _MENTIONS.search(part))
        words: list[str] = []
        for word in _split(line, where):
            words += whole[script + 3 :] if word == "$@" else [word]
        found = _command(words, where)
        return found if found is None else replace(found, swallows="exec" not in words)
    return _command(whole, where)


def _words(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        return _split(value, where)
    return [str(word) for word in value] if isinstance(value, list) else []


def _environment(value: Any) -> dict[str, str]:
    """Return plain variables of Kubernetes' list, Compose's table or Compose's list."""
    if isinstance(value, Mapping):
        return {str(name): str(given) for name, given in value.items()}
    found: dict[str, str] = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping) and "value" in entry:
            found[str(entry.get("name"))] = str(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, given = entry.partition("=")
            found[name] = given
    return found
