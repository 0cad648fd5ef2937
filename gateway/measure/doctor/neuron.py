"""What must hold of an engine on Neuron: where its configuration stands, what was compiled, and how many cores it has. Pure.

A compiled artefact that loads makes vLLM ignore differing flags, and one that does not makes it compile for hours, both without
a word. And a configuration that one generation of the engine reads is nothing, or something else, to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.flags import Engine, Rule
from gateway.measure.doctor.releases import NATIVE, PLUGIN, STOCK, V0

_CORES_PER_CHIP: Final = 8  # of Trainium2
_NAMED: Final = re.compile(r"-tp(?P<tp>\d+)-bs(?P<bs>\d+)-len(?P<len>\d+)-k(?P<k>\d+)(?:-sdk(?P<sdk>[\d.]+))?/?$")
# What an artefact's name says, as neuron_config.json has it, and the flag that must agree.
_COMPILED: Final = (
    ("tp", "tp_degree", "--tensor-parallel-size"),
    ("bs", "batch_size", "--max-num-seqs"),
    ("len", "seq_len", "--max-model-len"),
    ("k", "speculation_length", "--speculative-config num_speculative_tokens"),
)
_PLACES: Final = {
    V0.name: "--override-neuron-config",
    PLUGIN.name: "--additional-config override_neuron_config",
    NATIVE.name: "--additional-config neuron_config",
}


def configuration_is_at_home(one: Engine) -> Iterator[Finding]:
    """The Neuron configuration stands where this generation reads it."""
    there = {
        V0.name: "--override-neuron-config" in one.command.values or "--override-neuron-config" in one.command.unknown,
        PLUGIN.name: one.additional("override_neuron_config") is not None,
        NATIVE.name: one.additional("neuron_config") is not None,
    }
    for owner, given in there.items():
        if given and owner != one.release.name:
            place = _PLACES.get(one.release.name)
            todo = f"its place here is {place}" if place else "take it out: this is no Neuron engine"
            yield Finding("fix", _PLACES[owner], f"is what {owner} reads; this is {one.release.name}", todo)
    version = one.serving.env.get("VLLM_USE_V1")
    if one.release is V0 and version != "0":
        yield Finding("fix", "VLLM_USE_V1", f"is {version or 'not set'}, and this fork is vLLM V0", "set it to 0")
    elif one.release is not V0 and version == "0":
        yield Finding("fix", "VLLM_USE_V1", f"is 0, and {one.release.name} has no V0 any more", "leave it out")


def fused_speculation_is_whole(one: Engine) -> Iterator[Finding]:
    """A draft model on NxD Inference takes both halves: the speculative configuration, and its being compiled in."""
    if one.release not in (V0, PLUGIN):
        return
    config = one.neuron_config
    fused = config.get("enable_fused_speculation") is True
    eagle = config.get("enable_eagle_speculation") is True
    where = _PLACES[one.release.name]
    if one.window and not fused and not eagle:
        yield Finding("fix", where, "lacks enable_fused_speculation, so the draft is not compiled in", "set it to true")
    if fused and not one.window:
        yield Finding(
            "fix", where, "has enable_fused_speculation and there is no --speculative-config", "give both or none"
        )
    length = config.get("speculation_length")
    if one.window and isinstance(length, int) and length != one.window:
        yield Finding(
            "fix", where, f"speculation_length is {length}, num_speculative_tokens {one.window}", "make them equal"
        )


def method_means_what_it_says(one: Engine) -> Iterator[Finding]:
    """`eagle` is a label in V0 and real EAGLE everywhere else."""
    method, draft = one.speculation.get("method"), str(one.speculation.get("model", ""))
    if method not in {"eagle", "eagle3"}:
        return
    heads = "eagle" in draft.lower()
    if one.release is V0 and method == "eagle":
        eagle = one.neuron_config.get("enable_eagle_speculation") is True
        yield Finding(
            "note",
            "method",
            f'"eagle" is only a label in this fork; it drafts by {"EAGLE" if eagle else "the draft model"}',
        )
        if heads and not eagle:
            yield Finding(
                "fix",
                "method",
                f"{draft} looks like EAGLE heads",
                "set enable_eagle_speculation, or take a draft model",
            )
    elif draft and not heads:
        yield Finding(
            "fix" if one.release is not STOCK else "warn",
            "method",
            f'"{method}" is real EAGLE here, and {draft} looks like an ordinary model',
            "take EAGLE heads made for the target, or an image that drafts by models",
        )


def compiled_as_flagged(one: Engine) -> Iterator[Finding]:
    """Artefacts are those of the flags: by their folder's name, and by their neuron_config.json where it is at hand."""
    path = one.serving.env.get("NEURON_COMPILED_ARTIFACTS")
    if one.release is STOCK:
        return
    if path is None:
        yield Finding(
            "warn",
            "NEURON_COMPILED_ARTIFACTS",
            "is not set, so the engine compiles at every start, for up to hours",
            "compile once in a Job and name the folder",
        )
    should = {
        "tp": one.number("--tensor-parallel-size"),
        "bs": one.number("--max-num-seqs"),
        "len": one.number("--max-model-len"),
        "k": one.window or 0,
    }
    named = _NAMED.search(path) if path is not None else None
    for word, compiled, flag in _COMPILED:
        if named is not None and should[word] is not None and int(named[word]) != should[word]:
            yield Finding(
                "fix",
                "NEURON_COMPILED_ARTIFACTS",
                f"is named {word}{named[word]}, {flag} is {should[word]}",
                "if it loads, the flag is ignored; if not, it compiles for hours: one folder per configuration",
            )
        yield from _agrees(one, word, compiled, flag, should[word])
    if path is not None and named is None and one.compiled is None:
        yield Finding(
            "note",
            "NEURON_COMPILED_ARTIFACTS",
            "does not say by its name what was compiled",
            "name it …-tp32-bs4-len1024-k7-sdk2.26.1, or give its neuron_config.json with --compiled",
        )


