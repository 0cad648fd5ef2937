"""Looks for secrets in every committed file: `python tests/leaks.py` prints where, and ends with 1 if there are any.

Known forms (keys and tokens of services, private keys, JSON web tokens, passwords in addresses), and strings in quotes that
look like chance: long, of one alphabet, of high entropy. What is no secret although it looks like one stands in
`leaks.allowed`, as its digest and the reason; digests of keys, 64 hex digits, are what this project writes on purpose.
Everything at once takes a second: it belongs to `make lint`. Nothing is asked of any service.
"""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).with_suffix(".allowed")
# Written so that this file does not hold what it looks for.
KNOWN = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY" + "-----",
    "key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "token of GitHub": r"\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{22,}",
    "key of OpenAI or Anthropic": r"\bsk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_]{32,}",
    "token of Slack": r"\bxox[abprs]-[0-9A-Za-z-]{20,}",
    "token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "key of Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "token of GitLab": r"\bglpat-[0-9A-Za-z_-]{20,}",
    "token of PyPI": r"\bpypi-[A-Za-z0-9_-]{50,}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "password in an address": r"[a-z]://[^\s/:@\"'{}$<>]*:[^\s/:@\"'{}$<>]{6,}@[\w.-]",
}
_KNOWN = re.compile("|".join(f"(?P<k{number}>{pattern})" for number, pattern in enumerate(KNOWN.values())))
_QUOTED = re.compile(r"""(["'])([A-Za-z0-9+/_=-]{24,200})\1""")
_HEX = re.compile(r"[0-9a-fA-F]+")
HEX_BITS, OTHER_BITS = 3.2, 4.4  # per character; words and paths stay below
# Measured data, weights and locks are full of numbers that no person has written.
DATA = (
    "classifier/model/",
    "classifier/seed/",
    "bench/fuzz/corpus/",
    "tests/node/package-lock.json",
    "deploy/grafana/dashboards/",
)


def committed() -> list[str]:
    """Return the names of all files that git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def allowed() -> frozenset[str]:
    """Return the digests of what is no secret."""
    lines = ALLOWED.read_text().splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))


def digest(text: str) -> str:
    """Return the digest by which a string may be allowed."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def bits(text: str) -> float:
    """Return the entropy of a string's characters, in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def looks_random(text: str) -> bool:
    """Whether a string is more likely chance than somebody's words; a digest of 64 hex digits is expected to be."""
    if _HEX.fullmatch(text):
        return len(text) not in (40, 64) and bits(text) > HEX_BITS
    return bits(text) > OTHER_BITS and any(c.isdigit() for c in text) and any(c.isupper() for c in text)


def found(name: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of all that looks like a secret in a file."""
    for match in _KNOWN.finditer(text):
        kind = list(KNOWN)[int((match.lastgroup or "k0")[1:])]
        yield text.count("\n", 0, match.start()) + 1, kind, match[0]
    if not name.startswith(DATA):
        for match in _QUOTED.finditer(text):
            if looks_random(match[2]):
                yield text.count("\n", 0, match.start()) + 1, "random string", match[2]


def leaks() -> list[str]:
    """Return where secrets are, each with its kind, its first characters and the digest that would allow it."""
    known = allowed()
    return [
        f"{name}:{line}: {kind} {text[:6]}… ({digest(text)})"
        for name in committed()
        for line, kind, text in found(name, (ROOT / name).read_bytes().decode("latin-1"))
        if digest(text) not in known
    ]


if __name__ == "__main__":
    told = leaks()
    print("\n".join(told) or "no secret in any committed file")  # noqa: T201 - a command prints
    sys.exit(1 if told else 0)
