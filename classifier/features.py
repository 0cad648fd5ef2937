"""What a request looks like, as numbers: named cues and hashed words, computed in numpy with bounded cost.

Stateless: no vocabulary, nothing learned. The text is at most what `View` keeps, so the cost has a ceiling. Words are hashed
from their bytes by one vectorised polynomial, so that features are the same in every process and on every platform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from classifier.conversation import USER_CAP
from classifier.lexicon import CUES, TONGUES
from classifier.view import View

Floats = npt.NDArray[np.float64]
BUCKETS = 1 << 14  # of hashed words, and as many again of hashed pairs of neighbours
INSTRUCTION = (40, 24)  # words at the head and at the tail of a text that are read as the instruction
LINES = 256

# --- bytes ------------------------------------------------------------------------------------------------------------------
_SIGNS = {
    "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "digit": "0123456789", "newline": "\n", "comma": ",", "period": ".", "colon": ":",
    "semicolon": ";", "equals": "=", "operator": "+-*/<>%^&|~", "round": "()", "square": "[]", "curly": "{}",
    "double_quote": '"', "single_quote": "'", "tick": "`", "pipe": "|",
    "slash": "/\\", "underscore": "_", "sigil": "#@$", "question": "?",
    "exclamation": "!",
}  # fmt: skip
# Lead bytes of UTF-8, by script.
_SCRIPTS = {
    "latin_accents": (0xC3, 0xC5), "greek": (0xCE, 0xCF), "cyrillic": (0xD0, 0xD3), "semitic": (0xD6, 0xDB),
    "indic": (0xE0, 0xE0), "cjk": (0xE3, 0xE9), "hangul": (0xEA, 0xED), "emoji": (0xF0, 0xF0), "typographic": (0xE2, 0xE2),
}  # fmt: skip


def _groups() -> Floats:
    table = np.zeros((256, len(_SIGNS) + len(_SCRIPTS) + 1))
    for column, signs in enumerate(_SIGNS.values()):
        table[list(signs.encode()), column] = 1.0
    for column, (low, high) in enumerate(_SCRIPTS.values(), len(_SIGNS)):
        table[low : high + 1, column] = 1.0
    table[128:, -1] = 1.0
    return table


_GROUPS = _groups()
_LOWER = np.arange(256, dtype=np.uint64)
_LOWER[ord("A") : ord("Z") + 1] += 32
_IN_WORD = np.zeros(256, bool)
_IN_WORD[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_#+", *range(128, 256)]] = True
_WEIGHTED = np.where(_IN_WORD, (_LOWER + 1) * np.uint64(0x9E3779B97F4A7C15), 0).astype(
    np.uint64
)  # golden ratio: spreads bytes
_PRIME = 0x100000001B3  # FNV's
_LONGEST = 4 * USER_CAP + 4  # bytes that a view's text can have


def _powers(base: int) -> npt.NDArray[np.uint64]:
    found, power = [], 1
    for _ in range(_LONGEST):
        found.append(power)
        power = power * base % (1 << 64)
    return np.array(found, np.uint64)


_POWERS, _INVERSES = _powers(_PRIME), _powers(pow(_PRIME, -1, 1 << 64))
_MIX = np.uint64(0xFF51AFD7ED558CCD)  # murmur3's finaliser
_MASK = np.uint64(BUCKETS - 1)


def hash_words(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Hash every run of word bytes; returns hashes, starts and ends.

    Each word is a polynomial in its bytes. All are summed with the powers of their place in the text, and what the place
    adds is divided out again, which modulo 2 ** 64 is a multiplication. At most _LONGEST bytes are read.
    """
    raw = raw[:_LONGEST]
    inside = np.zeros(raw.size + 2, np.int8)
    inside[1:-1] = _IN_WORD[raw]
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    if not starts.size:
        return np.zeros(0, np.uint64), starts, ends
    sums = np.add.reduceat(_WEIGHTED[raw] * _POWERS[: raw.size], starts)
    hashes = sums * _INVERSES[starts] + (ends - starts).astype(np.uint64)
    hashes ^= hashes >> np.uint64(33)
    hashes *= _MIX
    return hashes ^ (hashes >> np.uint64(33)), starts, ends


def hash_of(word: str) -> int:
    """The hash that `hash_words` gives to a single word."""
    return int(hash_words(np.frombuffer(word.encode(), np.uint8))[0][0])


# --- lexicon ----------------------------------------------------------------------------------------------------------------
_CUE_NAMES, _TONGUE_NAMES = tuple(CUES), tuple(TONGUES)


def _lexicon() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    groups: dict[int, list[int]] = {}
    for column, words in enumerate([*CUES.values(), *TONGUES.values()]):
        for word in words.split():
            groups.setdefault(hash_of(word), []).append(column)
    keys = np.array(sorted(groups), np.uint64)
    table = np.zeros((len(keys), len(CUES) + len(TONGUES)), np.float32)
    for row, key in enumerate(keys):
        table[row, groups[int(key)]] = 1.0
    return keys, table


_KEYS, _MEMBERS = _lexicon()
_N_CUES = len(_CUE_NAMES)
_AT = {name: i for i, name in enumerate(_CUE_NAMES)}

