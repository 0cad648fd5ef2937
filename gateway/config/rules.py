"""What must hold between settings. Every rule reads the raw tables, so that one run tells all problems of any kind.

A rule skips what the schema refuses anyway (a name that is a number, a pool that is no table) and never raises.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from gateway.config.exposure import key_digest
from gateway.config.schema import ENV_NAME

Table = Mapping[str, Any]
# What metrics call a tenant or pool beyond their closed sets, and one that a call never got to.
RESERVED: Final = frozenset({"other", "none"})


def broken(raw: Table, env: Mapping[str, str]) -> list[str]:
    """Return every broken rule as "key path: what is wrong and what to do"."""
    found = [problem for rule in (_models, _pools, _replicas, _tenants, _server, _store) for problem in rule(raw)]
    return [*found, *_keys(raw, env), *_environment(raw, env)]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the closest known word, or an empty string."""
    close = get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _rows(raw: Table, key: str) -> list[tuple[str, Table]]:
    """The tables of a `[[key]]` list, each with its key path."""
    found = raw.get(key)
    rows = enumerate(found) if isinstance(found, list) else ()
    return [(f"{key}[{i}]", row) for i, row in rows if isinstance(row, Mapping)]


def _empty(raw: Table, key: str) -> bool:
    """Whether a list has no table at all; what is no list is for the schema to refuse."""
    return isinstance(raw.get(key, []), list) and not _rows(raw, key)


def _table(raw: Table, key: str) -> Table:
    found = raw.get(key)
    return found if isinstance(found, Mapping) else {}


def _strings(row: Table, key: str) -> list[str]:
    found = row.get(key)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _names(raw: Table, key: str) -> list[str]:
    return [row["name"] for _, row in _rows(raw, key) if isinstance(row.get("name"), str)]


def _named(raw: Table, key: str) -> Iterator[str]:
    """Names differ, and mean nothing else."""
    for name, times in Counter(_names(raw, key)).items():
        if times > 1:
            where = ", ".join(path for path, row in _rows(raw, key) if row.get("name") == name)
            yield f"{where}: the name {name!r} stands {times} times; names must differ"
    for path, row in _rows(raw, key):
        if row.get("name") in RESERVED:
            yield f"{path}.name: {row['name']!r} has a meaning of its own in metrics; choose another"


def _models(raw: Table) -> Iterator[str]:
    """Names and aliases are unique together, and every model has a pool."""
    yield from _named(raw, "model")
    owner = {name: f"the name of model {name!r}" for name in _names(raw, "model")}
    served = {row.get("model") for _, row in _rows(raw, "pool") if isinstance(row.get("model"), str)}
    for path, row in _rows(raw, "model"):
        for i, alias in enumerate(_strings(row, "aliases")):
            if alias in owner:
                yield f"{path}.aliases[{i}]: {alias!r} is already {owner[alias]}; remove one of them"
            owner.setdefault(alias, f"an alias of model {row.get('name')!r}")
        if isinstance(row.get("name"), str) and row["name"] not in served:
            yield f'{path}.name: no pool serves {row["name"]!r}; add a [[pool]] with model = "{row["name"]}"'
    if _empty(raw, "model"):
        yield "model: none is configured; add a [[model]]"


def _pools(raw: Table) -> Iterator[str]:
    """A pool serves a known model, has engines, and speculates with a window or not at all."""
    yield from _named(raw, "pool")
    models = _names(raw, "model")
    for path, row in _rows(raw, "pool"):
        model = row.get("model")
        if isinstance(model, str) and model not in models:
            yield f"{path}.model: there is no model {model!r}{did_you_mean(model, models)}"
        if row.get("kind") == "speculative" and "window" not in row:
            yield f"{path}.window: is missing; a speculative pool drafts so many tokens per step, such as 7"
        yield from _both(row, path)
        yield from _prices(row, path)
        for key in ("window", "drafter", "draft", "greedy_only"):
            if row.get("kind") == "baseline" and row.get(key):
                yield f'{path}.{key}: means nothing on a baseline pool; remove it or set kind = "speculative"'


def _prices(pool: Table, path: str) -> Iterator[str]:
    """Of prices that hold from a day on there is one for each day."""
    days = Counter(str(row.get("from")) for _, row in _rows(pool, "price"))
    yield from (
        f"{path}.price: {times} of them hold from {day} on; keep one" for day, times in days.items() if times > 1
    )


def _replicas(raw: Table) -> Iterator[str]:
    """Engines are either embedded or listed, and listed once."""
    seen: dict[str, str] = {}
    for path, row in _rows(raw, "pool"):
        if "embedded" in row and "replica" in row:
            yield f"{path}.replica: an embedded pool starts its own engines; remove the replicas or [pool.embedded]"
        if "embedded" in row and "key_env" in row:
            yield f"{path}.key_env: embedded engines ask for no key; remove it"
        if "embedded" in row and row.get("drafter") == "eagle":
            yield f'{path}.drafter: embedded engines draft with "draft_model" or "ngram"; choose one of them'
        if "embedded" not in row and _empty(row, "replica"):
            yield f"{path}.replica: there is none; add [[pool.replica]] with a url, or [pool.embedded]"
        for place, replica in _rows(row, "replica"):
            url = str(replica.get("url", place)).rstrip("/").lower()
            if url in seen:
                yield f"{path}.{place}.url: {url} is already {seen[url]}; an engine belongs to one pool, once"
            seen.setdefault(url, f"{path}.{place}.url")