def compiled_by_the_images_sdk(one: Engine) -> Iterator[Finding]:
    """Artefacts are of the SDK that the image has."""
    named = _NAMED.search(one.serving.env.get("NEURON_COMPILED_ARTIFACTS", ""))
    sdk = re.search(r"sdk([\d.]+\d)", one.serving.image or "")
    if named is not None and named["sdk"] and sdk is not None and named["sdk"] != sdk[1]:
        yield Finding(
            "fix",
            "NEURON_COMPILED_ARTIFACTS",
            f"was compiled with SDK {named['sdk']}, the image has {sdk[1]}",
            "compile anew",
        )


def _agrees(one: Engine, word: str, compiled: str, flag: str, should: int | None) -> Iterator[Finding]:
    """Compare a flag with what was compiled and with what --override-neuron-config says of the same."""
    sources = (("neuron_config.json", one.compiled), (_PLACES[one.release.name], one.neuron_config))
    for where, config in sources:
        if config is None:
            continue
        found = config.get(compiled, config.get("max_batch_size") if word == "bs" else None)
        if word == "k" and where != "neuron_config.json":
            continue  # fused_speculation_is_whole compares these
        if word == "k":
            found = found or 0
        if isinstance(found, int) and should is not None and found != should:
            yield Finding(
                "fix", where, f"{compiled} is {found}, {flag} is {should}", "compile anew, or set what was compiled"
            )


def cores_are_there(one: Engine) -> Iterator[Finding]:
    """TP = chips · 8 / LNC."""
    logical, degree = one.serving.env.get("NEURON_LOGICAL_NC_CONFIG", "2"), one.number("--tensor-parallel-size")
    if one.serving.chips is None or degree is None or not logical.isdigit() or int(logical) < 1:
        return
    cores = one.serving.chips * _CORES_PER_CHIP // int(logical)
    if degree > cores:
        yield Finding(
            "fix",
            "--tensor-parallel-size",
            f"{degree}, and {one.serving.chips} chips are {cores} logical cores",
            "ask for more",
        )
    elif degree < cores:
        yield Finding(
            "warn", "--tensor-parallel-size", f"{degree} of {cores} logical cores are used", "ask for fewer chips"
        )


def artefacts_are_not_shared(engines: Iterable[Engine]) -> Checkup | None:
    """Engines of different configurations have different artefacts; None where none are named."""
    owners: dict[str, Engine] = {}
    findings = []
    for one in engines:
        path = one.serving.env.get("NEURON_COMPILED_ARTIFACTS")
        if path is None:
            continue
        other = owners.setdefault(path.rstrip("/"), one)
        if other is not one and other.command.values != one.command.values:
            findings.append(
                Finding(
                    "fix",
                    "NEURON_COMPILED_ARTIFACTS",
                    f"{path} is that of {other.serving.where} and of {one.serving.where}",
                    "their flags differ: whichever loads ignores its own",
                )
            )
    if len(owners) < 2 and not findings:
        return None
    return Checkup(
        "artefacts", f"{len(owners)} folder(s)", tuple(findings) or (Finding("ok", "folders", "one for each"),)
    )


RULES: Final[tuple[Rule, ...]] = (
    configuration_is_at_home,
    fused_speculation_is_whole,
    method_means_what_it_says,
    compiled_as_flagged,
    compiled_by_the_images_sdk,
    cores_are_there,
)
