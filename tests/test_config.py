"""The configuration: what is accepted, what is refused and in which words, and that config.toml tells all of it."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, key_digest, load, parse
from gateway.config.load import TABLES

COMMITTED = Path(__file__).parent.parent / "config.toml"
GOOD: dict[str, Any] = {
    "model": [{"name": "demo", "aliases": ["gpt-4o-mini"]}],
    "pool": [
        {"name": "fast", "model": "demo", "kind": "speculative", "window": 7, "embedded": {}},
        {"name": "plain", "model": "demo", "kind": "baseline", "replica": [{"url": "http://10.0.0.7:8000"}]},
    ],
    "tenant": [{"name": "acme", "key_sha256": [key_digest("acme's key")]}],
}


def changed(**changes: Any) -> dict[str, Any]:
    """Return the good tables with values replaced; "pool__1__name" is the name of the second pool, None takes a key out."""
    raw = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *way, last = (int(part) if part.isdigit() else part for part in path.split("__"))
        at: Any = raw
        for step in way:
            at = at[step] if isinstance(step, int) else at.setdefault(step, {})
        if value is None:
            del at[last]
        else:
            at[last] = value
    return raw


def problems(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> list[str]:
    """Return what is wrong with some tables."""
    with pytest.raises(ConfigError) as caught:
        parse(raw, env or {})
    return caught.value.problems


def only_problem(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str:
    """Return the one thing that is wrong with some tables."""
    (problem,) = problems(raw, env)
    return problem


def test_prices_change_on_their_day_and_are_told_in_dollars() -> None:
    """The latest price that has begun holds, the undated one before all others, and one rate turns them into dollars."""
    prices = [{"from": date(2027, 3, 1), "per_hour": 5.0}, {"from": date(2027, 1, 1), "per_hour": 3.0}]
    dated = changed(pool__0__price_per_hour=2.0, pool__0__price=prices, currency={"name": "EUR", "usd": 1.1})
    config = parse(dated, {})
    days = [date(2026, 12, 31), date(2027, 1, 1), date(2027, 2, 28), date(2027, 12, 1)]

    assert [config.usd_per_hour(config.pools[0], day) for day in days] == pytest.approx([2.2, 3.3, 3.3, 5.5])
    assert config.warnings == parse(changed(pool__0__price_per_hour=2.0), {}).warnings


def test_names_and_aliases_lead_to_the_model() -> None:
    """A model is found by its name and by its aliases, and by nothing else."""
    config = parse(GOOD, {})

    assert config.models_by_name == {"demo": config.models[0], "gpt-4o-mini": config.models[0]}
    assert [pool.name for pool in config.pools_of("demo")] == ["fast", "plain"]
    assert config.pools_of("gpt-4o-mini") == ()


def test_defaults_follow_from_the_kind_of_pool() -> None:
    """A pool's served name, revision, step time and features are derived unless they are set."""
    fast, plain = parse(GOOD, {}).pools

    assert (fast.served_model, fast.revision, fast.step_seconds) == ("demo", "demo||7|", 0.105)
    assert (plain.served_model, plain.revision, plain.step_seconds) == ("demo", "demo|||", 0.045)
    assert {"min_p", "logit_bias", "structured_output", "tool_choice"} == {*plain.supports} - {*fast.supports}


def test_a_greedy_pool_leaves_sampling_to_the_other() -> None:
    """What is compiled for temperature 0 takes neither sampling nor what needs real probabilities."""
    pool = parse(changed(pool__0__greedy_only=True), {}).pools[0]

    assert pool.supports == ("images",)


def test_what_is_set_wins_over_what_is_derived() -> None:
    """A derived default never replaces a value of the file."""
    raw = changed(pool__0__step_seconds=0.2, pool__0__supports=["n"], pool__0__revision="r1", pool__0__served_model="m")
    pool = parse(raw, {}).pools[0]

    assert (pool.step_seconds, pool.supports, pool.revision, pool.served_model) == (0.2, ("n",), "r1", "m")


def test_the_digest_tells_meaning_not_spelling() -> None:
    """Two files that mean the same have one digest; a changed value changes it."""
    same = changed(server__port=8080)
    other = changed(server__port=8081)

    assert parse(GOOD, {}).digest == parse(same, {}).digest != parse(other, {}).digest