_SHAPE = (
    "log_chars", "log_words", "unique_words", "word_length", "log_lines", "line_mean", "line_max", "unique_lines", "indented",
    "bulleted", "blank_lines", "first_line", "last_line", "material", "ends_question", "ends_colon", "ends_stop", "ends_code",
    "fences", "starts_lower", "short_words", "numbers", "largest_number", "snake_case", "brief_prompt", "very_brief_prompt",
)  # fmt: skip
_CROSSES = (
    "fact_question", "curt_answer", "copy_material", "convert_material", "summarise_material", "extract_material",
    "edit_material", "code_asked", "code_explained", "story_asked",
)  # fmt: skip
_REQUEST = (
    "tools", "log_tools", "tool_forced", "tool_results", "form", "prediction", "log_turns", "system", "earlier", "prefill",
    "media", "temperature", "sampling", "log_max_tokens", "choices", "stops",
)  # fmt: skip
NAMES: tuple[str, ...] = (
    *(f"share_{name}" for name in (*_SIGNS, *_SCRIPTS, "non_ascii")),
    *(f"cue_{name}" for name in _CUE_NAMES),
    *(f"head_{name}" for name in _CUE_NAMES),
    *(f"tongue_{name}" for name in _TONGUE_NAMES),
    *_SHAPE,
    *_CROSSES,
    *_REQUEST,
)
"""Names of the cues, in the order of `Measured.cues`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A request in numbers: `cues` in the order of NAMES; `words` are bucket indices below 2 * BUCKETS, each once."""

    cues: Floats
    words: npt.NDArray[np.intp]


def measure(view: View) -> Measured:
    """Compute the features of a request; total on any view, deterministic, bounded by the view's own bounds."""
    text = view.user
    encoded = text.encode("utf-8", "replace")
    raw = np.frombuffer(encoded, np.uint8)[:_LONGEST]
    hashes, starts, ends = hash_words(raw)
    hints, head, common = _hints(hashes)
    counts = np.minimum(hints + _context(view), 3.0)
    if view.form:
        counts[_AT["structure"]] = min(3.0, counts[_AT["structure"]] + 1.0)
    n, size = max(1, hashes.size), max(1, raw.size)
    shares = (np.bincount(raw, minlength=256) @ _GROUPS) / size
    words, distinct = _buckets(hashes)
    shape = _shape(view, ends - starts, distinct)
    crosses = _crosses(counts, shape, shares)
    tongues = np.sqrt(common / n)
    cues = np.concatenate((np.sqrt(shares), counts, np.minimum(head, 1.0), tongues, shape, crosses, request_of(view)))
    return Measured(cues, words)


def _hints(hashes: npt.NDArray[np.uint64]) -> tuple[Floats, Floats, Floats]:
    """Counts of cue words in the instruction and in its first eight words, and of each tongue's common words in all."""
    at = np.minimum(np.searchsorted(_KEYS, hashes), _KEYS.size - 1)
    place = np.flatnonzero(_KEYS[at] == hashes)
    first, last = INSTRUCTION
    asked = (place < first) | (place >= max(first, hashes.size - last))
    scopes = np.ones((3, place.size), np.float32)
    scopes[0], scopes[1] = asked, place < 8
    sums = (scopes @ _MEMBERS[at[place]]).astype(np.float64)
    return sums[0, :_N_CUES], sums[1, :_N_CUES], sums[2, _N_CUES:]


def _context(view: View) -> Floats | float:
    """Cues of the system prompt at half weight: it sets the kind of answer, but speaks of many kinds at once."""
    return _set_by(view.system) if view.system else 0.0


@lru_cache(maxsize=256)  # system prompts repeat; each is at most what a view keeps
def _set_by(system: str) -> Floats:
    counts, _, _ = _hints(hash_words(np.frombuffer(system.encode("utf-8", "replace"), np.uint8))[0])
    context = 0.5 * np.minimum(counts, 2.0)
    context.flags.writeable = False
    return context


def _buckets(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.intp], int]:
    """Buckets of words and of pairs of neighbours, each once, and how many are words."""
    seen = np.zeros(2 * BUCKETS, bool)
    seen[(hashes & _MASK).astype(np.intp)] = True
    pairs = ((hashes[1:] * _MIX + hashes[:-1]) >> np.uint64(20)) & _MASK
    seen[pairs.astype(np.intp) + BUCKETS] = True
    return np.flatnonzero(seen), int(np.count_nonzero(seen[:BUCKETS]))


def buckets_of(text: str) -> list[int]:
    """Buckets of a short text: those of its words, then those of its pairs, each in ascending order."""
    found: list[int] = _buckets(hash_words(np.frombuffer(text.encode("utf-8", "replace"), np.uint8))[0])[0].tolist()
    return found


_BULLETS = frozenset("-*•0123456789")


