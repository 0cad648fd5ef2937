"""Given data taken cell by cell: while an answer copies the prompt's cells in order, the next one is a good guess."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.engine.tokenizer import TOKENIZER

_DELIMITERS = frozenset(",;|\"'{}[]():=\n\t<>`")
_AHEAD = 12  # cells that may be passed over: an answer drops keys and quotation marks, not whole records


def is_content(token: int) -> bool:
    """Return whether a token belongs inside a cell: it has letters, digits or marks that separate nothing."""
    text = TOKENIZER.text(token)
    return text is None or (bool(text.strip()) and _DELIMITERS.isdisjoint(text))


class Material:
    """The prompt's cells and how far an answer has copied them."""

    __slots__ = ("_at", "_cells", "_fresh", "_places", "_taken", "_within")

    def __init__(self, prompt: Sequence[int]) -> None:
        self._cells: list[tuple[int, ...]] = []
        cell: list[int] = []
        for token in prompt:
            if is_content(token):
                cell.append(TOKENIZER.bare(token) if not cell else token)
            elif cell:
                self._cells.append(tuple(cell))
                cell = []
        self._places: dict[int, list[int]] = {}
        for place, one in enumerate(self._cells):
            self._places.setdefault(one[0], []).append(place)
        self._at = -1
        self._within = 0
        self._fresh = True
        self._taken: set[int] = set()

    def take(self, token: int) -> int:
        """Note a token of the answer; return how many cells on it starts one that is copied in order, 0 if it does not."""
        if self._within:
            cell = self._cells[self._at]
            if self._within < len(cell) and cell[self._within] == token:
                self._within += 1
                return 0
            self._within = 0
        places = self._places.get(TOKENIZER.bare(token), ())
        place = next((one for one in places if self._at < one <= self._at + _AHEAD), None)
        if place is None and self._fresh:
            # A record's first cell may go back once: to the values, after the keys have been copied as a header.
            place = next((one for one in places if one not in self._taken), None)
        self._fresh = False
        if place is None:
            return 0
        ahead, self._at, self._within = place - self._at, place, 1
        self._taken.add(place)
        return ahead

    def new_line(self) -> None:
        """Note that the answer begins a line, and so perhaps a record."""
        self._fresh, self._within = True, 0

    def cell(self, ahead: int, like: int) -> list[int]:
        """Return the cell that comes `ahead` cells after the last copied one, spaced as the token `like` is."""
        place = self._at + ahead
        if not 0 <= place < len(self._cells):
            return []
        first, *rest = self._cells[place]
        return [TOKENIZER.spaced(first) if TOKENIZER.is_spaced(like) else first, *rest]
