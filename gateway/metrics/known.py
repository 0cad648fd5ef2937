"""The closed sets that label values come from: configured names, and the words of this program.

What is in none of them counts under "other", what a call never got to under "none", so that no client can make a series.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.config import Config
from gateway.record import Finished

NONE: Final = "none"
OTHER: Final = "other"
SHADOW: Final = "(shadow)"  # whose bill shadow copies are on: no tenant's, but somebody's money
MAX_TENANTS: Final = 200  # some hundred series each, on two pools
ENDPOINTS: Final = frozenset({"chat", "completions", "responses", "messages"})
# Why the gateway refuses calls that would be fine at another time or from another caller.
CODES: Final = frozenset(
    {
        "rate_limit_exceeded",
        "insufficient_quota",
        "overloaded",
        "no_replica",
        "invalid_api_key",
        "model_not_found",
        "route_not_allowed",
        "request_too_large",
    }
)
STATUSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Known:
    """Every name that may become a label value now; `reasons` is the closed set of a plan's reasons."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self._reasons = frozenset(reasons)
        self._models: frozenset[str] = frozenset()
        self._pools: frozenset[str] = frozenset()
        self._tenants: dict[str, None] = {SHADOW: None}

    def reload(self, config: Config) -> None:
        """Take the names of a configuration; a tenant that once had series of its own keeps them."""
        self._models = frozenset(model.name for model in config.models)
        self._pools = frozenset(pool.name for pool in config.pools)
        for tenant in config.tenants:
            if len(self._tenants) <= MAX_TENANTS:
                self._tenants.setdefault(tenant.name)

    def who(self, record: Finished) -> tuple[str, str, str]:
        """The labels of a call's model, pool and tenant."""
        return self.model(record.model), self.pool(record.pool), self.tenant(record.tenant)

    def tenant(self, name: str) -> str:
        """The label of a tenant."""
        return name if name in self._tenants else OTHER if name else NONE

    def code(self, code: str | None) -> str:
        """The label of why a call was refused; a mistake in the request itself counts as "invalid"."""
        return code if code in CODES else "invalid" if code else NONE

    def tenants_of(self, model: str, config: Config) -> set[str]:
        """The labels of all tenants that may use a model."""
        may = [each for each in config.tenants if each.models is None or model in each.models]
        shadowed = [SHADOW for each in may if each.policy == "shadow"][:1]
        return {*(self.tenant(each.name) for each in may), *shadowed}

    def ending(self, record: Finished) -> tuple[str, str, str]:
        """The labels of a call's endpoint, outcome and class of status."""
        endpoint = record.endpoint if record.endpoint in ENDPOINTS else OTHER
        hundreds = record.status // 100
        return endpoint, record.outcome, f"{hundreds}xx" if 1 <= hundreds <= len(STATUSES) else OTHER

    def model(self, name: str) -> str:
        """The label of a model."""
        return name if name in self._models else OTHER if name else NONE

    def pool(self, name: str) -> str:
        """The label of a pool."""
        return name if name in self._pools else OTHER if name else NONE

    def reason(self, reason: str) -> str:
        """The label of a decision's reason; "constraint:logprobs" counts as "constraint"."""
        kind = reason.partition(":")[0]
        return kind if kind in self._reasons else OTHER if kind else NONE
