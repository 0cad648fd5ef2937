"""What a comparison found, as it is printed, written as JSON and drawn. The JSON is these structs, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.measure.paired.intervals import Estimate

Finding = Literal["gain", "loss", "even", "unclear", "few"]
Answer = Literal["adopt", "adopt_for", "dont", "not_enough"]
Ending = Literal[
    "precision", "repeats", "prompts", "budget_seconds", "budget_requests", "endpoint", "interrupted", "files"
]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's figures in a group. Times are seconds, means over calls; `tpot_seconds` weighs by tokens.

    `output_tokens_per_second` is of the whole pool at the load it had; its interval is that of the time a token takes.
    """

    name: str
    calls: int
    failed: int
    completion_tokens: int
    ttft_seconds: Estimate | None = None
    tpot_seconds: Estimate | None = None
    e2e_seconds: Estimate | None = None
    output_tokens_per_second: Estimate | None = None
    acceptance_length: Estimate | None = None
    usd_per_million_output_tokens: Estimate | None = None


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """The second pool over the first: below 1 it is faster, cheaper, or (tokens per second) slower."""

    tpot: Estimate | None = None
    e2e: Estimate | None = None
    ttft: Estimate | None = None
    output_tokens_per_second: Estimate | None = None
    cost: Estimate | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A category, or all of them ("").

    `finding` is judged by `judged`, the ratio's interval widened for the number of categories that are judged beside it;
    `carrier` says of what: decode time per token, or E2E where there is no TTFT.
    """

    category: str
    prompts: int
    pairs: int
    pools: tuple[Pool, Pool]
    ratios: Ratios
    carrier: Literal["tpot", "e2e"]
    judged: Estimate | None
    finding: Finding


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer that differs: of which line, and from which character on where the texts are known."""

    line: int
    id: str
    character: int | None = None
    texts: tuple[str, str] | None = None


class Equality(msgspec.Struct, frozen=True, kw_only=True):
    """How often both pools gave the same answer, and each pool the same one again (by name, where prompts were repeated)."""

    pairs: int
    equal: int
    temperature: float | None
    first: Difference | None = None
    repeated: dict[str, tuple[int, int]] = {}  # equal, of so many

    @property
    def share(self) -> float | None:
        """Equal pairs among all."""
        return self.equal / self.pairs if self.pairs else None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, the categories it is for where it is not for all, and the sentence that says it with its interval."""

    answer: Answer
    text: str
    categories: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Why measuring ended."""

    by: Ending
    text: str

    @property
    def whole(self) -> bool:
        """Whether it ended as it was meant to."""
        return self.by not in ("endpoint", "interrupted")


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was found with so many calls under way at once; `reached` is how many of each pool really were, on average."""

    concurrency: int | None
    reached: dict[str, float]
    overall: Group
    categories: tuple[Group, ...]
    equality: Equality | None
    verdict: Verdict
    ended: Ended


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison. `names`: the first is what the second is compared with."""

    kind: Literal["compare"] = "compare"
    version: int = 1
    names: tuple[str, str]
    pairing: str  # how halves of pairs were found; "" when calls have no pairs
    precision: float
    settings: dict[str, Any]
    levels: tuple[Level, ...]
    verdict: Verdict
    ended: Ended
    warnings: tuple[str, ...] = ()


class ResultError(Exception):
    """A file that holds no result that can be shown; the message names file, place and what to do."""


def as_json(found: msgspec.Struct) -> bytes:
    """Return a result as one line of JSON."""
    return msgspec.json.encode(found)


def read_comparison(path: Path, content: bytes) -> Comparison:
    """Read a comparison's JSON.

    Raises:
        ResultError: it is none.
    """
    try:
        return msgspec.json.decode(content, type=Comparison)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ResultError(f"{path}: no result of draftlane compare ({error}); write it with --json") from None
