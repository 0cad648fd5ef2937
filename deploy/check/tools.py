"""What other tools say: hadolint, yamllint, promtool, the Compose specification, systemd, and IAM's own list of actions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from policy_sentry.querying.actions import get_actions_for_service
from policy_sentry.querying.conditions import get_condition_keys_for_service

from deploy.check.documents import BIN, DEPLOY, ROOT, Finding
from deploy.check.manifests import image_problem

_GLOBAL_CONDITIONS: Final = frozenset({"aws:SourceAccount", "aws:SourceArn", "aws:PrincipalOrgID"})


def run(command: Sequence[str | Path], *, where: str, folder: Path = ROOT) -> list[Finding]:
    """Run a tool; what it says when it is not content is the finding."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode == 0:
        return []
    lines = (done.stdout + done.stderr).strip().splitlines()
    return [Finding(where, line) for line in lines if line.strip()] or [Finding(where, f"exit {done.returncode}")]


def hadolint(paths: Sequence[Path]) -> list[Finding]:
    """Look at Dockerfiles."""
    return run([BIN / "hadolint", *paths], where="hadolint")


def yamllint(folders: Sequence[Path]) -> list[Finding]:
    """Look at all YAML."""
    return run(
        [BIN / "yamllint", "--strict", "--config-file", DEPLOY / "check" / "yamllint.yml", *folders], where="yamllint"
    )


def promtool() -> Path | None:
    """Return Prometheus' own checker: the tests' one, or the machine's."""
    for place in (*sorted((ROOT / ".tools").rglob("promtool")), Path(shutil.which("promtool") or "/nonexistent")):
        if place.is_file():
            return place
    return None


def prometheus(folder: Path) -> list[Finding]:
    """Check configurations and rules with promtool."""
    tool = promtool()
    if tool is None:
        return [Finding("promtool", "is not installed: run make tools")]
    rules = sorted((folder / "prometheus" / "rules").glob("*.yml"))
    found = run([tool, "check", "rules", *rules], where="promtool")
    # Compose puts the rules beside the configuration; here they lie elsewhere, which promtool takes for an empty pattern.
    for config in (folder / "prometheus" / "prometheus.yml", folder / "docker" / "prometheus.yml"):
        found += run([tool, "check", "config", config], where=str(config.relative_to(ROOT)))
    return found


def compose(path: Path) -> list[Finding]:
    """Check a Compose file against the specification's schema, its images and the files that it mounts."""
    found = run([BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path], where=path.name)
    services: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        problem = image_problem(service["image"])
        if problem:
            found.append(Finding(f"{path.name} {name}", problem))
        for volume in service.get("volumes", ()):
            source = str(volume).partition(":")[0]
            if source.startswith(".") and not (path.parent / source).exists():
                found.append(Finding(f"{path.name} {name}", f"mounts {source}, which is not there"))
    return found


def dockerfile_images(path: Path) -> Iterator[Finding]:
    """Check that every stage begins with a pinned image."""
    for image in re.findall(r"^FROM (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        problem = image_problem(image)
        if problem:
            yield Finding(path.name, problem)


def systemd(path: Path) -> list[Finding]:
    """Let systemd read the unit, where there is a systemd; that the gateway is not installed here is no finding."""
    if shutil.which("systemd-analyze") is None:
        return []
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if path.name in line and "is not executable" not in line]
    return [Finding(path.name, line) for line in said]


def iam(path: Path) -> Iterator[Finding]:
    """Check a policy: real actions, none with a wildcard, real conditions, and * as resource only behind a condition."""
    try:
        policy = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as wrong:
        yield Finding(path.name, f"is no JSON: {wrong}")
        return
    if policy.get("Version") != "2012-10-17":
        yield Finding(path.name, "Version must be 2012-10-17")
    for statement in policy["Statement"]:
        where = f"{path.name} {statement.get('Sid')}"
        actions = _list(statement["Action"])
        for action in actions:
            service = action.partition(":")[0]
            if "*" in action:
                yield Finding(where, f"{action} is a wildcard")
            elif action not in get_actions_for_service(service):
                yield Finding(where, f"there is no action {action}")
        keys = {key for operator in statement.get("Condition", {}).values() for key in operator}
        services = {action.partition(":")[0] for action in actions}
        known = {key for service in services for key in get_condition_keys_for_service(service)} | _GLOBAL_CONDITIONS
        for key in sorted(keys - known):
            yield Finding(where, f"there is no condition {key}")
        if "*" in _list(statement.get("Resource", [])) and not keys:
            yield Finding(where, "allows every resource without a condition")


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