def test_nothing_changes_after_reading() -> None:
    """A configuration is frozen, down to its tables."""
    config = parse(GOOD, {})

    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"server__prot": 1}, 'server.prot: there is no such setting; did you mean "port"?'),
        ({"servr": {}}, 'servr: there is no such setting; did you mean "server"?'),
        ({"pool__0__embedded__sped": 2}, 'pool[0].embedded.sped: there is no such setting; did you mean "speed"?'),
        ({"tenant__0__zzz": 2}, "tenant[0].zzz: there is no such setting"),
        ({"server__port": "8080"}, "server.port: must be a valid integer, not '8080'"),
        ({"server__port": True}, "server.port: must be a valid integer, not True"),
        ({"server__port": 65536}, "server.port: must be less than or equal to 65535, not 65536"),
        ({"server__log": "xml"}, "server.log: must be 'json' or 'off', not 'xml'"),
        ({"limits__idle_seconds": float("nan")}, "limits.idle_seconds: must be a finite number, not nan"),
        ({"limits__idle_seconds": float("inf")}, "limits.idle_seconds: must be a finite number, not inf"),
        ({"limits__idle_seconds": -1.0}, "limits.idle_seconds: must be greater than 0, not -1.0"),
        ({"limits__max_body_bytes": -1}, "limits.max_body_bytes: must be greater than or equal to 1, not -1"),
        ({"pool__0__price_per_hour": -1}, "pool[0].price_per_hour: must be greater than or equal to 0, not -1"),
        ({"pool__0__model": None}, "pool[0].model: is missing"),
        ({"pool__0__kind": "fast"}, "pool[0].kind: must be 'speculative' or 'baseline', not 'fast'"),
        ({"model": {"name": "demo"}}, "model: is a list of tables; write [[model]]"),
        ({"pool__1__replica": {"url": "http://h:1"}}, "pool[1].replica: is a list of tables; write [[pool.replica]]"),
        ({"pool__1": 3}, "pool[1]: must be a table of settings"),
        ({"routing__cost_weight": 1.5}, "routing.cost_weight: must be less than or equal to 1, not 1.5"),
    ],
)
def test_the_schema_names_the_setting(changes: dict[str, Any], expected: str) -> None:
    """A wrong value is told with its key path, what it must be, and what it is."""
    assert expected in problems(changed(**changes))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h:1", "must be http://host:port"),
        ("http://", "must be http://host:port"),
        ("10.0.0.7:8000", "must be http://host:port"),
        ("http://h:0", "must be http://host:port"),
        ("http://h:99999", "is no address"),
        ("http://[::1", "is no address"),
        ("http://u:p@h:1", "must not hold credentials"),
        ("http://h:1/v1", "must end after the port"),
        ("http://h:1?x=1", "must end after the port"),
        ("http://h:1#x", "must end after the port"),
        ("http://h:1?", "must end after the port"),
        ("http://h :1", "holds blanks"),
        ("http://h:1\n", "holds blanks"),
    ],
)
def test_a_replica_is_an_origin_and_nothing_more(url: str, said: str) -> None:
    """An engine's address has a scheme, a host and a port; anything else is refused with what to do."""
    assert said in only_problem(changed(pool__1__replica=[{"url": url}]))


def test_a_trailing_slash_of_a_replica_does_not_matter() -> None:
    """http://host:port/ is http://host:port."""
    config = parse(changed(pool__1__replica=[{"url": "https://engine.internal/"}]), {})

    assert config.pools[1].replicas[0].url == "https://engine.internal"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pool__1__model": "dem"}, "pool[1].model: there is no model 'dem'; did you mean \"demo\"?"),
        ({"pool__1__name": "fast"}, "pool[0], pool[1]: the name 'fast' stands 2 times; names must differ"),
        ({"pool__1__name": "other"}, "pool[1].name: 'other' has a meaning of its own in metrics; choose another"),
        (
            {"pool__0__window": None},
            "pool[0].window: is missing; a speculative pool drafts so many tokens per step, such as 7",
        ),
        (
            {"pool__1__window": 7},
            'pool[1].window: means nothing on a baseline pool; remove it or set kind = "speculative"',
        ),
        (
            {"pool__0__replica": [{"url": "http://h:1"}]},
            "pool[0].replica: an embedded pool starts its own engines; remove the replicas or [pool.embedded]",
        ),
        (
            {"pool__0__drafter": "eagle"},
            'pool[0].drafter: embedded engines draft with "draft_model" or "ngram"; choose one of them',
        ),
        (
            {"pool__1__replica": []},
            "pool[1].replica: there is none; add [[pool.replica]] with a url, or [pool.embedded]",
        ),
        (
            {
                "pool__0__price": [
                    {"from": date(2027, 1, 1), "per_hour": 1.0},
                    {"from": date(2027, 1, 1), "per_hour": 2.0},
                ]
            },
            "pool[0].price: 2 of them hold from 2027-01-01 on; keep one",
        ),
        ({"tenant__0__models": ["demmo"]}, "tenant[0].models[0]: there is no model 'demmo'; did you mean \"demo\"?"),
        (
            {"tenant__0__key_sha256": None},
            "tenant[0]: nobody can be this tenant; set key_sha256, key_env or anonymous = true",
        ),
        ({"tenant": []}, "tenant: none is configured, so nobody could call; add a [[tenant]]"),
        ({"store__kind": "sqlite"}, 'store.path: is missing; kind = "sqlite" needs it'),
        ({"store__kind": "redis"}, 'store.url_env: is missing; kind = "redis" needs it'),
        ({"server__tls_cert": "c.pem"}, "server.tls_key: is missing; TLS needs tls_cert and tls_key"),
        (
            {"server__admin_port": 8080},
            "server.admin_port: is the port of the gateway itself; leave it out to share that port, or choose another",
        ),
        (
            {"server__admin_key_sha256": key_digest("acme's key")},
            "tenant[0].key_sha256[0]: is already the admin key; every key needs one owner",
        ),
        (
            {"tenant__0__key_env": ["ABSENT"]},
            "tenant[0].key_env[0]: the environment variable ABSENT is not set; export it, or remove the setting",
        ),
        (
            {"pool__1__key_env": "ABSENT"},
            "pool[1].key_env: the environment variable ABSENT is not set; export it, or remove the setting",
        ),
    ],
)
def test_a_broken_rule_says_what_to_do(changes: dict[str, Any], expected: str) -> None:
    """Settings that do not fit together are told with the key path and the way out."""
    assert expected == only_problem(changed(**changes))


