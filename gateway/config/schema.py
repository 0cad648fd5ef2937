"""Every setting with its type, bounds and default. Types are strict: "8080" is no number, 1 is no truth value.

What must hold *between* settings lives in `rules`. Attribute names are the TOML keys, but for the repeated tables, which
the file has in the singular: `[[model]]`, `[[pool]]`, `[[pool.replica]]`, `[[tenant]]`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from gateway.config.exposure import exposure
from gateway.config.prices import CURRENCY, Currency, Price, price_on
from gateway.config.section import Amount, Count, Many, Seconds, Section, Share, Some, Text

# Names travel in response headers, metric labels and file names.
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
# Model names may look like a repository's ("Qwen/Qwen3-32B") or a fine-tune's ("ft:gpt-4o:org").
MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$"
ENV_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
DIGEST: Final = r"^[0-9a-f]{64}$"
URL_PATH: Final = r"^/[!-~]*$"
# The patterns in words, for whoever broke one.
IN_WORDS: Final = {
    NAME: "must be up to 64 letters, digits, dots, dashes and underscores, with a letter or digit first",
    MODEL_NAME: "must be up to 200 letters, digits and any of . _ : / @ + -, with a letter or digit first",
    ENV_NAME: "must be the name of an environment variable, never the secret itself",
    DIGEST: "must be a SHA-256 digest, 64 hex digits in lower case, never the key itself",
    URL_PATH: 'must be a path such as "/health"',
    CURRENCY: 'must be three capital letters, such as "EUR"',
}
Name = Annotated[str, StringConstraints(pattern=NAME)]
ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
EnvName = Annotated[str, StringConstraints(pattern=ENV_NAME)]
Digest = Annotated[str, StringConstraints(pattern=DIGEST)]
UrlPath = Annotated[str, StringConstraints(pattern=URL_PATH)]

Feature = Literal[
    "min_p",
    "logit_bias",
    "structured_output",
    "tool_choice",
    "sampling",
    "penalties",
    "logprobs",
    "n",
    "images",
    "lora",
]
Period = Literal["minute", "day", "month"]
FEATURES: Final[tuple[Feature, ...]] = Feature.__args__  # type: ignore[attr-defined]
# vLLM answers 400 to the first two on a speculative pool; guided decoding under speculation is the operator's to allow.
_NOT_SPECULATIVE: Final = frozenset({"min_p", "logit_bias", "structured_output", "tool_choice"})
# Speculative artefacts of NeuronX Distributed Inference are compiled greedy, with static shapes.
_NOT_GREEDY: Final = _NOT_SPECULATIVE | {"sampling", "penalties", "logprobs", "n", "lora"}
# Read from the study of Qwen3-32B with a 1.7B draft on Trainium2: 45 ms a token without, and with window 7 about 15 ms
# a token at nearly seven accepted tokens a step.
_STEP_SECONDS: Final = {"baseline": 0.045, "speculative": 0.105}


def _replica_url(url: str) -> str:
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("holds blanks or control characters; write a plain http(s) address")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as wrong:
        raise ValueError(f"is no address: {wrong}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError('must be http://host:port or https://host:port, such as "http://10.0.0.7:8000"')
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold credentials; name an environment variable in the pool's key_env")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError("must end after the port; paths such as /v1 are added by the gateway")
    return url.rstrip("/")


class Server(Section):
    """Where the gateway listens and what it tells."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080  # 0: a free one
    workers: Annotated[int, Field(ge=1, le=256)] = 1  # processes that share the port
    admin_key_sha256: Digest | None = None
    admin_key_env: EnvName | None = None
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None  # None: the admin plane shares the port
    cors_origins: Many[Text] = ()
    drain_seconds: Amount = 30.0
    log: Literal["json", "off"] = "json"
    log_prompts: bool = False
    traces: Text | None = None  # a collector's address, to which spans are sent by OTLP over HTTP
    trace_share: Share = 1.0  # of calls whose caller has not decided about it
    engine_metrics: bool = False  # /metrics tells the engines' counters under vLLM's own names too
    tls_cert: Text | None = None
    tls_key: Text | None = None
    tls_client_ca: Text | None = None  # clients must show a certificate of these authorities


