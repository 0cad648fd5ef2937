"""Reading a request the way the target does: an instruction, the material it comes with, and what the words name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"```([\w+-]*)[ \t]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_LABEL = re.compile(
    r"\b(?:input|text|passage|article|email|sentence|document|data|code|csv|json)\s*:\s*", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z][a-z]{3,}")
_MANY = re.compile(
    r"\b(\d{1,4})\s+(?:\w+\s+){0,3}?(?:numbers|rows|lines|items|records|entries|users|people|products|objects|orders|times|"
    r"employees|customers|books|cities|names|examples|ideas|steps|points|statements|inserts?|elements|questions|facts|tips)",
    re.IGNORECASE,
)
_COLUMNS = re.compile(
    r"\b(?:columns?|fields?|keys?|propert(?:y|ies)|attributes?|with)\b:?\s+(?:named\s+|called\s+|are\s+|the\s+)?"
    r"((?:\w+(?:\s*,\s*(?:and\s+)?|\s+and\s+))+\w+)",
    re.IGNORECASE,
)
_STOP_WORDS = frozenset(
    "about above after again also answer based before below between both cannot could does each either every example "
    "explain following format from function give have here into just like list make more most much must need only other "
    "output over please provide return should show simple some such tell than that their them then there these they "
    "this those three using very want were what when where which while will with without word words write would your".split()
)
_CHOSEN_LENGTH = 12
_READ = 65_536  # characters
_INSTRUCTION = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """What the target understands: what to do, the text it is to be done to ("" if none), and that text's language."""

    instruction: str
    material: str
    language: str

    @property
    def topics(self) -> list[str]:
        """The content words of the instruction, lower-case, without repetition, at most a dozen."""
        words = (word.lower() for word in _WORD.findall(self.instruction))
        return list(dict.fromkeys(word for word in words if word not in _STOP_WORDS))[-_CHOSEN_LENGTH:]

    def many(self, default: int) -> int:
        """Return how many things are asked for."""
        found = _MANY.search(self.instruction)
        return max(1, int(found[1])) if found else default

    def columns(self) -> list[str]:
        """Return the field names that the instruction lists, if it lists any."""
        found = _COLUMNS.search(self.instruction)
        if found is None:
            return []
        names = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", found[1])
        return [name for name in names if name]


def read(text: str) -> Request:
    """Split a message into instruction and material: a fenced block, what follows an empty line, or a labelled rest.

    However long the message, a bounded part of either is read.
    """
    found = _split(text[:_READ])
    return Request(found.instruction[:_INSTRUCTION], found.material, found.language)


def _split(text: str) -> Request:
    fence = _FENCE.search(text)
    if fence is not None:
        rest = f"{text[: fence.start()]}{text[fence.end() :]}".strip()
        return Request(rest, fence[2], fence[1].lower())
    before, gap, after = text.partition("\n\n")
    if gap and after.strip():
        return Request(before, after.strip("\n"), "")
    label = _LABEL.search(text)
    if label is not None and len(text) - label.end() > 20:
        return Request(text[: label.start()], text[label.end() :], "")
    line, gap, rest = text.partition("\n")
    if gap and len(rest) > len(line):
        return Request(line, rest.strip("\n"), "")
    return Request(text, "", "")


Record = dict[str, str]


def records(material: str) -> list[Record]:
    """Return the records in JSON, CSV or KEY=VALUE material; [] when it is none of these."""
    found = _json_records(material)
    if found:
        return found
    lines = [line.strip() for line in material.strip().splitlines() if line.strip()]
    pairs = [line.split("=", 1) for line in lines]
    if lines and all(len(pair) == 2 and pair[0].replace("_", "").isalnum() for pair in pairs):
        return [{"key": key.strip(), "value": value.strip()} for key, value in pairs]
    separator = next((one for one in (",", "\t", ";", "|") if lines and one in lines[0]), None)
    if separator is None or len(lines) < 2:
        return []
    header, *rows = ([cell.strip() for cell in line.strip("|").split(separator)] for line in lines)
    if len(header) < 2:
        return []
    return [dict(zip(header, row, strict=False)) for row in rows if len(row) == len(header)]


def _json_records(material: str) -> list[Record]:
    start = min((at for at in (material.find("["), material.find("{")) if at >= 0), default=-1)
    if start < 0:
        return []
    try:
        value, _ = json.JSONDecoder().raw_decode(material[start:])
    except (ValueError, RecursionError):
        return []
    rows: Sequence[object] = value if isinstance(value, list) else [value]
    return [{str(key): _cell(cell) for key, cell in row.items()} for row in rows if isinstance(row, dict)]


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
