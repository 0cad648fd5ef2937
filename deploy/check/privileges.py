"""What the gateway may do where it runs: nobody, without capabilities, on a file system that it cannot write to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.check.documents import Finding

# What systemd must be told, and with which values; the rest of its sandbox is taste.
_UNIT = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "AmbientCapabilities": ""}


def image(path: Path) -> Iterator[Finding]:
    """Check that what an image runs is nobody: its last stage ends with a numeric user, which Kubernetes can verify."""
    last = re.split(r"(?m)^FROM ", path.read_text(encoding="utf-8"))[-1]
    users = re.findall(r"(?m)^USER (\S+)", last)
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield Finding(path.name, f"runs as {users[-1] if users else 'root'}; end its last stage with a numeric USER")


def compose(path: Path) -> Iterator[Finding]:
    """Check that the gateway of a Compose file has no capabilities, gains none, and writes to its volumes only."""
    service: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]["gateway"]
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    for name, value in wanted.items():
        if service.get(name) != value:
            yield Finding(f"{path.name} gateway", f"{name} must be {value}")
    for name in ("privileged", "cap_add", "user", "pid", "network_mode", "devices"):
        if name in service:
            yield Finding(f"{path.name} gateway", f"has no need of {name}")


def unit(path: Path) -> Iterator[Finding]:
    """Check that a unit runs as a user of its own and can gain nothing."""
    told = dict(re.findall(r"(?m)^(\w+)=(.*)$", path.read_text(encoding="utf-8")))
    if told.get("User", "root") == "root":
        yield Finding(path.name, "runs as root; name a User")
    for name, value in _UNIT.items():
        if told.get(name) != value:
            yield Finding(path.name, f"{name} must be {value or 'empty'}")
