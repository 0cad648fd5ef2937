"""Work on given text: edits that keep most of it, extraction, summaries, translation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gateway.engine.writing.lexicon import ADJECTIVES, NOUNS
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.prose import Prose
from gateway.engine.writing.request import Request

_RENAME = re.compile(
    r"\b(?:rename|replace|change|substitute)\s+(?:all\s+|every\s+|the\s+)*(?:occurrences?\s+of\s+)?"
    r"(?:the\s+)?(?:variable|function|word|name|method|class|column|string)?\s*[`\"']?([\w.-]+)[`\"']?\s+"
    r"(?:to|with|by|into)\s+[`\"']?([\w.-]+)",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* \d{4}\b")
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+)*", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_PIECE = re.compile(r"\s*\S+")
_SYLLABLES = (
    "der die das und ein eine sch er en be ge ver auf ung lich keit heit aus ein mit von zu ist nicht auch werden haben "
    "sein sie wir ihr fen ten gen len ren tag weg haus wort zeit mal kon pro in for te ra mo li sa ne ko ri ta le"
).split()


def edited(request: Request, pen: Pen) -> Iterator[str]:
    """Yield the material with the renaming or the small corrections that the instruction asks for."""
    text = request.material
    rename = _RENAME.search(request.instruction)
    if rename is not None:
        text = re.sub(rf"(?<![\w]){re.escape(rename[1])}(?![\w])", lambda _: rename[2], text)
    fence = "```" in request.language or bool(request.language)
    if fence:
        yield f"```{request.language}\n"
    for piece in _PIECE.findall(text):
        yield piece if rename is not None else _touched(piece, pen)
    yield "\n```" if fence else ""


def _touched(piece: str, pen: Pen) -> str:
    """Return a word, changed in one of thirty cases when it is plain, as a corrector does."""
    word = piece.strip()
    if not word.isalpha() or not word.islower() or not pen.chance(1 / 30):
        return pen.prefer(piece, piece + ",", margin=8.0) if word.isalpha() else piece
    return piece.replace(word, pen.pick(ADJECTIVES if len(word) % 2 else NOUNS))


def extracted(request: Request, pen: Pen) -> Iterator[str]:
    """Yield what the instruction wants out of the material, an item a line."""
    text = request.instruction.lower()
    pattern = next((pattern for word, pattern in _WANTED if word in text), _NAME)
    found = list(dict.fromkeys(pattern.findall(request.material))) or request.material.split()[:5]
    for item in found:
        yield f"{pen.prefer('- ', '* ', margin=6.0)}{item}\n"


_WANTED: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("mail", _EMAIL),
    ("date", _DATE),
    ("number", _NUMBER),
    ("amount", _NUMBER),
    ("price", _NUMBER),
)


def summarised(request: Request, pen: Pen) -> Iterator[str]:
    """Yield some sentences of the material, joined by words of the target's own."""
    sentences = [one.strip() for one in _SENTENCE.findall(request.material) if len(one.split()) > 3]
    prose = Prose(pen, request.topics, tense="present")
    kept = [one for one in sentences if pen.chance(0.4)][:6] or sentences[:2]
    for position, sentence in enumerate(kept):
        yield (" " if position else "") + sentence
        if pen.chance(0.4):
            yield " " + prose.sentence()
    if not kept:
        yield prose.sentence()


def translated(request: Request, pen: Pen) -> Iterator[str]:
    """Yield the material word by word in a made-up tongue: same order and marks, other words."""
    words: dict[str, str] = {}
    for piece in _PIECE.findall(request.material or request.instruction):
        yield re.sub(r"[A-Za-z]+", lambda found: _foreign(found[0], words, pen), piece)


def _foreign(word: str, words: dict[str, str], pen: Pen) -> str:
    known = words.get(word.lower())
    if known is None or pen.sampling.temperature > 0:
        known = words[word.lower()] = "".join(pen.pick(_SYLLABLES) for _ in range(1 + len(word) // 4))
    return known.capitalize() if word[0].isupper() else known


Writer = Callable[[Request, Pen], Iterator[str]]
