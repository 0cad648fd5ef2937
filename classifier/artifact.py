"""The artefact file: JSON that can be read, checksummed, refused when it does not fit, and never executed.

Numbers are base64 of little-endian single precision; mostly empty tables keep their non-zero rows only. Everything else is
plain: names of the features, what it was trained on, how it was judged, which draft its acceptance lengths speak of.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classifier.features import BUCKETS, INSTRUCTION, NAMES
from classifier.lexicon import CUES, TONGUES
from classifier.weights import ARRAYS, Weights

FORMAT = 1
SHIPPED = Path(__file__).parent / "model" / "artefact.json"
_SHAPES = {"rarity": 2 * BUCKETS, "words": 2 * BUCKETS}
_LIMIT = 64 * 1024 * 1024  # bytes; thirty times the shipped one
_RETRAIN = (
    "train one with `python -m classifier train --data DIR --out FILE`, or leave the setting out to use the shipped one"
)


class ArtefactError(Exception):
    """An artefact that cannot be used; the message says why and what to do."""


def digest_of() -> str:
    """Sixteen hex digits that name the features: their order, the words behind them, the hashing."""
    told = json.dumps([NAMES, CUES, TONGUES, INSTRUCTION, BUCKETS], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _pack(array: npt.NDArray[np.float32]) -> dict[str, Any]:
    rows = array.shape[0]
    kept = np.flatnonzero(array.reshape(rows, -1).any(axis=1)) if rows else np.zeros(0, np.intp)
    packed: dict[str, Any] = {"shape": list(array.shape)}
    if kept.size < 0.7 * rows:
        packed["rows"] = base64.b64encode(kept.astype("<u4").tobytes()).decode()
        array = array[kept]
    packed["values"] = base64.b64encode(array.astype("<f4").tobytes()).decode()
    return packed


def _unpack(packed: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    shape = tuple(int(size) for size in packed["shape"])
    values = np.frombuffer(base64.b64decode(packed["values"], validate=True), "<f4").astype(np.float32)
    if "rows" not in packed:
        return values.reshape(shape)
    rows = np.frombuffer(base64.b64decode(packed["rows"], validate=True), "<u4")
    full = np.zeros(shape, np.float32)
    full[rows] = values.reshape(rows.size, *shape[1:])
    return full


def _seal(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content in canonical form."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def dump(weights: Weights, about: Mapping[str, Any]) -> bytes:
    """The bytes of an artefact; the same weights and description always give the same bytes."""
    content = {
        "format": FORMAT,
        "about": dict(about),
        "features": {"digest": digest_of(), "buckets": BUCKETS, "names": list(NAMES)},
        "arrays": {name: _pack(getattr(weights, name)) for name in ARRAYS},
    }
    return (json.dumps({"sha256": _seal(content), **content}, indent=1, sort_keys=True) + "\n").encode()


def save(path: Path, weights: Weights, about: Mapping[str, Any]) -> str:
    """Write an artefact whole or not at all; returns its version."""
    raw = dump(weights, about)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(raw)
    partial.replace(path)
    return str(json.loads(raw)["sha256"][:12])


def load(path: Path | None = None) -> tuple[Weights, dict[str, Any], str]:
    """Read an artefact (None: the shipped one): weights, description, version. Raises ArtefactError saying what to do."""
    path = path or SHIPPED
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read ({error.strerror}); {_RETRAIN}") from error
    if len(raw) > _LIMIT:
        raise ArtefactError(f"{path} is larger than {_LIMIT} bytes and is no artefact; {_RETRAIN}")
    try:
        content = json.loads(raw)
        sealed = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ArtefactError(f"{path} is not an artefact: no JSON object with a checksum; {_RETRAIN}") from error
    return _open(path, content, sealed)


def _open(path: Path, content: dict[str, Any], sealed: object) -> tuple[Weights, dict[str, Any], str]:
    if content.get("format") != FORMAT:
        raise ArtefactError(f"{path} has format {content.get('format')!r}, this release reads {FORMAT}; {_RETRAIN}")
    if _seal(content) != sealed:
        raise ArtefactError(
            f"{path} does not match its checksum: it was cut short or changed; restore it, or {_RETRAIN}"
        )
    try:
        if content["features"]["digest"] != digest_of():
            raise ArtefactError(f"{path} was trained on other features than this release computes; {_RETRAIN}")
        weights = Weights(**{name: _unpack(content["arrays"][name]) for name in ARRAYS})
        about = dict(content["about"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError, binascii.Error) as error:
        raise ArtefactError(f"{path} lacks what a scorer needs ({error}); {_RETRAIN}") from error
    problem = _misfit(weights)
    if problem:
        raise ArtefactError(f"{path}: {problem}; {_RETRAIN}")
    return weights, about, str(sealed)[:12]


def _misfit(weights: Weights) -> str | None:
    """What is wrong with the shapes or the numbers, or None."""
    c, w, p = len(NAMES), 2 * BUCKETS, weights.prototypes.shape[0]
    wanted: dict[str, tuple[int, ...]] = {
        "centre": (c,), "scale": (c,), "rarity": (w,), "prototypes": (p, c), "width": (1,), "bias": (3,), "cues": (c, 3),
        "words": (w, 3), "likeness": (p, 3), "noise": (c + 2,), "curve": (10,), "knots": (weights.knots.shape[0], 2),
    }  # fmt: skip
    for name, shape in wanted.items():
        array = getattr(weights, name)
        if array.shape != shape:
            return f"{name} has the shape {array.shape} and not {shape}"
        if not np.isfinite(array).all():
            return f"{name} holds numbers that are not finite"
    if len(weights.knots) < 2 or (np.diff(weights.knots, axis=0) < 0).any():
        return "the calibration is not monotone"
    if weights.knots[0, 1] < 0.0 or weights.knots[-1, 1] > 1.0:
        return "the calibration leaves [0, 1]"
    if (weights.curve < 1.0).any() or weights.width[0] < 0.0:
        return "an acceptance length is below one, or likeness grows with distance"
    return None