def _shape(view: View, lengths: npt.NDArray[np.intp], distinct: int) -> Floats:
    """The outline of the last user turn: sizes, lines, how it begins and ends; `lengths` are its words' in bytes."""
    text, words = view.user, lengths.size
    n = max(1, words)
    lines = text.split("\n", LINES)
    full = [line for line in lines if line and not line.isspace()]
    k = max(1, len(full))
    first, last = (len(full[0]), len(full[-1])) if full else (0, 0)
    end = text.rstrip()[-1:]
    numbers = _numbers(text)
    return np.array(
        (
            math.log1p(view.user_chars),
            math.log1p(words),
            distinct / n,
            float(lengths.sum()) / n,
            math.log(len(lines)),
            math.log1p(len(text) / len(lines)),
            math.log1p(len(max(lines, key=len))),
            len(set(full)) / k,
            len([1 for line in full if line[0] in " \t"]) / k,
            len([1 for line in full if line.lstrip()[0] in _BULLETS]) / k,
            (len(lines) - len(full)) / len(lines),
            math.log1p(first),
            math.log1p(last),
            math.log1p(max(0, view.user_chars - first)),
            float(end != "" and end in "?？"),
            float(end == ":"),
            float(end != "" and end in ".!。"),
            float(end != "" and end in "`})];>"),
            min(2, text.count("```")),
            float(text[:1].islower()),
            np.count_nonzero(lengths <= 2) / n,
            math.log1p(len(numbers)),
            math.log1p(max(numbers, default=0)),
            math.log1p(min(text.count("_"), 200)),
            float(words < 14),
            float(words < 7),
        )
    )


def _numbers(text: str) -> list[int]:
    """Whole numbers of at most six digits in the head of a text, capped at ten thousand."""
    return [
        min(int(word), 10_000) for word in text[:400].replace(",", " ").split() if len(word) < 7 and word.isdecimal()
    ]


_LOG_CHARS, _MATERIAL, _QUESTION = _SHAPE.index("log_chars"), _SHAPE.index("material"), _SHAPE.index("ends_question")
_WORDS, _INDENTED = _SHAPE.index("log_words"), _SHAPE.index("indented")
_SIGN_AT = {name: i for i, name in enumerate(_SIGNS)}


def _crosses(counts: Floats, shape: Floats, shares: Floats) -> Floats:
    """Cues that mean something only together: a verb with the material it is to work on, a question that is short."""
    c = dict(zip(_CUE_NAMES, counts.tolist(), strict=True))
    material = max(0.0, float(shape[_MATERIAL]) - 3.5)
    bulk = max(0.0, float(shape[_MATERIAL]) - 4.6)
    codelike = math.sqrt(shares[_SIGN_AT["curly"]]) + math.sqrt(shares[_SIGN_AT["underscore"]])
    codelike += math.sqrt(shares[_SIGN_AT["equals"]]) + float(shape[_INDENTED])
    return np.array(
        (
            float(c["fact"] > 0 and shape[_QUESTION] > 0 and shape[_WORDS] < 3.7),
            float(c["curt"] >= 2),
            material * (c["repeat"] > 0),
            material * (c["convert"] > 0 or c["table"] + c["structure"] > 1),
            material * (c["summarise"] > 0),
            material * (c["extract"] > 0),
            bulk * (c["edit"] + c["rewrite"] + c["convert"] > 0),
            float(c["code"] + c["language"] >= 2),
            codelike * (c["explain"] > 0),
            float(c["creative"] >= 2),
        )
    )


def request_of(view: View) -> tuple[float, ...]:
    """What the parameters and the conversation add to the text: the cues of `_REQUEST`."""
    temperature = 1.0 if view.temperature is None else min(2.0, max(0.0, view.temperature))
    return (
        float(view.tool_names > 0),
        math.log1p(len(view.tools)),
        float(view.tool_forced),
        math.log1p(view.tool_results),
        float(view.form != ""),
        math.log1p(view.predicted),
        math.log1p(view.turns),
        math.log1p(len(view.system)),
        math.log1p(len(view.earlier)),
        math.log1p(len(view.prefill)),
        math.log1p(view.images + view.audio + view.files),
        temperature,
        float(view.temperature is None or view.temperature > 0.0),
        math.log1p(min(view.max_tokens, 1e6)) if view.max_tokens is not None else 0.0,
        min(view.n, 16.0),
        math.log1p(view.stop),
    )


def lexicon_arrays() -> tuple[object, ...]:
    """What the compiled arithmetic is told of words and bytes.

    Names of cues, tongues and groups of bytes; hashes of the words (uint64) and the cues or tongues of each as bits; the
    groups of each byte as bits.
    """
    bits = np.uint64(1) << np.arange(max(_MEMBERS.shape[1], _GROUPS.shape[1]), dtype=np.uint64)
    masks = (_MEMBERS.astype(np.uint64) * bits[: _MEMBERS.shape[1]]).sum(axis=1, dtype=np.uint64)
    groups = (_GROUPS.astype(np.uint64) * bits[: _GROUPS.shape[1]]).sum(axis=1, dtype=np.uint64)
    names = (_CUE_NAMES, _TONGUE_NAMES, (*_SIGNS, *_SCRIPTS, "non_ascii"))
    return (*names, _KEYS.tobytes(), masks.tobytes(), groups.tobytes())
