"""Who calls, and whether they may: keys to tenants, and the limits of each tenant.

Nothing here waits and nothing reads a clock: `now` is a monotonic time in seconds that the caller passes in. A key never
leaves this module, neither into a message nor into a log. Limits hold per process.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.config import Config, Model, TenantConfig, key_digest
from gateway.errors import NotFound, RateLimited, Unauthorized
from gateway.window import Window

Headers = Sequence[tuple[bytes, bytes]]
Policy = Literal["auto", "speculative", "baseline", "shadow"]

# A running call ends at any moment, so a client that waits for a free place should look again soon.
_CONCURRENCY_RETRY: Final = 1.0
_SHOWN_NAME: Final = 100  # characters of an unknown model's name that the error repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What a tenant may use; None is no limit."""

    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A caller with its rights: what the pipeline and the router need to know."""

    name: str
    policy: Policy = "auto"
    cost_weight: float = 0.5
    allow_route_header: bool = True
    explore: bool = True
    models: frozenset[str] | None = None  # None: all
    limits: TenantLimits = TenantLimits()

    def may_use(self, model: str) -> bool:
        """Whether the tenant may see the model of this name (no alias)."""
        return self.models is None or model in self.models


class Admission:
    """One call's place among its tenant's; `release` gives it back, `settle` corrects the tokens it was charged."""

    __slots__ = ("_charge", "_open", "_use")

    def __init__(self, use: _Use, charge: tuple[Window, int, int] | None) -> None:
        self._use = use
        self._charge = charge  # the window, the second and the amount of the tokens charged, until settled
        self._open = True

    def settle(self, tokens_used: int, now: float | None = None) -> None:
        """Replace the estimate by what the call really used; any further time does nothing.

        Without `now`, what exceeds the estimate counts at the last time the tenant was looked at.
        """
        if self._charge is not None:
            window, second, estimate = self._charge
            self._charge = None
            window.correct(second, tokens_used - estimate, now)

    def release(self) -> None:
        """Give the place back; any further time does nothing."""
        if self._open:
            self._open = False
            self._use.running -= 1

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The x-ratelimit-* headers of the answer; none for a tenant without such limits."""
        found: list[tuple[bytes, bytes]] = []
        for kind, window in ((b"requests", self._use.requests), (b"tokens", self._use.tokens)):
            if window is not None:
                found += [
                    (b"x-ratelimit-limit-" + kind, b"%d" % window.limit),
                    (b"x-ratelimit-remaining-" + kind, b"%d" % window.remaining),
                    (b"x-ratelimit-reset-" + kind, _duration(window.full_again_in())),
                ]
        return found

    def __repr__(self) -> str:
        return f"<Admission {'open' if self._open else 'released'}>"


class _Use:
    """What one tenant uses now; it outlives a reload."""

    __slots__ = ("max_concurrent", "requests", "running", "tokens")

    def __init__(self) -> None:
        self.running = 0
        self.max_concurrent: int | None = None
        self.requests: Window | None = None
        self.tokens: Window | None = None

    def limit(self, limits: TenantLimits) -> None:
        """Take new limits and keep the counts of those that stay."""
        self.max_concurrent = limits.max_concurrent
        self.requests = _window(self.requests, limits.requests_per_minute)
        self.tokens = _window(self.tokens, limits.tokens_per_minute)


