"""The doctor's checks as the command line asks for them: arguments in, checkups out, wrong use told as such."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from gateway.measure.doctor import capacity, configured, folder, inspection, serving
from gateway.measure.doctor.agreement import agree
from gateway.measure.doctor.compat import compare
from gateway.measure.doctor.finding import Checkup
from gateway.measure.doctor.flags import Calls
from gateway.measure.doctor.hbm import ModelError
from gateway.measure.doctor.live import Believed, judge
from gateway.measure.doctor.visit import visit


class WrongUse(Exception):
    """What was asked cannot be done; the message names the argument or file and says what to do."""


def compat(args: argparse.Namespace) -> list[Checkup]:
    """Compare a draft with its target."""
    try:
        target, draft = folder.read(args.target), folder.read(args.draft)
    except folder.FolderError as error:
        raise WrongUse(str(error)) from None
    return [compare(target, draft, tensor_parallel=args.tp, length=args.length)]


def hbm(args: argparse.Namespace) -> list[Checkup]:
    """Plan the memory of a replica."""
    for name in ("bytes_per_weight", "bytes_per_kv"):
        if not 0 < getattr(args, name) <= 8:
            raise WrongUse(f"--{name.replace('_', '-')}: expected a number up to 8, such as 2 for bf16")
    wish = capacity.Wish(
        instance=args.instance,
        target=args.target,
        draft=args.draft,
        tensor_parallel=args.tp,
        length=args.length,
        batch=args.batch,
        logical_core=args.lnc,
        weight_bytes=args.bytes_per_weight,
        kv_bytes=args.bytes_per_kv,
    )
    try:
        return [capacity.plan(wish)]
    except ModelError as error:
        raise WrongUse(str(error)) from None


def flags(args: argparse.Namespace) -> list[Checkup]:
    """Look at engines' flags, of a command or of files."""
    try:
        found = list(_servings(args.sources))
    except serving.ServingError as error:
        raise WrongUse(str(error)) from None
    if args.image is not None:
        found = [replace(one, image=args.image) for one in found]
    compiled = _compiled(args.compiled) if args.compiled is not None else None
    return inspection.inspect(found, compiled=compiled, calls=Calls(args.prompt_tokens, args.max_tokens))


def _servings(sources: Sequence[str]) -> Iterator[serving.Serving]:
    """Read files where the first source is one, else a command in words."""
    if sources[0] != "-" and not Path(sources[0]).is_file():
        if len(sources) == 1 and "vllm" not in sources[0]:
            raise WrongUse(f"{sources[0]}: no such file, and no command; expected -- vllm serve MODEL --flag …")
        yield serving.of_words(sources)
        return
    for source in sources:
        try:
            text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"{source}: {getattr(error, 'strerror', None) or error}") from None
        yield from serving.of_text(text, "standard input" if source == "-" else source)


def _compiled(path: Path) -> Mapping[str, Any]:
    """Read what was compiled, which NxD Inference writes beside its artefacts."""
    path = path / "neuron_config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WrongUse(f"--compiled: {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict):
        raise WrongUse(f"--compiled: {path}: holds no JSON object")
    inner = found.get("neuron_config")
    return inner if isinstance(inner, dict) else found


async def live(
    url: str, baseline: str | None, *, model: str | None, window: int | None, key: str | None, seconds: float
) -> list[Checkup]:
    """Visit an engine, and the one that it must agree with; `seconds` is how long each answer may take."""
    for one in (url, baseline):
        if one is not None and not one.startswith(("http://", "https://")):
            raise WrongUse(f"{one}: expected an address such as http://127.0.0.1:8001")
    async with httpx.AsyncClient(timeout=seconds, trust_env=False) as client:
        fast = await visit(client, url, model=model, key=key)
        found = [judge(fast, Believed(window=window, speculative=True if baseline or window else None))]
        if baseline is not None:
            plain = await visit(client, baseline, model=model, key=key)
            found += [judge(plain, Believed(speculative=False)), agree(fast, plain)]
    return found


async def config(path: Path, seconds: float) -> list[Checkup]:
    """Look at all that a configuration names."""
    return await configured.look(path, seconds=seconds)
