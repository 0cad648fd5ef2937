"""A small, fixed, reversible tokenizer; ids mean the same in every process, and nothing is learned at run time.

Text is cut like GPT's tokenizers cut it (a word with the space before it, up to three digits, runs of punctuation, white
space), each cut is covered by the longest pieces of a built-in vocabulary, and what no piece covers becomes its UTF-8 bytes.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from itertools import product

from gateway.engine.writing.lexicon import VOCABULARY

_CUT = re.compile(
    r" ?[A-Za-z]+| ?[0-9]{1,3}| ?[!-/:-@\[-`{-~]+|\n+|[ \t\r]+(?![^\s])|[ \t\r]+|[^\x00-\x7f]+|.", re.DOTALL
)
_PUNCTUATION = (
    '": ", "} {" ", "}, [{ }] () (" ") ): ); [] [" "] {} == != <= >= -> => += -= ** // || && :: ... .. -- --- ## ### '
    "``` ''' \"\"\" </ /> '] [' (' ') ', _ :// '. \". .\" ?\" !\" ,\" ).  ), (). */ /* ;} |- -| --|"
).split()
_FRAGMENTS = (
    "ing tion ment ness able ible ally less ful ous ive est ers ies ize ise ant ent ary ory ity ical ated ating ure "
    "ight ound ould ough str pre pro com con dis inter trans over under sub super ther here ster ever ance ence com org net"
).split()
_MARKS = (
    "é è à ü ö ä ß ñ ç – — ‘ ’ “ ” … · • € £ ° × → ≤ ≥ ≈ 你 好 的 是 不 了 在 人 有 我 他 这 个 们 中 来 上 大 为 和 国"
).split()
_CACHE_ENTRIES = 65_536


def _pieces() -> Iterable[str]:
    for run in (2, 3, 4, 6, 8, 12, 16):
        yield " " * run
    yield from ("\n\n", "\n\n\n", " \n", "\t\t")
    for width in (1, 2, 3):
        for digits in product(string.digits, repeat=width):
            number = "".join(digits)
            yield number
            yield " " + number
    for mark in _PUNCTUATION:
        yield mark
        yield " " + mark
    yield from (" " + mark for mark in string.punctuation)
    yield from (" " + letter for letter in string.ascii_letters)
    yield from (first + second for first, second in product(string.ascii_lowercase, repeat=2))
    yield from (first + second for first, second in product(string.ascii_uppercase, string.ascii_lowercase))
    yield from (f" {first}{second}" for first, second in product(string.ascii_letters, string.ascii_lowercase))
    yield from _FRAGMENTS
    yield from _MARKS
    for word in VOCABULARY:
        yield word
        yield " " + word
        yield word.capitalize()
        yield " " + word.capitalize()


class Tokenizer:
    """Encodes text to ids and ids to text; `decode(encode(text)) == text` for every text that UTF-8 can carry."""

    def __init__(self) -> None:
        table: dict[bytes, int] = {bytes([value]): value for value in range(256)}
        self.start, self.end, self.eos = 256, 257, 258
        for piece in _pieces():
            table.setdefault(piece.encode(), len(table) + 3)
        self._ids = table
        self._bytes: list[bytes] = [b""] * (len(table) + 3)
        for raw, identity in table.items():
            self._bytes[identity] = raw
        for identity, name in ((256, "<|im_start|>"), (257, "<|im_end|>"), (258, "<|endoftext|>")):
            self._bytes[identity] = name.encode()
        self._texts: list[str | None] = [_text(raw) for raw in self._bytes]
        self.longest = max(map(len, table))
        self._cache: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[int, tuple[str, str]] = self._find_numbers()
        self.specials = frozenset((self.start, self.end, self.eos))
        self.line_ends = frozenset(one for raw, one in table.items() if raw.endswith(b"\n"))
        self._bare = {self._ids[b" " + raw]: one for raw, one in table.items() if b" " + raw in table}
        self._spaced = {bare: spaced for spaced, bare in self._bare.items()}

    @property
    def size(self) -> int:
        """Number of ids, the special ones included."""
        return len(self._bytes)

    def _find_numbers(self) -> dict[int, tuple[str, str]]:
        """Map the ids of digit pieces to (space before them, digits)."""
        found = {}
        for raw, identity in self._ids.items():
            text = raw.decode("utf-8", "replace")
            digits = text.removeprefix(" ")
            if digits.isascii() and digits.isdigit():
                found[identity] = (text[: len(text) - len(digits)], digits)
        return found

    def id_of(self, piece: str) -> int | None:
        """Return the id of a piece that the vocabulary holds whole, else None."""
        return self._ids.get(piece.encode())

    def bare(self, identity: int) -> int:
        """Return the id of the same piece without the space before it."""
        return self._bare.get(identity, identity)

    def spaced(self, identity: int) -> int:
        """Return the id of the same piece with a space before it, where the vocabulary has one."""
        return self._spaced.get(identity, identity)

    def is_spaced(self, identity: int) -> bool:
        """Return whether a piece starts with a space that it could do without."""
        return identity in self._bare

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; lone surrogates are replaced, as UTF-8 cannot carry them."""
        ids: list[int] = []
        cache = self._cache
        for cut in _CUT.findall(text):
            known = cache.get(cut)
            if known is None:
                if len(cache) >= _CACHE_ENTRIES:
                    cache.clear()
                known = cache[cut] = tuple(self._cover(cut.encode("utf-8", "replace")))
            ids.extend(known)
        return ids

    def _cover(self, raw: bytes) -> Iterable[int]:
        position = 0
        while position < len(raw):
            for width in range(min(self.longest, len(raw) - position), 0, -1):
                identity = self._ids.get(raw[position : position + width])
                if identity is not None:
                    yield identity
                    position += width
                    break

    def raw(self, identity: int) -> bytes:
        """Return the bytes of one id; raises IndexError when there is no such id."""
        if identity < 0:
            raise IndexError(identity)
        return self._bytes[identity]

    def text(self, identity: int) -> str | None:
        """Return the text of one id, or None when it is only a part of a character."""
        return self._texts[identity]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special ones left out; parts of characters become U+FFFD."""
        return b"".join([self._bytes[one] for one in ids if one not in self.specials]).decode("utf-8", "replace")


class Decoder:
    """Turns ids into text as they come, holding back the bytes of an unfinished character."""

    __slots__ = ("_pending", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = b""

    def feed(self, identity: int) -> str:
        """Return the text that became complete with this id."""
        text = self._tokenizer.text(identity)
        if text is not None and not self._pending:
            return "" if identity in self._tokenizer.specials else text
        self._pending += self._tokenizer.raw(identity)
        whole = _text(self._pending)
        if whole is None and len(self._pending) < 4:
            return ""
        whole = self._pending.decode("utf-8", "replace") if whole is None else whole
        self._pending = b""
        return whole


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


TOKENIZER = Tokenizer()
