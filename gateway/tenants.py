"""Who calls, and whether they may: keys to tenants, and the limits of each tenant.

Nothing here waits and nothing reads a clock: `now` is a monotonic time in seconds that the caller passes in. A key never
leaves this module, neither into a message nor into a log. Concurrency is counted per process; whether other limits are, and
where budgets are kept, is for whoever passes in the `quotas`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gateway.admission import Admission, Minutes, Quotas, Rooms, Usage, Use, alone
from gateway.config import Config, Model, Period, TenantConfig, key_digest
from gateway.errors import NotFound, Unauthorized
from gateway.headers import Headers, values

Policy = Literal["auto", "speculative", "baseline", "shadow"]

_SHOWN_NAME: Final = 100  # characters of an unknown model's name that the error repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A caller with its rights: what the pipeline and the router need to know."""

    name: str
    policy: Policy = "auto"
    cost_weight: float = 0.5
    allow_route_header: bool = True
    explore: bool = True
    models: frozenset[str] | None = None  # None: all

    def may_use(self, model: str) -> bool:
        """Whether the tenant may see the model of this name (no alias)."""
        return self.models is None or model in self.models


class Tenants:
    """All tenants of a configuration, by their keys, with what they use now."""

    __slots__ = ("_anonymous", "_by_digest", "_by_name", "_env", "_known", "_models", "_quotas", "_rooms", "_uses")

    def __init__(
        self, config: Config, env: Mapping[str, str], quotas: Quotas | None = None, rooms: Rooms = alone
    ) -> None:
        self._env = env
        self._quotas = quotas or Minutes().of
        self._rooms = rooms
        self._uses: dict[str, Use] = {}
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Take a new configuration; tenants that stay keep their counts, and their running calls count on."""
        uses = {tenant.name: self._uses.get(tenant.name) or Use() for tenant in config.tenants}
        by_name = {settings.name: _tenant(settings, config.routing.cost_weight) for settings in config.tenants}
        by_digest: dict[bytes, tuple[bytes, Tenant]] = {}
        anonymous: Tenant | None = None
        for settings in config.tenants:
            tenant = by_name[settings.name]
            uses[tenant.name].limit(settings, self._quotas, self._rooms)
            for digest in _digests(settings, self._env):
                by_digest[digest] = (digest, tenant)
            if settings.anonymous:
                anonymous = tenant
        self._models, self._uses, self._by_name = config.models_by_name, uses, by_name
        self._by_digest, self._anonymous = by_digest, anonymous
        self._known: dict[bytes, Tenant] = {}  # by BLAKE2b of their keys, which have come and were right

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of this name, if there is one."""
        return self._by_name.get(name)

    def first(self) -> Tenant:
        """Return the first tenant of the configuration, for whoever asks on nobody's behalf."""
        return next(iter(self._by_name.values()))

    def identify(self, headers: Headers) -> Tenant:
        """Return who calls, by ASGI headers (lower-case names); raises Unauthorized without a key that someone owns.

        `Authorization: Bearer` goes before `x-api-key` and `api-key`. The key is hashed before it is looked up, so the
        time of the look-up says nothing about how close a guess came. A key that was right before is found by a hash
        that the path computes anyway: OpenSSL's SHA-256 takes 30 µs where the processor's caches do not hold its code.
        """
        key = presented_key(headers)
        if key is None:
            if self._anonymous is not None:
                return self._anonymous
            raise Unauthorized(
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
                code="invalid_api_key",
            )
        mark = hashlib.blake2b(key).digest()
        known = self._known.get(mark)
        if known is not None:
            return known
        digest = hashlib.sha256(key).digest()
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise Unauthorized("Incorrect API key provided.", code="invalid_api_key")
        self._known[mark] = found[1]
        return found[1]

    def resolve(self, tenant: Tenant, name: str) -> Model:
        """Return the model behind a name or alias; raises NotFound alike for one that is unknown or not the tenant's."""
        model = self._models.get(name)
        if model is None or not tenant.may_use(model.name):
            shown = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "…"
            raise NotFound(
                f"The model `{shown}` does not exist or you do not have access to it.",
                param="model",
                code="model_not_found",
            )
        return model

    def admit(self, tenant: Tenant, *, model: str | None, tokens: int, now: float) -> Admission:
        """Let a call in, or raise NotFound for its model or RateLimited with when to come back.

        `model` is the name that the client gave, or None for a call without one; `tokens` estimates prompt and answer
        together. Either all counts are taken or none.
        """
        if model is not None:
            self.resolve(tenant, model)
        use = self._uses.get(tenant.name)
        if use is None:  # removed by a reload since the call was identified
            raise Unauthorized("Incorrect API key provided.", code="invalid_api_key")
        return use.take(tokens, now)

    def used(self) -> Iterator[Usage]:
        """Return how far each limit and budget of each tenant is used."""
        for name, use in self._uses.items():
            for limit in use.limits:
                yield Usage(name, limit.label, limit.quota.used, limit.quota.limit, limit.told)

    def crowded(self) -> list[str]:
        """Return the tenants that have a limit of calls at once."""
        return [name for name, use in self._uses.items() if use.room is not None]

    def limits(self) -> list[tuple[str, Period]]:
        """Return the key and period of every limit there is."""
        return [(limit.key, limit.period) for use in self._uses.values() for limit in use.limits]


def presented_key(headers: Headers) -> bytes | None:
    """Return the API key among ASGI headers (lower-case names), or None; a bearer token goes before the other headers."""
    for value in values(headers, b"authorization"):
        if value[:7].lower() == b"bearer " and (key := value[7:].strip()):
            return key
    for value in values(headers, b"x-api-key", b"api-key"):
        if key := value.strip():
            return key
    return None


def _tenant(settings: TenantConfig, cost_weight: float) -> Tenant:
    return Tenant(
        name=settings.name,
        policy=settings.policy,
        cost_weight=cost_weight if settings.cost_weight is None else settings.cost_weight,
        allow_route_header=settings.allow_route_header,
        explore=settings.explore,
        models=None if settings.models is None else frozenset(settings.models),
    )


def _digests(settings: TenantConfig, env: Mapping[str, str]) -> list[bytes]:
    named = [key_digest(env[name]) for name in settings.key_env if env.get(name)]
    return [bytes.fromhex(digest) for digest in (*settings.key_sha256, *named)]