class Limits(Section):
    """What one client, one call and one engine may cost at most."""

    max_body_bytes: Some = 20 * 1024 * 1024
    max_header_bytes: Annotated[int, Field(ge=1024)] = 65_536
    max_event_bytes: Annotated[int, Field(ge=1024)] = 1024 * 1024  # one SSE event
    connect_seconds: Seconds = 2.0
    first_byte_seconds: Seconds = 120.0  # to a stream's first token
    retry_after_seconds: Amount = 5.0  # longest pause that an engine may ask for and a call waits for
    idle_seconds: Seconds = 60.0  # between two reads from an engine
    total_seconds: Seconds = 3600.0
    health_seconds: Seconds = 3.0  # between two health checks of an engine
    client_idle_seconds: Seconds = 60.0  # a reader that takes nothing
    buffer_bytes: Annotated[int, Field(ge=4096)] = 1024 * 1024  # per stream, between engine and client
    header_seconds: Seconds = 10.0  # for a request's head to arrive; bodies get longer while bytes come
    max_concurrent: Some = 4096
    queue_ahead: Amount = 1.0  # calls sent to an engine beyond its slots, per slot; more wait here, tenants in turn
    queue_seconds: Seconds = 60.0  # longest wait for a place
    max_waiting: Count = 1024  # calls that wait before one pool


class Model(Section):
    """A model that clients may ask for, under its name or an alias."""

    name: ModelName
    aliases: Many[ModelName] = ()


class Replica(Section):
    """One engine of a pool."""

    url: Annotated[str, AfterValidator(_replica_url)]


class Embedded(Section):
    """Engines that `draftlane serve` starts and stops itself: look-alikes of vLLM, where there is no accelerator."""

    speed: Seconds = 1.0  # 2.0 halves every time
    seed: Count = 0
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    draft_quality: Share = 1.0  # below 1 the draft errs more often
    default_temperature: Amount = 0.6  # for calls that name none
    per_request_metrics: bool = False  # answers tell their acceptance


class PoolConfig(Section):
    """Replicas that share a model and an engine configuration."""

    name: Name
    model: ModelName
    kind: Literal["speculative", "baseline"]
    served_model: Text  # the name that the engines know; the model's own unless set
    drafter: Literal["draft_model", "ngram", "eagle"] | None = None
    window: Annotated[int, Field(ge=1, le=64)] | None = None  # drafted tokens per verification step
    target: Text | None = None
    draft: Text | None = None
    engine: Text | None = None
    revision: Text  # what is learned holds for one revision only; made of target, draft, window and engine unless set
    slots: Some = 4  # per replica
    step_seconds: Seconds  # 0.045 baseline, 0.105 speculative unless set
    step_growth: Amount = 0.0  # relative growth of the step time per further running request
    ttft_seconds: Amount = 0.1
    price_per_hour: Amount = 0.0  # per replica, in the configured currency
    prices: Many[Price] = Field(default=(), alias="price")  # that hold later
    greedy_only: bool = False
    max_model_len: Some | None = None
    supports: Many[Feature]  # by kind unless set
    disabled: bool = False
    key_env: EnvName | None = None
    tls_ca: Text | None = None  # authorities of https engines; the system's unless set
    tls_cert: Text | None = None  # by which the gateway proves itself to them
    tls_key: Text | None = None
    embedded: Embedded | None = None
    replicas: Many[Replica] = Field(default=(), alias="replica")
    health_path: UrlPath = "/health"

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, raw: Any) -> Any:
        """Fill in the defaults that follow from other settings of the same pool."""
        if not isinstance(raw, dict):
            return raw
        kind = raw.get("kind")
        greedy = raw.get("greedy_only") is True
        lacks = frozenset[str]() if kind != "speculative" else _NOT_GREEDY if greedy else _NOT_SPECULATIVE
        model = raw.get("model")
        parts = (raw.get("target", model), raw.get("draft"), raw.get("window"), raw.get("engine"))
        derived = {
            "served_model": model if isinstance(model, str) else "?",  # then the missing model is the problem to tell
            "revision": "|".join("" if part is None else str(part) for part in parts),
            "step_seconds": _STEP_SECONDS.get(str(kind), _STEP_SECONDS["baseline"]),
            "supports": tuple(name for name in FEATURES if name not in lacks),
        }
        return derived | raw

    def price_on(self, day: date) -> float:
        """Return what a replica costs per hour on a UTC day, in the configured currency."""
        return price_on(day, self.prices, self.price_per_hour)

    @property
    def speculative(self) -> bool:
        """Whether a draft proposes tokens here."""
        return self.kind == "speculative"