def test_models_share_one_space_of_names() -> None:
    """An alias may be neither another's alias nor any model's name, and a model needs a pool."""
    models = [{"name": "demo", "aliases": ["a", "b"]}, {"name": "b", "aliases": ["a", "b"]}]

    assert problems(changed(model=models)) == [
        "model[0].aliases[1]: 'b' is already the name of model 'b'; remove one of them",
        "model[1].aliases[0]: 'a' is already an alias of model 'demo'; remove one of them",
        "model[1].aliases[1]: 'b' is already the name of model 'b'; remove one of them",
        "model[1].name: no pool serves 'b'; add a [[pool]] with model = \"b\"",
    ]


def test_embedded_engines_have_no_key() -> None:
    """A key for engines that ask for none is a mistake that is told."""
    raw = changed(pool__0__key_env="ENGINE_KEY")

    assert only_problem(raw, {"ENGINE_KEY": "k"}) == "pool[0].key_env: embedded engines ask for no key; remove it"


def test_one_engine_belongs_to_one_pool() -> None:
    """The same address twice is told with where it stands first, whatever its spelling."""
    raw = changed(pool__1__replica=[{"url": "http://engine:1"}, {"url": "http://ENGINE:1/"}])

    assert only_problem(raw) == (
        "pool[1].replica[1].url: http://engine:1 is already pool[1].replica[0].url; an engine belongs to one pool, once"
    )


def test_only_one_tenant_is_anonymous_and_no_key_has_two_owners() -> None:
    """A call leads to one tenant, with a key and without."""
    tenant = {"name": "a", "key_env": ["KEY"], "anonymous": True}

    assert problems(changed(tenant=[tenant, tenant | {"name": "b"}]), {"KEY": "secret"}) == [
        "tenant[0], tenant[1]: only one tenant can be anonymous",
        "tenant[1].key_env[0]: is already a key of tenant 'a'; every key needs one owner",
    ]


def test_all_problems_come_at_once() -> None:
    """Schema, rules and environment are told together, each problem once, though the schema alone would stop a reader."""
    raw = changed(
        server__prot=1,
        limits__idle_seconds=-1,
        pool__0__window=None,
        pool__1__model="demi",
        tenant__0__key_env=["ABSENT"],
    )

    assert [problem.split(":")[0] for problem in problems(raw)] == [
        "server.prot",
        "limits.idle_seconds",
        "pool[0].window",
        "pool[1].model",
        "tenant[0].key_env[0]",
    ]


