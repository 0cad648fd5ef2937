"""Which version of Draftlane runs."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed distribution's version; a bare source tree has none."""
    try:
        return metadata.version("draftlane")
    except metadata.PackageNotFoundError:
        return "source"
