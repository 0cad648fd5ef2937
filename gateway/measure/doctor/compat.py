"""Whether a draft can propose tokens for a target: what differs between their files, and whether it matters. Pure.

The engine cuts text into tokens once, by the target's tokenizer, and hands ids to the draft. So what an id *means* must be the
same for both; how text is cut (merges, normalizer, pre-tokenizer) only decides how well the draft knows such sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.measure.doctor.finding import Checkup, Finding, Severity
from gateway.measure.doctor.folder import SECTIONS, SPECIAL, ModelFiles

_SHOWN: Final = 3  # examples of tokens that differ
# How text is cut: the ids mean the same, but the draft was trained on other sequences of them.
_CUTTING: Final = ("model.merges", "normalizer", "pre_tokenizer")


def compare(
    target: ModelFiles, draft: ModelFiles, *, tensor_parallel: int | None = None, length: int | None = None
) -> Checkup:
    """Compare a draft with its target; `length` is the engine's max_model_len, where it is known."""
    findings = [
        *_vocabulary(target, draft),
        *_tokens(target, draft),
        *_sections(target, draft),
        *_specials(target, draft),
        *_families(target, draft),
        *_positions(target, draft, length),
    ]
    for role, model in (("target", target), ("draft", draft)):
        findings += _parallel(role, model, tensor_parallel)
    return Checkup("compat", f"{draft.name} drafts for {target.name}", tuple(findings), _facts(target, draft))


