"""Letting calls in: what one tenant may use, what it uses now, and what each call was charged. Pure: `now` is an argument.

A call takes from all limits of its tenant or from none. What it takes is an estimate, put right when the call ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from gateway.config import Budget, Period, TenantConfig
from gateway.errors import QuotaExceeded, RateLimited
from gateway.window import Window

# A running call ends at any moment, so a client that waits for a free place should look again soon.
_CONCURRENCY_RETRY: Final = 1.0


class Room(Protocol):
    """How many calls may run at once, here or in all gateways together."""

    limit: int

    @property
    def used(self) -> int:
        """How many run."""

    def wait(self) -> float:
        """Return 0.0 if one more may run, else after how many seconds to try again."""


class Alone:
    """A limit of calls at once that this process keeps for itself."""

    __slots__ = ("_running", "limit")

    def __init__(self, limit: int, running: Callable[[], int]) -> None:
        self.limit = limit
        self._running = running

    @property
    def used(self) -> int:
        """How many run."""
        return self._running()

    def wait(self) -> float:
        """Return 0.0 if one more may run, else a second."""
        return 0.0 if self._running() < self.limit else _CONCURRENCY_RETRY


def alone(_: str, limit: int, running: Callable[[], int]) -> Room:
    """Return a limit of calls at once that this process keeps for itself."""
    return Alone(limit, running)


class Quota(Protocol):
    """A limit and what was used of it: of the last 60 seconds in one process, or of a window that all gateways share."""

    @property
    def limit(self) -> float:
        """The whole of it."""

    @property
    def used(self) -> float:
        """What is used."""

    @property
    def remaining(self) -> float:
        """What is left."""

    @property
    def exhausted(self) -> bool:
        """Whether nobody is let in until something expires."""

    def wait(self, amount: float, now: float, /) -> float:
        """Return the seconds until `amount` may be taken, 0 if now."""

    def take(self, amount: float, now: float, /) -> int:
        """Count an amount as used, whether it fits or not; return what `correct` needs to know."""

    def correct(self, second: int, by: float, now: float, /) -> None:
        """Count more as used now, or give back some of what was taken in `second`."""

    def full_again_in(self) -> float:
        """Return the seconds until nothing counts any more, seen from the last look."""


Quotas = Callable[[str, float, Period], Quota]  # the limit under a key, per period; the same key finds the same counts
Rooms = Callable[[str, int, Callable[[], int]], Room]  # the limit of calls at once under a key, and how many run here


class Minutes:
    """Limits per minute that this process keeps alone, by key."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    def of(self, key: str, limit: float, period: Period) -> Quota:
        """Return the limit under a key with its count; longer periods need a Store to outlive the process."""
        if period != "minute":
            raise ValueError(f"{key}: a limit per {period} needs a Store")
        found = self._windows.setdefault(key, Window(int(limit)))
        found.limit = int(limit)
        return found

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all others."""
        kept = frozenset(keys)
        self._windows = {key: window for key, window in self._windows.items() if key in kept}

    def __repr__(self) -> str:
        return f"<Minutes {self._windows}>"


Unit = Literal["requests", "tokens", "usd"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a tenant: what it counts, how it is called, and from which share on it is told."""

    key: str
    quota: Quota
    unit: Unit
    period: Period
    budget: Budget | None = None

    @classmethod
    def of(
        cls, tenant: str, unit: Unit, amount: float, period: Period, quotas: Quotas, budget: Budget | None = None
    ) -> Limit:
        """Return a tenant's limit of so much of a unit per period."""
        key = f"{unit}:{tenant}"
        return cls(key, quotas(key, amount, period), unit, period, budget)

    @property
    def label(self) -> str:
        """Its name in metrics and messages, such as tokens_per_minute."""
        return f"{self.unit}_per_{self.period}"

    def amount(self, tokens: float, usd: float) -> float:
        """Return what a call counts for, of its tokens and cost."""
        if self.unit == "usd":
            return usd
        # An estimate above the limit would never be let in, though the call may use far less.
        return min(tokens, self.quota.limit) if self.unit == "tokens" else 1

    @property
    def told(self) -> bool:
        """Whether a budget is so far used that its caller should know."""
        return self.budget is not None and self.quota.used >= self.budget.soft * self.quota.limit

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the x-ratelimit-* headers of a limit per minute, or a budget's own header when it is told."""
        quota = self.quota
        if self.budget is not None:
            said = f"{quota.used / quota.limit:.2f} of {quota.limit:g} {self.unit} per {self.period}"
            return [(b"x-draftlane-budget", said.encode())] if self.told else []
        kind = self.unit.encode()
        return [
            (b"x-ratelimit-limit-" + kind, b"%d" % quota.limit),
            (b"x-ratelimit-remaining-" + kind, b"%d" % quota.remaining),
            (b"x-ratelimit-reset-" + kind, _duration(quota.full_again_in())),
        ]

    def refusal(self, amount: float, wait: float, headers: list[tuple[bytes, bytes]]) -> RateLimited:
        """Return why a call is not let in."""
        if self.budget is not None and self.quota.exhausted:
            return QuotaExceeded(
                f"You exceeded your current quota: {self.quota.limit:g} {self.unit} per {self.period}. "
                f"It is renewed in {_duration(wait).decode()}.",
                code="insufficient_quota",
                retry_after=wait,
                further=[*headers, (b"x-should-retry", b"false")],
            )
        return _limited(self._what, self.quota.limit, self.quota.used, amount, wait, headers)

    @property
    def _what(self) -> str:
        if self.budget is not None:
            return f"{self.unit} per {self.period}"
        return "requests per min (RPM)" if self.unit == "requests" else "tokens per min (TPM)"


