"""Running text: sentences made of a small grammar over the lexicon and the prompt's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gateway.engine.writing.lexicon import (
    ADJECTIVES,
    ADVERBS,
    FIRST_NAMES,
    LINKS,
    NOUNS,
    OPENINGS,
    PREPOSITIONS,
    PRESENT,
    VERBS,
)
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.request import Request

_DETERMINERS = (
    "the",
    "a",
    "this",
    "every",
    "that",
    "another",
    "one",
    "her",
    "their",
    "some",
    "his",
    "no",
    "each",
    "our",
)
_TAILS = (" and", ", yet", ";", ", so", ", while", " because", ", as", " until", ", though", " before")
_GREETINGS = ("Sure! ", "Of course. ", "Good question. ", "Happy to help. ", "", "", "")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATIONS = (("+", "adds"), ("*", "multiplies"), ("-", "leaves"))


class Prose:
    """Writes sentences about `topics`; tense "past" tells a story, "present" explains."""

    def __init__(self, pen: Pen, topics: Sequence[str], *, tense: str) -> None:
        self._pen = pen
        self._topics = tuple(topics)
        self._verbs = VERBS if tense == "past" else PRESENT

    def sentence(self) -> str:
        """Return one sentence, with its full stop and no space around it."""
        pen = self._pen
        text = self._clause()
        turn = pen.roll(10)
        if turn < 3:
            text = f"{pen.pick(OPENINGS)}, {text}"
        elif turn < 5:
            text = f"{pen.pick(LINKS)} {text}, {self._clause()}"
        if turn in (4, 6, 7):
            text = f"{text}{pen.pick(_TAILS)} {self._clause()}"
        return text[0].upper() + text[1:] + pen.prefer(".", "!", "…", margin=3.0)

    def paragraph(self) -> Iterator[str]:
        """Yield three to six sentences, each with the space that precedes it."""
        for position in range(3 + self._pen.roll(4)):
            yield (" " if position else "") + self.sentence()

    def phrase(self) -> str:
        """Return a noun with its companions."""
        pen = self._pen
        adjective = f"{pen.pick(ADJECTIVES)} " if pen.chance(0.45) else ""
        words = f"{adjective}{self._noun()}"
        determiner = pen.pick(_DETERMINERS)
        return f"{'an' if determiner == 'a' and words[0] in 'aeiou' else determiner} {words}"

    def _noun(self) -> str:
        if self._topics and self._pen.chance(0.2):
            return self._pen.pick(self._topics)
        return self._pen.pick(NOUNS)

    def _clause(self) -> str:
        pen = self._pen
        adverb = f"{pen.pick(ADVERBS)} " if pen.chance(0.25) else ""
        text = f"{self.phrase()} {adverb}{pen.pick(self._verbs)}"
        shape = pen.roll(4)
        if shape != 1:
            text = f"{text} {self.phrase()}"
        if shape in (1, 2):
            text = f"{text} {pen.pick(PREPOSITIONS)} {self.phrase()}"
        return text


def story(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a story of some paragraphs, with a person in it."""
    prose = Prose(pen, [*request.topics, pen.pick(FIRST_NAMES)], tense="past")
    for paragraph in range(4 + pen.roll(4)):
        if paragraph:
            yield "\n\n"
        yield from prose.paragraph()


def poem(request: Request, pen: Pen) -> Iterator[str]:
    """Yield some stanzas of four lines."""
    prose = Prose(pen, request.topics, tense="present")
    for line in range(4 * (3 + pen.roll(3))):
        yield ("\n" if line % 4 else "\n\n") * (line > 0)
        yield f"{pen.pick(ADJECTIVES).capitalize()} {pen.pick(NOUNS)} {pen.pick(PREPOSITIONS)} {prose.phrase()}"
        yield pen.pick((",", ".", ";", ""))


def explanation(request: Request, pen: Pen) -> Iterator[str]:
    """Yield an answer to an open question: a paragraph, some headed points, a paragraph."""
    prose = Prose(pen, request.topics, tense="present")
    yield pen.pick(_GREETINGS)
    yield from prose.paragraph()
    if pen.chance(0.5):
        yield "\n"
        for point in range(3 + pen.roll(4)):
            yield f"\n{point + 1}. **{pen.pick(ADJECTIVES).capitalize()} {pen.pick(NOUNS)}**: {prose.sentence()}"
    for _ in range(1 + pen.roll(2)):
        yield "\n\n"
        yield from prose.paragraph()


def points(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a numbered list of ideas, each a phrase or a sentence."""
    prose = Prose(pen, request.topics, tense="present")
    for point in range(request.many(8)):
        yield f"{point + 1}. {prose.sentence()}\n"


def reckoning(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a word problem's solution, one sum after the other, from the problem's own numbers."""
    prose = Prose(pen, request.topics, tense="present")
    numbers = [
        float(one) if "." in one else int(one) for one in _NUMBER.findall(request.instruction + request.material)
    ]
    total = numbers[0] if numbers else 1 + pen.roll(20)
    for step, number in enumerate(numbers[1:5] or [2, 3]):
        sign, verb = _OPERATIONS[pen.roll(len(_OPERATIONS))]
        value = total + number if sign == "+" else total * number if sign == "*" else total - number
        lead = pen.pick(("First", "Then", "Next", "So", "Now"))
        yield f"{lead}, {prose.phrase()} {verb} {number}: {total:g} {sign} {number} = {value:g}.\n"
        total = value
        if step > 3:
            break
    yield f"The answer is {total:g}.\n"


def reply(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a short answer in conversation."""
    prose = Prose(pen, request.topics, tense="present")
    yield pen.pick(_GREETINGS)
    for sentence in range(1 + pen.roll(3)):
        yield (" " if sentence else "") + prose.sentence()