def test_a_pasted_key_is_not_repeated() -> None:
    """A secret in place of its digest does not reach the screen or a log."""
    raw = changed(tenant__0__key_sha256=["sk-secret"], pool__1__key_env="sk-secret")

    assert problems(raw) == [
        "pool[1].key_env: must be the name of an environment variable, never the secret itself",
        "tenant[0].key_sha256[0]: must be a SHA-256 digest, 64 hex digits in lower case, never the key itself",
    ]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A missing file, a folder, foreign bytes and a slip of syntax are each one problem that names the file."""
    foreign = tmp_path / "foreign.toml"
    foreign.write_bytes(b"\xff\xfe")
    slip = tmp_path / "slip.toml"
    slip.write_text("[server]\nport =\n")

    for path, said in (
        (tmp_path / "absent.toml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (foreign, "cannot be read: not UTF-8 text at byte 0"),
        (slip, "is not valid TOML: Invalid value (at line 2, column 7)"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(path, {})
        assert [f"{path}: {said}"] == caught.value.problems


def test_an_open_listener_is_warned_about() -> None:
    """Beyond loopback, demo keys, keyless tenants and plain HTTP each deserve a sentence; on loopback none."""
    open_to_all = changed(
        server={"host": "0.0.0.0", "admin_key_sha256": key_digest("dl-admin")},
        tenant=[
            {"name": "demo", "key_sha256": [key_digest("dl-demo")]},
            {"name": "anyone", "anonymous": True},
        ],
        pool__0__price_per_hour=1.0,
    )
    closed = open_to_all | {"server": {"host": "localhost"}}

    said = parse(open_to_all, {}).warnings

    assert len(said) == 5
    assert said[0].startswith("pool[1].price_per_hour: not set")
    assert [
        next(
            words
            for words in ("tenant demo accepts", "tenant anyone takes", "admin key is", "without TLS")
            if words in line
        )
        for line in said[1:]
    ] == ["tenant demo accepts", "tenant anyone takes", "admin key is", "without TLS"]
    assert said[:1] == parse(closed, {}).warnings


@pytest.mark.parametrize(
    ("host", "open_to_others"), [("127.0.0.1", 0), ("127.9.9.9", 0), ("::1", 0), ("::", 1), ("box", 1)]
)
def test_loopback_is_known_in_every_spelling(host: str, open_to_others: int) -> None:
    """Only addresses that stay on this machine count as loopback."""
    config = parse(changed(server__host=host, pool__0__price_per_hour=1, pool__1__price_per_hour=1), {})

    assert open_to_others == len(config.warnings)


# ── config.toml ───────────────────────────────────────────────────────────────────────────────────────────────────────


def uncommented(sign: str) -> str:
    """Return config.toml with the lines taken in that are commented out by `sign`."""
    return re.sub(rf"(?m)^{re.escape(sign)} (?=[a-z_]+ = )", "", COMMITTED.read_text())


def test_the_committed_file_is_ready_to_run() -> None:
    """config.toml has no problem and needs no environment, and its keys are the published ones."""
    config = load(COMMITTED, {})

    assert (key_digest("dl-demo"),) == config.tenants[0].key_sha256
    assert key_digest("dl-admin") == config.server.admin_key_sha256
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8080)
    assert config.warnings == ()


def test_commented_defaults_are_the_real_ones() -> None:
    """Taking the "#" from every default of config.toml changes nothing."""
    tables = tomllib.loads(uncommented("#"))

    assert load(COMMITTED, {}).digest == parse(tables, {}).digest
    assert tomllib.loads(COMMITTED.read_text()) != tables


def test_every_setting_is_in_the_committed_file() -> None:
    """config.toml tells every setting of every table: set, as a default, or as an example."""
    told: dict[str, set[str]] = {}
    table = ""
    for line in COMMITTED.read_text().splitlines():
        if header := re.match(r"(?:# +)?\[+([a-z.]+)\]+", line):
            table = header[1]
        elif key := re.match(r"(?:#:? +)?([a-z_0-9]+) = ", line):
            told.setdefault(table, set()).add(key[1])

    for path, section in TABLES.items():
        if path:
            known = {field.alias or name for name, field in section.model_fields.items()}
            known -= {"embedded", "replica", "budget", "price"}
            assert known == told[".".join(path)], f"[{'.'.join(path)}]"


def test_examples_in_the_committed_file_are_valid() -> None:
    """Each example of a setting that is off by default would be accepted."""
    wrong = problems(tomllib.loads(uncommented("#:")))

    assert [problem.split(":")[0] for problem in wrong if "environment variable" in problem] == [
        "server.admin_key_env",
        "store.url_env",
        "pool[0].key_env",
    ]
    assert [problem for problem in wrong if "environment variable" not in problem] == [
        "pool[0].key_env: embedded engines ask for no key; remove it",
        "server.admin_key_env: admin_key_sha256 is set too; keep one of them",
    ]


# ── Anything at all ───────────────────────────────────────────────────────────────────────────────────────────────────

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    ["name", "model", "kind", "window", "url", "replica", "embedded", "key_sha256", "aliases", "models", "x"]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
SECTIONS = ["server", "limits", "model", "pool", "routing", "tenant", "store", "classifier", "x"]


@given(st.dictionaries(st.sampled_from(SECTIONS), TREES))
def test_reading_is_total(raw: dict[str, Any]) -> None:
    """Whatever the tables hold, the answer is a configuration or a list of problems, never another error."""
    try:
        said = list(parse(raw, {}).warnings)
    except ConfigError as refused:
        said = refused.problems
    assert all(re.match(r"[\w.\[\], ]+: .", sentence) for sentence in said)