def _tenants(raw: Table) -> Iterator[str]:
    """Someone may call, everyone can be told apart, and the models they may use exist."""
    yield from _named(raw, "tenant")
    models = _names(raw, "model")
    rows = _rows(raw, "tenant")
    if _empty(raw, "tenant"):
        yield "tenant: none is configured, so nobody could call; add a [[tenant]]"
    for path, row in rows:
        if not (row.get("key_sha256") or row.get("key_env") or row.get("anonymous")):
            yield f"{path}: nobody can be this tenant; set key_sha256, key_env or anonymous = true"
        for i, model in enumerate(_strings(row, "models")):
            if model not in models:
                yield f"{path}.models[{i}]: there is no model {model!r}{did_you_mean(model, models)}"
        yield from _budgets(path, row)
    keyless = [path for path, row in rows if row.get("anonymous") is True]
    if len(keyless) > 1:
        yield f"{', '.join(keyless)}: only one tenant can be anonymous"


def _budgets(path: str, tenant: Table) -> Iterator[str]:
    """A budget is of tokens or of dollars, and there is one of each per day and per month."""
    seen: dict[tuple[str, object], str] = {}
    for place, row in _rows(tenant, "budget"):
        units = [unit for unit in ("tokens", "usd") if unit in row]
        if len(units) != 1:
            yield f"{path}.{place}: set either tokens or usd; two budgets take two [[tenant.budget]]"
            continue
        key = (units[0], str(row.get("per")))
        if key in seen:
            yield f"{path}.{place}: {path}.{seen[key]} is already one of {units[0]} per {key[1]}; remove one of them"
        seen.setdefault(key, place)


def _keys(raw: Table, env: Mapping[str, str]) -> Iterator[str]:
    """A key belongs to one tenant, and the admin key to none, whether as a digest or in the environment."""
    server = _table(raw, "server")
    owner: dict[str, str] = {}
    for digest in (server.get("admin_key_sha256"), *_held(env, server.get("admin_key_env"))):
        owner[str(digest)] = "the admin key"
    for path, row in _rows(raw, "tenant"):
        keys = [(f"key_sha256[{i}]", digest) for i, digest in enumerate(_strings(row, "key_sha256"))]
        for i, name in enumerate(_strings(row, "key_env")):
            keys += [(f"key_env[{i}]", digest) for digest in _held(env, name)]
        for place, digest in keys:
            if digest in owner:
                yield f"{path}.{place}: is already {owner[digest]}; every key needs one owner"
            owner.setdefault(digest, f"a key of tenant {row.get('name')!r}")


def _held(env: Mapping[str, str], name: object) -> list[str]:
    """The digest of the key in an environment variable, if there is one."""
    return [key_digest(env[name])] if isinstance(name, str) and env.get(name) else []


def _both(row: Table, path: str) -> Iterator[str]:
    """A certificate comes with its key."""
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if one in row and other not in row:
            yield f"{path}.{other}: is missing; TLS needs tls_cert and tls_key"


def _server(raw: Table) -> Iterator[str]:
    """TLS needs both of its files; the admin plane has one key and a port of its own."""
    server = _table(raw, "server")
    yield from _both(server, "server")
    if "tls_client_ca" in server and "tls_cert" not in server:
        yield "server.tls_cert: is missing; clients show certificates over TLS only"
    if "admin_key_sha256" in server and "admin_key_env" in server:
        yield "server.admin_key_env: admin_key_sha256 is set too; keep one of them"
    if server.get("admin_port") not in {None, 0} and server.get("admin_port") == server.get("port", 8080):
        yield "server.admin_port: is the port of the gateway itself; leave it out to share that port, or choose another"


def _store(raw: Table) -> Iterator[str]:
    """Each kind of store has its place."""
    store = _table(raw, "store")
    needs = {"sqlite": "path", "redis": "url_env"}
    for kind, key in needs.items():
        if store.get("kind") == kind and key not in store:
            yield f'store.{key}: is missing; kind = "{kind}" needs it'


def _environment(raw: Table, env: Mapping[str, str]) -> Iterator[str]:
    """Every environment variable that is named holds something."""
    named = [("server.admin_key_env", _table(raw, "server").get("admin_key_env"))]
    named += [("store.url_env", _table(raw, "store").get("url_env"))]
    named += [(f"{path}.key_env", row.get("key_env")) for path, row in _rows(raw, "pool")]
    for path, row in _rows(raw, "tenant"):
        named += [(f"{path}.key_env[{i}]", name) for i, name in enumerate(_strings(row, "key_env"))]
    for path, name in named:
        if isinstance(name, str) and re.match(ENV_NAME, name) and not env.get(name):
            yield f"{path}: the environment variable {name} is not set; export it, or remove the setting"
