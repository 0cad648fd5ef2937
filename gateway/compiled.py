"""What of the two packages runs compiled (see `gateway/native/build.py`), and whether it still is what its source says."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def modules(root: Path = _ROOT) -> list[Path]:
    """Return the sources that have a compiled module beside them, which Python takes in their place."""
    built = [
        path for package in ("gateway", "classifier") for path in (root / package).rglob(f"*{EXTENSION_SUFFIXES[0]}")
    ]
    return sorted(source for path in built if (source := _source(path)).exists())


def stale(root: Path = _ROOT) -> list[str]:
    """Return the sources that were edited since; in a working tree alone, as installers date files as they like."""
    if not (root / "pyproject.toml").exists():
        return []
    return [
        str(path.relative_to(root))
        for path in modules(root)
        if path.stat().st_mtime > path.with_suffix(EXTENSION_SUFFIXES[0]).stat().st_mtime
    ]


def _source(built: Path) -> Path:
    return built.with_name(built.name.removesuffix(EXTENSION_SUFFIXES[0]) + ".py")
