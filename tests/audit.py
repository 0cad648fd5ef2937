"""Asks the vulnerability database about what serving needs: `python tests/audit.py` ends with 1 if it knows of a weakness.

Where the database cannot be asked, or does not know a package, that is told and no failure: `make lint` works offline. It
takes at most LONGEST seconds. `make audit` insists on an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LONGEST = 20.0
AUDIT = (
    "-m",
    "pip_audit",
    "--no-deps",
    "--disable-pip",
    "--timeout",
    "5",
    "--progress-spinner",
    "off",
    "--format",
    "json",
)


def ask(requirements: Path, seconds: float = LONGEST) -> list[Mapping[str, Any]] | None:
    """Return what is known of each pinned package, None where nobody could be asked in time."""
    command = [sys.executable, *AUDIT, "--requirement", str(requirements)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False).stdout
        found: list[Mapping[str, Any]] = json.loads(said)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return found


def verdict(found: Iterable[Mapping[str, Any]] | None) -> tuple[int, list[str]]:
    """Return the exit code and what to tell."""
    if found is None:
        return 0, ["audit: the vulnerability database could not be asked"]
    told, unknown = [], 0
    for package in found:
        unknown += "skip_reason" in package
        told += [
            f"audit: {package['name']} {package['version']}: {weakness['id']}, mended in {weakness['fix_versions'] or 'none'}"
            for weakness in package.get("vulns", ())
        ]
    if told:
        return 1, told
    return 0, [f"audit: no known weakness{f'; nothing is known of {unknown} packages' if unknown else ''}"]


if __name__ == "__main__":
    code, lines = verdict(ask(ROOT / "requirements" / "serve.txt"))
    print("\n".join(lines))  # noqa: T201 - a command prints
    sys.exit(code)