def _vocabulary(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """The one thing that vLLM compares: the rows of the embeddings."""
    sizes = target.vocab_size, draft.vocab_size
    if None in sizes:
        missing = " and ".join(model.name for model in (target, draft) if model.vocab_size is None)
        yield Finding("warn", "config.vocab_size", f"is not told by {missing}", "add its config.json to compare it")
    elif sizes[0] != sizes[1]:
        yield Finding(
            "fix",
            "config.vocab_size",
            f"is {sizes[0]} of the target and {sizes[1]} of the draft, and vLLM refuses to start with that",
            "take a draft of the same release, or pad the smaller embedding to the larger one's rows",
        )
    else:
        yield Finding("ok", "config.vocab_size", f"is {sizes[0]} of both")


def _tokens(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """What ids mean."""
    mine, others = target.meanings, draft.meanings
    if not mine or not others:
        yield _unreadable(target, draft)
        return
    moved = [number for number in mine.keys() & others.keys() if mine[number] != others[number]]
    if moved:
        shown = ", ".join(f"{n} is {mine[n]!r} and {others[n]!r}" for n in sorted(moved)[:_SHOWN])
        yield Finding(
            "fix",
            "tokens",
            f"{len(moved)} ids mean one token to the target and another to the draft: {shown}",
            "the draft's proposals would be noise: take a draft of the same tokenizer",
        )
    yield from _alone(sorted(mine.keys() - others.keys()), mine, "target", "draft", draft.vocab_size)
    yield from _alone(sorted(others.keys() - mine.keys()), others, "draft", "target", target.vocab_size)
    if mine == others:
        yield Finding("ok", "tokens", f"all {len(mine)} ids mean the same to both")


def _unreadable(target: ModelFiles, draft: ModelFiles) -> Finding:
    pieces = target.sentencepiece, draft.sentencepiece
    if None not in pieces:
        same = pieces[0] == pieces[1]
        return Finding(
            "ok" if same else "fix",
            "tokens",
            f"tokenizer.model is {'the same file' if same else 'another file'}",
            "" if same else "convert both to tokenizer.json to see what differs, or take a draft of the same tokenizer",
        )
    missing = " and ".join(model.name for model in (target, draft) if not model.meanings)
    return Finding(
        "warn", "tokens", f"no tokenizer of {missing} was found", "add tokenizer.json to compare what ids mean"
    )


def _alone(ids: list[int], meanings: Mapping[int, str], owner: str, other: str, rows: int | None) -> Iterator[Finding]:
    """Tokens that only one of the models knows."""
    if not ids:
        return
    shown = ", ".join(f"{n} {meanings[n]!r}" for n in ids[:_SHOWN])
    beyond = rows is not None and ids[-1] >= rows
    severity: Severity = "fix" if beyond else "warn"
    what = f"{len(ids)} ids are known to the {owner} alone: {shown}"
    if beyond:
        todo = f"the {other}'s embedding ends at {rows}, so that such an id reads past it: take models of one tokenizer"
    elif owner == "target":
        todo = "the draft will not propose them and has never seen them; answers that use them gain less"
    else:
        todo = "whatever the draft proposes of them is rejected; train it, or mask them"
    yield Finding(severity, "tokens", what, todo)


def _sections(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """How text is cut into tokens, and put together again."""
    mine, others = target.hashes, draft.hashes
    if not mine or not others:
        return
    differing = [name for name in SECTIONS if mine[name] != others[name]]
    for name in differing:
        if name in _CUTTING:
            yield Finding(
                "warn",
                f"tokenizer.{name}",
                "differs, so the draft was trained on text cut in another way",
                "expect lower acceptance than this draft shows elsewhere, and measure it (draftlane sweep)",
            )
        elif name == "decoder":
            yield Finding("note", "tokenizer.decoder", "differs; the target's alone is used")
        elif target.meanings == draft.meanings:
            yield Finding("note", f"tokenizer.{name}", "is written in another way, and every id means the same")
    if not differing:
        yield Finding("ok", "tokenizer", f"{', '.join(SECTIONS)} are the same")


def _specials(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    consequences: dict[str, tuple[Severity, str]] = {
        "eos": (
            "warn",
            "the draft ends answers elsewhere: often a base model beside one for chat; take a draft for chat too",
        ),
        "bos": ("warn", "the draft has seen other beginnings; acceptance may suffer"),
        "pad": ("note", "engines pad with the target's"),
    }
    for which in SPECIAL:
        mine, others = target.special(which), draft.special(which)
        severity, todo = consequences[which]
        if mine == others:
            if mine:
                yield Finding("ok", f"{which}_token_id", f"is {_ids(mine)} of both")
        elif which == "eos" and set(mine) & set(others):
            yield Finding(
                "note", "eos_token_id", f"is {_ids(mine)} of the target, {_ids(others)} of the draft; they share one"
            )
        else:
            yield Finding(
                severity, f"{which}_token_id", f"is {_ids(mine)} of the target, {_ids(others)} of the draft", todo
            )


def _ids(ids: tuple[int, ...]) -> str:
    return " or ".join(map(str, ids)) or "not set"


def _families(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    mine, others = (model.inner.get("model_type") for model in (target, draft))
    if not mine or not others:
        return
    if mine != others:
        yield Finding(
            "warn",
            "config.model_type",
            f"is {mine} of the target, {others} of the draft",
            "models of one family agree more often, and fused speculation on Neuron expects one",
        )
    else:
        yield Finding("ok", "config.model_type", f"is {mine} of both")


def _positions(target: ModelFiles, draft: ModelFiles, length: int | None) -> Iterator[Finding]:
    mine, others = (model.inner.get("max_position_embeddings") for model in (target, draft))
    for role, has in (("target", mine), ("draft", others)):
        if length is not None and isinstance(has, int) and has < length:
            yield Finding(
                "fix",
                "config.max_position_embeddings",
                f"is {has} of the {role}, below the length of {length}",
                "shorten max-model-len (and the draft's max_model_len with it)",
            )
    if isinstance(mine, int) and isinstance(others, int) and others < mine and (length is None or others >= length):
        severity: Severity = "note" if length is not None else "warn"
        yield Finding(
            severity,
            "config.max_position_embeddings",
            f"is {mine} of the target, {others} of the draft",
            f"keep max-model-len at or below {others}, or say it with --length",
        )


def _parallel(role: str, model: ModelFiles, degree: int | None) -> Iterator[Finding]:
    """Whether heads and layers can be shared out among so many cores."""
    if degree is None:
        return
    config = model.inner
    heads, inner = config.get("num_attention_heads"), config.get("intermediate_size")
    shared = config.get("num_key_value_heads") or heads
    if not isinstance(heads, int) or not isinstance(shared, int) or min(heads, shared) < 1:
        yield Finding("warn", f"{role} at TP {degree}", "its heads are not known", "add its config.json")
        return
    where = f"{role} at TP {degree}"
    if shared % degree and degree % shared:
        even = [tp for tp in (1, 2, 4, 8, 16, 32, 64) if not (shared % tp and tp % shared)]
        yield Finding("fix", where, f"{shared} KV heads cannot be shared out or copied evenly", f"take TP of {even}")
    elif degree > shared:
        yield Finding(
            "note", where, f"each of {shared} KV heads is kept {degree // shared} times, and so is its KV cache"
        )
    else:
        yield Finding("ok", where, f"{shared // degree} of {shared} KV heads on each core")
    if heads % degree:
        padded = -(-heads // degree) * degree
        yield Finding(
            "warn",
            where,
            f"{heads} attention heads do not go into {degree} parts",
            f"vLLM on GPUs refuses that (give the draft a TP of its own); Neuron pads them to {padded}, which is idle work",
        )
    if isinstance(inner, int) and inner % degree:
        yield Finding("fix", where, f"intermediate_size {inner} does not go into {degree} parts", "take another TP")


def _facts(target: ModelFiles, draft: ModelFiles) -> dict[str, Any]:
    def of(model: ModelFiles) -> dict[str, Any]:
        config = model.inner
        return {
            "name": model.name,
            "architectures": model.config.get("architectures"),
            "model_type": config.get("model_type"),
            "vocab_size": model.vocab_size,
            "tokens": len(model.meanings),
            "max_position_embeddings": config.get("max_position_embeddings"),
            "num_attention_heads": config.get("num_attention_heads"),
            "num_key_value_heads": config.get("num_key_value_heads"),
            "special": {which: list(model.special(which)) for which in SPECIAL},
            "sections": model.hashes,
        }

    return {"target": of(target), "draft": of(draft)}