class Routing(Section):
    """How the gateway chooses between the pools of a model, and how it learns."""

    cost_weight: Share = 0.5  # 0: soonest, 1: cheapest
    explore_near: Share = 0.05  # the largest share of calls that try a pool which looks worse, where that teaches most
    explore_far: Share = 0.003  # the share where it teaches little
    hysteresis: Share = 0.05
    prior_samples: Seconds = 20.0  # independent samples that the prior is worth per bin
    half_life_seconds: Seconds = 21600.0
    shadow_share: Share = 0.1  # of a shadow tenant's calls, copied to the pool that the router would have chosen
    expected_output_tokens: Some = 256  # when nothing better is known
    resume_streams: bool = True  # at temperature 0 a stream that breaks off goes on from another engine
    seed: int | None = None  # None: chance differs at every start


class Budget(Section):
    """What a tenant may use per UTC day or calendar month, in tokens or in US dollars; the Store keeps count."""

    tokens: Some | None = None  # of prompts and answers together
    usd: Annotated[float, Field(gt=0)] | None = None
    per: Literal["day", "month"]
    soft: Share = 0.8  # from this share on answers, log and metrics tell of it
    hard: bool = True  # false: it is told, and nobody is refused

    @property
    def unit(self) -> Literal["tokens", "usd"]:
        """What it counts."""
        return "usd" if self.tokens is None else "tokens"

    @property
    def amount(self) -> float:
        """How much of it there is."""
        return float(self.tokens or self.usd or 0.0)


class TenantConfig(Section):
    """Who may call, with what rights and limits."""

    name: Name
    key_sha256: Many[Digest] = ()
    key_env: Many[EnvName] = ()
    anonymous: bool = False  # calls without a key belong to this tenant
    models: Many[ModelName] | None = None  # None: all
    policy: Literal["auto", "speculative", "baseline", "shadow"] = "auto"
    cost_weight: Share | None = None  # None: as in [routing]
    allow_route_header: bool = True
    explore: bool = True
    max_concurrent: Some | None = None
    requests_per_minute: Some | None = None
    tokens_per_minute: Some | None = None
    budgets: Many[Budget] = Field(default=(), alias="budget")


class Store(Section):
    """Where learned curves, the ledger and quotas persist and meet other gateways."""

    kind: Literal["memory", "sqlite", "redis"] = "memory"
    path: Text | None = None  # of the SQLite file
    url_env: EnvName | None = None  # holds the address of Redis, which may carry a password
    journal: Text | None = None  # directory of what the Store does not have yet; beside the SQLite file unless set
    flush_seconds: Seconds = 1.0


class Classifier(Section):
    """Which trained artefact scores the requests, and what is kept to train a better one."""

    artefact: Text | None = None  # None: the one that comes with the package
    observations: Literal["off", "features", "text"] = "off"  # what is kept of calls that showed an acceptance
    observations_path: Text = "var/observations"  # a directory
    observations_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30  # of all files in it
    observations_days: Seconds = 30.0


class Config(Section):
    """The whole configuration; build it with `load` or `parse`, which also check the rules between settings."""

    server: Server = Server()
    limits: Limits = Limits()
    models: Many[Model] = Field(alias="model")
    pools: Many[PoolConfig] = Field(alias="pool")
    routing: Routing = Routing()
    currency: Currency = Currency()
    tenants: Many[TenantConfig] = Field(alias="tenant")
    store: Store = Store()
    classifier: Classifier = Classifier()

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical form: two files that mean the same have the same digest."""
        canonical = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def models_by_name(self) -> dict[str, Model]:
        """The models by their names and aliases."""
        return {name: model for model in self.models for name in (model.name, *model.aliases)}

    def pools_of(self, model: str) -> tuple[PoolConfig, ...]:
        """Return the pools that serve the model of this name (no alias), in the file's order."""
        return tuple(pool for pool in self.pools if pool.model == model)

    def usd_per_hour(self, pool: PoolConfig, day: date) -> float:
        """Return what a replica of a pool costs per hour on a UTC day, in US dollars."""
        return pool.price_on(day) * self.currency.usd

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works but deserves a word at start-up, each a sentence with its key path."""
        found = [
            f"pool[{i}].price_per_hour: not set, so every call of {pool.name} costs nothing; set it to see real cost"
            for i, pool in enumerate(self.pools)
            if pool.price_per_hour == 0 and not pool.prices
        ]
        if self.server.workers > 1 and self.store.kind == "memory":
            found.append(
                "server.workers: several processes without a Store between them learn, count and limit each for itself; "
                'set store.kind to "sqlite" or "redis"'
            )
        return (*found, *exposure(self))
