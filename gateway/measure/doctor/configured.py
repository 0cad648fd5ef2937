"""All that a configuration makes possible to look at: its pools' engines, beside each other, and models that lie in folders."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx

from gateway.config import Config, ConfigError, PoolConfig, load
from gateway.measure.doctor import compat, folder
from gateway.measure.doctor.agreement import agree
from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.live import Believed, judge
from gateway.measure.doctor.visit import Visit, visit

_VERSION = re.compile(r"vllm-(\d+(?:\.\d+)+)")


async def look(path: Path, *, seconds: float, env: Mapping[str, str] = os.environ) -> list[Checkup]:
    """Look at a configuration file and at whatever it names; `seconds` is how long an engine's answer may take."""
    try:
        config = load(path, env)
    except ConfigError as error:
        return [Checkup("config", str(path), tuple(Finding("fix", "config", problem) for problem in error.problems))]
    warnings = tuple(Finding("warn", "config", warning) for warning in config.warnings)
    found = [Checkup("config", str(path), warnings or (Finding("ok", "config", "is sound"),))]
    found += [checkup for pool in config.pools for checkup in _models(pool)]
    seen: dict[str, Visit] = {}
    for pool in config.pools:
        found += [checkup async for checkup in _engines(pool, seen, seconds, env)]
    return [*found, *_pairs(config, seen)]


def _models(pool: PoolConfig) -> Iterator[Checkup]:
    """Compare draft and target where both lie in folders."""
    if pool.draft is None or pool.target is None:
        return
    folders = Path(pool.target), Path(pool.draft)
    if not all(one.is_dir() for one in folders):
        note = Finding(
            "note",
            "models",
            f"{pool.target} and {pool.draft} are no folders here",
            "compare them by draftlane doctor compat",
        )
        yield Checkup("compat", f"pool {pool.name}", (note,))
        return
    try:
        target, draft = (folder.read([one]) for one in folders)
    except folder.FolderError as error:
        yield Checkup("compat", f"pool {pool.name}", (Finding("fix", "models", str(error)),))
        return
    yield compat.compare(target, draft, length=pool.max_model_len)


async def _engines(
    pool: PoolConfig, seen: dict[str, Visit], seconds: float, env: Mapping[str, str]
) -> AsyncIterator[Checkup]:
    """Visit each replica of a pool, noting the first that can be used."""
    if pool.embedded is not None:
        note = Finding(
            "note", "engines", "are embedded: they start with the gateway, and there is nothing to look at before"
        )
        yield Checkup("live", f"pool {pool.name}", (note,))
        return
    key = env.get(pool.key_env) if pool.key_env else None
    async with httpx.AsyncClient(verify=_tls(pool), timeout=seconds, trust_env=False) as client:
        for replica in pool.replicas:
            one = await visit(client, replica.url, model=pool.served_model, key=key)
            judged = judge(one, believed(pool))
            findings = (*judged.findings, *_supported(pool, one))
            yield Checkup("live", f"pool {pool.name}, {replica.url}", findings, judged.facts)
            if not one.trouble:
                seen.setdefault(pool.name, one)


def believed(pool: PoolConfig) -> Believed:
    """Return what a pool's settings say of its engines."""
    version = _VERSION.match(pool.engine or "")
    return Believed(
        speculative=pool.kind == "speculative",
        window=pool.window,
        greedy_only=pool.greedy_only,
        max_model_len=pool.max_model_len,
        version=version[1] if version else None,
    )


def _supported(pool: PoolConfig, seen: Visit) -> Iterator[Finding]:
    """What is sent there and refused."""
    refused = sorted(name for name, status in seen.taken.items() if status >= 400 and name in pool.supports)
    if refused:
        yield Finding(
            "fix",
            "supports",
            f"lists {', '.join(refused)}, which the engine refuses",
            "take them out of the pool's supports",
        )


def _pairs(config: Config, seen: Mapping[str, Visit]) -> Iterator[Checkup]:
    """Compare each speculative pool with the first baseline of its model."""
    for pool in config.pools:
        if pool.kind != "speculative" or pool.name not in seen:
            continue
        plain = next(
            (
                one.name
                for one in config.pools
                if one.model == pool.model and one.kind == "baseline" and one.name in seen
            ),
            None,
        )
        if plain is not None:
            yield agree(seen[pool.name], seen[plain])


def _tls(pool: PoolConfig) -> ssl.SSLContext | bool:
    if not any(replica.url.startswith("https") for replica in pool.replicas):
        return False  # nothing is encrypted, so there is nothing to verify, and reading all authorities takes a while
    context = ssl.create_default_context(cafile=pool.tls_ca)
    if pool.tls_cert is not None:
        context.load_cert_chain(pool.tls_cert, pool.tls_key)
    return context
