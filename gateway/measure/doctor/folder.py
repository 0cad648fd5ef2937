"""A model's files as they lie in its folder: configuration, tokenizer and special tokens. No weights are read.

Nothing in vLLM compares tokenizers: it gives the target's token ids to the draft and believes what comes back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

SECTIONS: Final = ("model.vocab", "model.merges", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
SPECIAL: Final = ("eos", "bos", "pad")
_KNOWN: Final = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


class FolderError(Exception):
    """Files that are no model's; the message names the file and says what to do."""


@dataclass(frozen=True)
class ModelFiles:
    """What was found of one model. `tokenizer` is tokenizer.json, or one made of vocab.json and merges.txt."""

    name: str
    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    generation: Mapping[str, Any]
    sentencepiece: str | None = None  # SHA-256 of tokenizer.model, where there is nothing else

    @cached_property
    def meanings(self) -> dict[int, str]:
        """What each token id stands for, whichever section says so."""
        vocab = _section(self.tokenizer, "model.vocab")
        if isinstance(vocab, Mapping):
            found = {int(number): str(token) for token, number in vocab.items()}
        else:  # a unigram model: tokens in order, each with its score
            found = {number: str(entry[0]) for number, entry in enumerate(vocab or ())}
        found.update({int(token["id"]): str(token["content"]) for token in self.tokenizer.get("added_tokens") or ()})
        return found

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, which are often more than there are tokens."""
        size = self.inner.get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def inner(self) -> Mapping[str, Any]:
        """The language model's part of the configuration: models that see have it one level down."""
        found = self.config.get("text_config")
        return found if isinstance(found, Mapping) else self.config

    @property
    def hashes(self) -> dict[str, str]:
        """A canonical digest of each section of the tokenizer."""
        return {name: canonical(name, _section(self.tokenizer, name)) for name in SECTIONS} if self.tokenizer else {}

    def special(self, which: str) -> tuple[int, ...]:
        """Return the ids of a special token: of the generation's settings, else the model's, else the tokenizer's."""
        for settings in (self.generation, self.inner, self.config):
            ids = settings.get(f"{which}_token_id")
            if isinstance(ids, int):
                return (ids,)
            if isinstance(ids, list):
                return tuple(sorted(number for number in ids if isinstance(number, int)))
        token = self.tokenizer_config.get(f"{which}_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        return tuple(number for number, meaning in self.meanings.items() if content is not None and meaning == content)


def read(paths: Sequence[Path]) -> ModelFiles:
    """Read a model's folder, or single files of it, recognised by their names or by what is in them.

    Raises:
        FolderError: a file cannot be read or is none of a model's.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            found = {name: path / name for name in _KNOWN if (path / name).is_file()}
            if not found.keys() & {"config.json", "tokenizer.json", "vocab.json", "tokenizer.model"}:
                raise FolderError(f"{path}: has neither config.json nor tokenizer.json; name the model's folder")
            files.update(found)
        else:
            files[_kind(path)] = path
    opened = {name: _json(files[name]) for name in files if name.endswith(".json")}
    tokenizer = opened.get("tokenizer.json") or _made(opened.get("vocab.json"), files.get("merges.txt"))
    if not _sound(tokenizer):
        where = files.get("tokenizer.json") or files["vocab.json"]
        raise FolderError(f"{where}: model.vocab, model.merges or added_tokens are not a tokenizer's")
    return ModelFiles(
        name=paths[0].name if paths[0].is_dir() else str(paths[0]),
        config=opened.get("config.json", {}),
        tokenizer=tokenizer,
        tokenizer_config=opened.get("tokenizer_config.json", {}),
        generation=opened.get("generation_config.json", {}),
        sentencepiece=_digest(files["tokenizer.model"]) if "tokenizer.model" in files else None,
    )


def _kind(path: Path) -> str:
    """Return which of a model's files this is."""
    if path.name in _KNOWN:
        return path.name
    if not path.name.endswith(".json"):
        raise FolderError(f"{path}: no folder and none of {', '.join(_KNOWN)}")
    held = _json(path)
    if isinstance(held.get("model"), Mapping) and "vocab" in held["model"]:
        return "tokenizer.json"
    if "vocab_size" in held or "architectures" in held or "text_config" in held:
        return "config.json"
    raise FolderError(f"{path}: holds neither a tokenizer nor a model's configuration")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise FolderError(f"{path}: {wrong.strerror or wrong}") from None
    except (ValueError, RecursionError) as wrong:
        raise FolderError(f"{path}: no JSON ({wrong}); fetch it again, it may be a pointer to large storage") from None
    if not isinstance(found, dict):
        raise FolderError(f"{path}: holds no JSON object")
    return found


def _sound(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the ids of a tokenizer can be read; that there is none is sound."""
    if not tokenizer:
        return True
    vocab, merges = _section(tokenizer, "model.vocab"), _section(tokenizer, "model.merges") or []
    added = tokenizer.get("added_tokens") or []
    if not isinstance(merges, list) or not isinstance(added, list):
        return False
    if isinstance(vocab, Mapping):
        whole = all(isinstance(number, int) for number in vocab.values())
    else:
        whole = isinstance(vocab, list) and all(isinstance(entry, list) and entry for entry in vocab)
    return (
        whole
        and all(isinstance(merge, str | list) for merge in merges)
        and all(isinstance(one, Mapping) and isinstance(one.get("id"), int) and "content" in one for one in added)
    )


def _made(vocab: Mapping[str, Any] | None, merges: Path | None) -> dict[str, Any]:
    """Return the tokenizer that two files of the older form make."""
    if vocab is None:
        return {}
    lines = merges.read_text(encoding="utf-8").splitlines() if merges is not None else []
    return {"model": {"vocab": vocab, "merges": [line for line in lines if line and not line.startswith("#version")]}}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as wrong:
        raise FolderError(f"{path}: {wrong.strerror or wrong}") from None


def _section(tokenizer: Mapping[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    found = tokenizer.get(outer)
    return found.get(inner) if inner and isinstance(found, Mapping) else found


def canonical(name: str, section: Any) -> str:
    """Return a digest of a section that is the same however it was written: merges as pairs, added tokens by id."""
    if name == "model.merges" and section:
        section = [merge.split(" ", 1) if isinstance(merge, str) else list(merge) for merge in section]
    if name == "added_tokens" and section:
        section = sorted(section, key=lambda token: int(token["id"]))
    text = json.dumps(section, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