@dataclass(frozen=True, slots=True)
class Usage:
    """How far one limit or budget of a tenant is used; `told` is true past a budget's soft share."""

    tenant: str
    label: str
    used: float
    limit: float
    told: bool


class Admission:
    """One call's place among its tenant's; `release` gives it back, `settle` corrects what it was charged."""

    __slots__ = ("_charges", "_estimate", "_open", "_use")

    def __init__(self, use: Use, charges: list[tuple[Limit, int, float]], estimate: int) -> None:
        self._use = use
        self._charges = charges  # each limit, when it was charged and with how much, until settled
        self._estimate = estimate  # tokens
        self._open = True

    def settle(self, tokens: int, usd: float, now: float) -> None:
        """Replace the estimates by what the call really used and cost; any further time does nothing."""
        charges, self._charges = self._charges, []
        for limit, second, charged in charges:
            if limit.unit != "requests":
                limit.quota.correct(second, (usd if limit.unit == "usd" else tokens) - charged, now)
        if charges:
            self._use.learn_price(usd, self._estimate)

    def release(self) -> None:
        """Give the place back; any further time does nothing."""
        if self._open:
            self._open = False
            self._use.running -= 1

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The x-ratelimit-* headers of the answer; none for a tenant without such limits."""
        return self._use.headers()

    def __repr__(self) -> str:
        return f"<Admission {'open' if self._open else 'released'}>"


class Use:
    """What one tenant uses now; it outlives a reload."""

    __slots__ = ("_usd_per_token", "limits", "room", "running")

    def __init__(self) -> None:
        self.running = 0
        self.room: Room | None = None
        self.limits: tuple[Limit, ...] = ()
        self._usd_per_token = 0.0  # of those estimated, as far as learned

    def limit(self, settings: TenantConfig, quotas: Quotas, rooms: Rooms) -> None:
        """Take new limits and keep the counts of those that stay."""
        name, found, most = settings.name, [], settings.max_concurrent
        self.room = None if most is None else rooms(name, most, lambda: self.running)
        if settings.requests_per_minute is not None:
            found.append(Limit.of(name, "requests", settings.requests_per_minute, "minute", quotas))
        if settings.tokens_per_minute is not None:
            found.append(Limit.of(name, "tokens", settings.tokens_per_minute, "minute", quotas))
        found += [Limit.of(name, budget.unit, budget.amount, budget.per, quotas, budget) for budget in settings.budgets]
        self.limits = tuple(found)

    def learn_price(self, usd: float, estimate: int) -> None:
        """Learn what a token that was estimated costs, for budgets in dollars; about the last ten calls count."""
        if usd > 0:
            seen = usd / max(1, estimate)
            self._usd_per_token += (seen - self._usd_per_token) * (0.1 if self._usd_per_token else 1.0)

    def take(self, tokens: int, now: float) -> Admission:
        """Let a call in under all limits, or raise RateLimited and take nothing."""
        room = self.room
        if room is not None and (wait := room.wait()) > 0:
            raise _limited("concurrent requests", room.limit, room.used, 1, wait, self.headers())
        usd = tokens * self._usd_per_token
        wanted = [(limit, limit.amount(tokens, usd)) for limit in self.limits]
        for limit, amount in wanted:
            wait = limit.quota.wait(amount, now)
            if wait > 0 and (limit.budget is None or limit.budget.hard):
                raise limit.refusal(amount, wait, self.headers())
        self.running += 1
        return Admission(self, [(limit, limit.quota.take(amount, now), amount) for limit, amount in wanted], tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what an answer tells of the limits."""
        return [header for limit in self.limits for header in limit.headers()]


def _limited(
    what: str, limit: float, used: float, requested: float, wait: float, headers: list[tuple[bytes, bytes]]
) -> RateLimited:
    return RateLimited(
        f"Rate limit reached on {what}: Limit {limit:.12g}, Used {used:.12g}, Requested {requested:.12g}. "
        f"Please try again in {_duration(wait).decode()}.",
        code="rate_limit_exceeded",
        retry_after=wait,
        further=headers,
    )


def _duration(seconds: float) -> bytes:
    """Seconds in the form of OpenAI's headers: 120ms, 6s, 1m0s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    whole = round(seconds)
    return b"%dm%ds" % divmod(whole, 60) if whole >= 60 else b"%ds" % whole
