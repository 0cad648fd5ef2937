"""Whether two engines are one target: the same tokens for a text, the same text for a prompt at temperature 0. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.visit import Spoken, Visit

_SAME_START: Final = 0.25  # of an answer; engines that part before it on most prompts do not compute the same


def agree(fast: Visit, plain: Visit) -> Checkup:
    """Compare a speculative engine with its baseline: the same tokens for a text, the same text for a prompt."""
    subject = f"{fast.url} beside {plain.url}"
    if fast.trouble or plain.trouble:
        return Checkup(
            "agreement", subject, (Finding("fix", "answers", "could not be compared: an engine cannot be used"),)
        )
    findings = [*_same_tokens(fast, plain), *_same_text(fast.spoken, plain.spoken)]
    lengths = fast.max_model_len, plain.max_model_len
    if lengths[0] is not None and lengths[1] is not None and lengths[0] < lengths[1]:
        findings.append(
            Finding("note", "max_model_len", f"is {lengths[0]} beside {lengths[1]}: longer calls go to baseline")
        )
    pairs = [(one.text, other.text) for one, other in zip(fast.spoken, plain.spoken, strict=False)]
    facts = {
        "prompts": len(pairs),
        "equal": sum(one == other for one, other in pairs),
        "common": [_common(*pair) for pair in pairs],
    }
    return Checkup("agreement", subject, tuple(findings), facts)


def _same_tokens(fast: Visit, plain: Visit) -> Iterator[Finding]:
    if fast.token_ids is None or plain.token_ids is None:
        yield Finding("note", "tokens", "were not compared: an engine has no /tokenize")
    elif fast.token_ids != plain.token_ids:
        yield Finding(
            "fix",
            "tokens",
            "one text becomes other tokens on each engine",
            "serve the same target with the same tokenizer",
        )
    else:
        yield Finding("ok", "tokens", "one text becomes the same tokens on both")


def _same_text(mine: tuple[Spoken, ...], others: tuple[Spoken, ...]) -> Iterator[Finding]:
    pairs = [
        (one.text, other.text) for one, other in zip(mine, others, strict=False) if not one.error and not other.error
    ]
    equal = sum(one == other for one, other in pairs)
    if not pairs:
        return
    if equal == len(pairs):
        yield Finding("ok", "answers", f"at temperature 0 are the same on both for {equal} of {equal} prompts")
    elif median(_common(*pair) for pair in pairs) < _SAME_START:
        yield Finding(
            "fix",
            "answers",
            f"at temperature 0 are the same for {equal} of {len(pairs)} prompts, and part at their start",
            "these are not one target: compare weights, precision and chat template",
        )
    else:
        yield Finding(
            "warn",
            "answers",
            f"at temperature 0 are the same for {equal} of {len(pairs)} prompts",
            "late differences are rounding (batch shapes differ under speculation); judge whether your use bears them",
        )


def _common(one: str, other: str) -> float:
    """Return how much of the longer text both begin with alike."""
    longest = max(len(one), len(other))
    parting = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    return parting / longest if longest else 1.0
