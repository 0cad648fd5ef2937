"""What a check has found, in plain data, in words, and as an exit status; the same for every check of the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Severity = Literal["fix", "warn", "note", "ok"]
# By how much they matter: must be mended before deploying, costs speed or certainty, good to know, looked at and right.
SEVERITIES: Final[tuple[Severity, ...]] = ("fix", "warn", "note", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: where, what is so, and what to do about it, if anything."""

    severity: Severity
    where: str
    what: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.todo}" if self.todo else "")


@dataclass(frozen=True, slots=True)
class Checkup:
    """All that one check has found about one subject; `facts` are what it read on the way, ready for JSON."""

    check: str
    subject: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing must be mended."""
        return all(finding.severity != "fix" for finding in self.findings)

    def sorted(self) -> list[Finding]:
        """The findings, those that matter most first."""
        return sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))


def as_dict(checkups: Iterable[Checkup]) -> dict[str, Any]:
    """Return checkups ready for JSON: what to fix across all of them first."""
    kept = tuple(checkups)
    return {
        "kind": "doctor",
        "ok": all(one.ok for one in kept),
        "fix": [str(found) for one in kept for found in one.findings if found.severity == "fix"],
        "checks": [
            {
                "check": one.check,
                "subject": one.subject,
                "ok": one.ok,
                "findings": [asdict(found) for found in one.sorted()],
                "facts": dict(one.facts),
            }
            for one in kept
        ],
    }


def text(checkups: Iterable[Checkup]) -> str:
    """Return checkups as people read them."""
    kept = tuple(checkups)
    lines: list[str] = []
    for one in kept:
        lines += [f"{one.check}  {one.subject}"]
        lines += [f"  {found.severity:<4}  {found}" for found in one.sorted()]
        lines += [""]
    counts = [sum(found.severity == level for one in kept for found in one.findings) for level in ("fix", "warn")]
    verdict = f"{counts[0]} to fix" if counts[0] else "nothing to fix"
    return "\n".join([*lines, verdict + (f", {counts[1]} to look at" if counts[1] else "")])
