"""Sentences: stories, explanations and chat, made of a small grammar over the lexicon and the prompt's own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.engine.lexicon import ADJECTIVES, ADVERBS, LINKS, NOUNS, OPENINGS, PREPOSITIONS, PRESENT, VERBS
from gateway.engine.pen import Pen

_DETERMINERS = ("the", "a", "this", "every", "that", "another", "one", "her", "their", "some", "his", "no", "each", "our")
_TAILS = (" and", ", yet", ";", ", so", ", while", " because", ", as", " until", ", though", " before")


class Prose:
    """Writes sentences about `topics`; `past` tells a story, otherwise it explains."""

    def __init__(self, pen: Pen, topics: Sequence[str], *, tense: str) -> None:
        self._pen = pen
        self._topics = tuple(topics)
        self._verbs = VERBS if tense == "past" else PRESENT

    def sentence(self) -> str:
        """Return one sentence with its full stop and without a space after it."""
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

    def _noun(self) -> str:
        if self._topics and self._pen.chance(0.2):
            return self._pen.pick(self._topics)
        return self._pen.pick(NOUNS)

    def _phrase(self) -> str:
        pen = self._pen
        adjective = f"{pen.pick(ADJECTIVES)} " if pen.chance(0.45) else ""
        words = f"{adjective}{self._noun()}"
        determiner = pen.pick(_DETERMINERS)
        if determiner == "a" and words[0] in "aeiou":
            determiner = "an"
        return f"{determiner} {words}"

    def _clause(self) -> str:
        pen = self._pen
        adverb = f"{pen.pick(ADVERBS)} " if pen.chance(0.25) else ""
        text = f"{self._phrase()} {adverb}{pen.pick(self._verbs)}"
        shape = pen.roll(4)
        if shape != 1:
            text = f"{text} {self._phrase()}"
        if shape in (1, 2):
            text = f"{text} {pen.pick(PREPOSITIONS)} {self._phrase()}"
        return text