class Tenants:
    """All tenants of a configuration, by their keys, with what they use now."""

    def __init__(self, config: Config, env: Mapping[str, str]) -> None:
        self._env = env
        self._uses: dict[str, _Use] = {}
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Take a new configuration; tenants that stay keep their counts, and their running calls count on."""
        uses = {tenant.name: self._uses.get(tenant.name) or _Use() for tenant in config.tenants}
        by_name = {settings.name: _tenant(settings, config.routing.cost_weight) for settings in config.tenants}
        by_digest: dict[bytes, tuple[bytes, Tenant]] = {}
        anonymous: Tenant | None = None
        for settings in config.tenants:
            tenant = by_name[settings.name]
            uses[tenant.name].limit(tenant.limits)
            for digest in _digests(settings, self._env):
                by_digest[digest] = (digest, tenant)
            if settings.anonymous:
                anonymous = tenant
        self._config, self._uses, self._by_name = config, uses, by_name
        self._by_digest, self._anonymous = by_digest, anonymous

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of this name, if there is one."""
        return self._by_name.get(name)

    def first(self) -> Tenant:
        """Return the first tenant of the configuration, for whoever asks on nobody's behalf."""
        return next(iter(self._by_name.values()))

    def identify(self, headers: Headers) -> Tenant:
        """Return who calls, by ASGI headers (lower-case names); raises Unauthorized without a key that someone owns.

        `Authorization: Bearer` goes before `x-api-key` and `api-key`. The key is hashed before it is looked up, so the
        time of the look-up says nothing about how close a guess came.
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
        digest = hashlib.sha256(key).digest()
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise Unauthorized("Incorrect API key provided.", code="invalid_api_key")
        return found[1]

    def resolve(self, tenant: Tenant, name: str) -> Model:
        """Return the model behind a name or alias; raises NotFound alike for one that is unknown or not the tenant's."""
        model = self._config.resolve_model(name)
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
        if use.max_concurrent is not None and use.running >= use.max_concurrent:
            raise _limited("concurrent requests", use.max_concurrent, use.running, 1, _CONCURRENCY_RETRY)
        # An estimate above the limit would never be let in, though the call may use far less.
        charged = tokens if use.tokens is None else min(tokens, use.tokens.limit)
        _check("requests per min (RPM)", use.requests, 1, now)
        _check("tokens per min (TPM)", use.tokens, charged, now)
        if use.requests is not None:
            use.requests.take(1, now)
        charge = None if use.tokens is None else (use.tokens, use.tokens.take(charged, now), charged)
        use.running += 1
        return Admission(use, charge)


def presented_key(headers: Headers) -> bytes | None:
    """Return the API key among ASGI headers (lower-case names), or None; a bearer token goes before the other headers."""
    other: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            if value[:7].lower() == b"bearer " and (key := value[7:].strip()):
                return key
        elif name in {b"x-api-key", b"api-key"} and other is None:
            other = value.strip() or None
    return other


def _tenant(settings: TenantConfig, cost_weight: float) -> Tenant:
    return Tenant(
        name=settings.name,
        policy=settings.policy,
        cost_weight=cost_weight if settings.cost_weight is None else settings.cost_weight,
        allow_route_header=settings.allow_route_header,
        explore=settings.explore,
        models=None if settings.models is None else frozenset(settings.models),
        limits=TenantLimits(
            max_concurrent=settings.max_concurrent,
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
        ),
    )


def _digests(settings: TenantConfig, env: Mapping[str, str]) -> list[bytes]:
    named = [key_digest(env[name]) for name in settings.key_env if env.get(name)]
    return [bytes.fromhex(digest) for digest in (*settings.key_sha256, *named)]


def _window(old: Window | None, limit: int | None) -> Window | None:
    if limit is None:
        return None
    if old is None:
        return Window(limit)
    old.limit = limit
    return old


def _check(what: str, window: Window | None, amount: int, now: float) -> None:
    if window is not None and (wait := window.wait(amount, now)) > 0:
        raise _limited(what, window.limit, window.used, amount, wait)


def _limited(what: str, limit: int, used: int, requested: int, wait: float) -> RateLimited:
    return RateLimited(
        f"Rate limit reached on {what}: Limit {limit}, Used {used}, Requested {requested}. "
        f"Please try again in {_duration(wait).decode()}.",
        code="rate_limit_exceeded",
        retry_after=wait,
    )


def _duration(seconds: float) -> bytes:
    """Seconds in the form of OpenAI's headers: 120ms, 6s, 1m0s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    whole = round(seconds)
    return b"%dm%ds" % divmod(whole, 60) if whole >= 60 else b"%ds" % whole
