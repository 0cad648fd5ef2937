"""Tenants: who a key belongs to, what each may ask for, and limits that hold."""

from __future__ import annotations

import contextlib
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission
from gateway.config import Config, key_digest, parse
from gateway.errors import NotFound, RateLimited, Unauthorized
from gateway.tenants import Tenant, Tenants
from gateway.window import Window

Header = tuple[bytes, bytes]


def config_of(*tenants: dict[str, Any], **sections: Any) -> Config:
    """Return a configuration with two models and these tenants."""
    raw: dict[str, Any] = {
        "model": [{"name": "demo", "aliases": ["mini"]}, {"name": "large"}],
        "pool": [{"name": name, "model": name, "kind": "baseline", "embedded": {}} for name in ("demo", "large")],
        "tenant": list(tenants),
        **sections,
    }
    return parse(raw, ENV)


def tenants_of(*tenants: dict[str, Any], **sections: Any) -> Tenants:
    """Return the tenants of such a configuration."""
    return Tenants(config_of(*tenants, **sections), ENV)


ENV = {"ACME_KEY": "acme env"}
ACME: dict[str, Any] = {
    "name": "acme",
    "key_sha256": [key_digest("acme 1"), key_digest("acme 2")],
    "key_env": ["ACME_KEY"],
}
BETA: dict[str, Any] = {"name": "beta", "key_sha256": [key_digest("beta")], "models": ["demo"]}


def bearer(key: str) -> Header:
    """Return the header of OpenAI's clients."""
    return (b"authorization", b"Bearer " + key.encode())


@pytest.mark.parametrize(
    "header",
    [
        bearer("acme 1"),
        bearer("acme 2"),
        bearer("acme env"),
        (b"authorization", b"bearer acme 1"),
        (b"authorization", b"BEARER   acme 1  "),
        (b"x-api-key", b"acme 1"),
        (b"api-key", b" acme 1 "),
    ],
)
def test_every_form_of_a_key_is_known(header: Header) -> None:
    """A key counts as a bearer token of any spelling, as x-api-key and as api-key, from a digest or the environment."""
    found = tenants_of(BETA, ACME).identify([(b"host", b"h"), header, (b"accept", b"*/*")])

    assert found.name == "acme"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Basic YWNtZSAx")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"")],
        [(b"x-api-key", b"")],
        [(b"cookie", b"acme 1")],
    ],
)
def test_no_key_is_told_apart_from_a_wrong_one(headers: list[Header]) -> None:
    """Without a key the client is told how to give one, as OpenAI does."""
    with pytest.raises(Unauthorized, match="You didn't provide an API key") as caught:
        tenants_of(ACME).identify(headers)

    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_a_wrong_key_is_refused_and_never_repeated() -> None:
    """The error, its body and its repr hold nothing of the key that was tried."""
    with pytest.raises(Unauthorized, match="Incorrect API key provided") as caught:
        tenants_of(ACME, {"name": "anyone", "anonymous": True}).identify([bearer("sk-guess")])

    assert caught.value.code == "invalid_api_key"
    assert b"sk-guess" not in caught.value.body()
    assert "sk-guess" not in repr(caught.value)


def steps(tenants: Tenants, key: str) -> list[str]:
    """Return the functions that looking a key up calls, in their order."""
    found: list[str] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        found.append(f"{event} {called.__name__ if event.startswith('c_') else frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        with contextlib.suppress(Unauthorized):
            tenants.identify([bearer(key)])
    finally:
        sys.setprofile(None)
    return found


def test_a_near_guess_takes_the_steps_of_any_other() -> None:
    """Nothing but a digest is compared, and that in constant time: a key that is nearly right is as wrong as any."""
    source = SourceFileLoader("gateway.tenants", str(Path(__file__).parent.parent / "gateway" / "tenants.py"))
    spec = spec_from_loader("gateway.tenants", source)
    assert spec
    module = module_from_spec(spec)  # of what is compiled from it the steps cannot be watched
    source.exec_module(module)
    tenants = module.Tenants(config_of(ACME, BETA), ENV)
    wrong = [steps(tenants, guess) for guess in ("acme 0", "acme", "acme 1 and more", "z", "beta 9")]
    right = steps(tenants, "acme 1")

    assert wrong == [wrong[0]] * len(wrong)
    assert any("sha256" in step for step in wrong[0])
    assert "c_call compare_digest" in right


def test_a_key_that_has_come_is_known_until_a_reload() -> None:
    """A right key leads to its tenant as often as it comes, until it is taken away; wrong ones leave nothing behind."""
    tenants = tenants_of(ACME, BETA)
    for _ in range(3):
        assert tenants.identify([bearer("acme 1")]).name == "acme"
        for guess in ("acme 0", "acme"):
            with pytest.raises(Unauthorized):
                tenants.identify([bearer(guess)])
    assert len(tenants._known) == 1

    tenants.reload(config_of(BETA))
    with pytest.raises(Unauthorized):
        tenants.identify([bearer("acme 1")])
    assert tenants.identify([bearer("beta")]).name == "beta"


def test_the_anonymous_tenant_takes_calls_without_a_key() -> None:
    """Calls without any key belong to the anonymous tenant; its own key is a key like others."""
    tenants = tenants_of(ACME, {"name": "anyone", "anonymous": True, "key_sha256": [key_digest("any")]})

    assert tenants.identify([]).name == "anyone"
    assert tenants.identify([bearer("any")]).name == "anyone"
    assert tenants.identify([bearer("acme 1")]).name == "acme"


def test_authorization_goes_before_the_other_headers() -> None:
    """With two keys the bearer token decides, whatever their order, even if only the other is known."""
    tenants = tenants_of(ACME, BETA)

    assert tenants.identify([(b"x-api-key", b"beta"), bearer("acme 1")]).name == "acme"
    assert tenants.identify([bearer("acme 1"), (b"api-key", b"beta")]).name == "acme"
    assert tenants.identify([(b"authorization", b"Basic x"), (b"api-key", b"beta")]).name == "beta"
    with pytest.raises(Unauthorized):
        tenants.identify([bearer("unknown"), (b"x-api-key", b"beta")])


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"api-key", b"x"]), st.binary(max_size=40))))
def test_identifying_is_total(headers: list[Header]) -> None:
    """Whatever the headers hold, the answer is the key's tenant or a refusal."""
    with pytest.raises(Unauthorized):
        tenants_of(ACME).identify(headers)


def test_a_tenant_has_the_rights_of_its_table() -> None:
    """Policy, weight and permissions come from the tenant's table, the weight from [routing] unless set there."""
    tenants = tenants_of(
        ACME | {"policy": "shadow", "allow_route_header": False, "explore": False},
        BETA | {"cost_weight": 1},
        routing={"cost_weight": 0.2},
    )
    acme, beta = tenants.named("acme"), tenants.named("beta")

    assert acme is tenants.first()
    assert acme is not None
    assert beta is not None
    assert (acme.policy, acme.cost_weight, acme.allow_route_header, acme.explore) == ("shadow", 0.2, False, False)
    assert (beta.policy, beta.cost_weight, beta.allow_route_header, beta.explore) == ("auto", 1.0, True, True)
    assert tenants.named("nobody") is None


def test_a_forbidden_model_looks_like_an_unknown_one() -> None:
    """A tenant cannot find out which models others have: the two refusals differ by the name alone."""
    tenants = tenants_of(ACME, BETA)
    beta = tenants.identify([bearer("beta")])

    with pytest.raises(NotFound) as forbidden:
        tenants.resolve(beta, "large")
    with pytest.raises(NotFound) as unknown:
        tenants.admit(beta, model="nosuch", tokens=1, now=0.0)

    assert forbidden.value.body().replace(b"large", b"nosuch") == unknown.value.body()
    assert (unknown.value.status, unknown.value.code, unknown.value.param) == (404, "model_not_found", "model")
    assert tenants.resolve(beta, "mini").name == "demo"
    assert tenants.resolve(tenants.identify([bearer("acme 1")]), "large").name == "large"


def test_a_long_name_of_an_unknown_model_is_shortened() -> None:
    """An error does not send a client's megabyte back."""
    tenants = tenants_of(ACME)

    with pytest.raises(NotFound) as caught:
        tenants.resolve(tenants.first(), "m" * 1_000_000)

    assert len(str(caught.value)) < 200


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited(**limits: int) -> tuple[Tenants, Tenant]:
    """Return tenants with one that has limits."""
    tenants = tenants_of(ACME | limits)
    return tenants, tenants.first()


def admit(tenants: Tenants, tenant: Tenant, now: float, tokens: int = 1) -> Admission:
    """Let a call of the demo model in."""
    return tenants.admit(tenant, model="demo", tokens=tokens, now=now)


def test_without_limits_nothing_is_counted_or_told() -> None:
    """A tenant without limits is never refused and its answers carry no x-ratelimit headers."""
    tenants, tenant = limited()

    assert {tuple(admit(tenants, tenant, 0.0, tokens=10**9).headers) for _ in range(1000)} == {()}


def test_concurrency_is_given_back_once() -> None:
    """A place is free again after release, and releasing twice frees one."""
    tenants, tenant = limited(max_concurrent=2)
    first, _second = admit(tenants, tenant, 0.0), admit(tenants, tenant, 0.0)

    with pytest.raises(RateLimited, match="concurrent requests: Limit 2, Used 2") as caught:
        admit(tenants, tenant, 0.0)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "rate_limit_exceeded", 1.0)

    first.release()
    first.release()
    admit(tenants, tenant, 0.0)
    with pytest.raises(RateLimited):
        admit(tenants, tenant, 0.0)


def test_requests_come_back_a_minute_later() -> None:
    """The limit holds for a minute, retry_after names the moment, and at that moment a call is let in."""
    tenants, tenant = limited(requests_per_minute=2)
    admit(tenants, tenant, 100.5)
    admit(tenants, tenant, 110.0)

    with pytest.raises(RateLimited, match=re.escape("requests per min (RPM): Limit 2, Used 2, Requested 1.")) as caught:
        admit(tenants, tenant, 120.0)
    wait = caught.value.retry_after
    assert wait == 41.0
    with pytest.raises(RateLimited):
        admit(tenants, tenant, 120.0 + wait - 0.1)
    admit(tenants, tenant, 120.0 + wait)


def test_tokens_are_charged_by_estimate_and_corrected() -> None:
    """What a call did not use is free again at once; what it used beyond the estimate counts."""
    tenants, tenant = limited(tokens_per_minute=1000)
    call = admit(tenants, tenant, 0.0, tokens=900)

    with pytest.raises(RateLimited, match=re.escape("tokens per min (TPM): Limit 1000, Used 900, Requested 200.")):
        admit(tenants, tenant, 1.0, tokens=200)
    call.settle(100, 0.0, 1.0)
    call.settle(900, 0.0, 1.0)
    second = admit(tenants, tenant, 1.0, tokens=200)
    second.settle(950, 0.0, 2.0)

    with pytest.raises(RateLimited, match="Used 1050"):
        admit(tenants, tenant, 2.0)


def test_a_refused_call_takes_nothing() -> None:
    """Either all counts of a call are taken or none."""
    tenants, tenant = limited(requests_per_minute=5, tokens_per_minute=100, max_concurrent=5)
    admit(tenants, tenant, 0.0, tokens=60)

    for _ in range(20):
        with pytest.raises(RateLimited, match="TPM"):
            admit(tenants, tenant, 0.0, tokens=60)
    last = admit(tenants, tenant, 0.0, tokens=40)

    assert dict(last.headers)[b"x-ratelimit-remaining-requests"] == b"3"


def test_an_estimate_above_the_limit_is_let_in_alone() -> None:
    """A call that may use more than a minute's tokens waits for an empty minute instead of for ever."""
    tenants, tenant = limited(tokens_per_minute=100)
    admit(tenants, tenant, 0.0, tokens=1)

    with pytest.raises(RateLimited) as caught:
        admit(tenants, tenant, 1.0, tokens=100_000)
    admit(tenants, tenant, 1.0 + (caught.value.retry_after or 0.0), tokens=100_000)


def test_answers_tell_what_is_left() -> None:
    """The x-ratelimit headers have OpenAI's names and forms."""
    tenants, tenant = limited(requests_per_minute=10, tokens_per_minute=1000)
    admission = admit(tenants, tenant, 0.0, tokens=300)

    assert admission.headers == [
        (b"x-ratelimit-limit-requests", b"10"),
        (b"x-ratelimit-remaining-requests", b"9"),
        (b"x-ratelimit-reset-requests", b"1m1s"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"700"),
        (b"x-ratelimit-reset-tokens", b"1m1s"),
    ]


def test_a_reload_keeps_the_counts_of_those_that_stay() -> None:
    """Running calls and spent minutes survive; a changed limit holds at once; a removed tenant is gone."""
    tenants = tenants_of(ACME | {"max_concurrent": 2, "requests_per_minute": 3}, BETA)
    beta = tenants.identify([bearer("beta")])
    running = admit(tenants, tenants.first(), 0.0)
    admit(tenants, tenants.first(), 0.0).release()

    tenants.reload(config_of(ACME | {"max_concurrent": 1, "requests_per_minute": 3}))

    with pytest.raises(RateLimited, match="concurrent requests: Limit 1, Used 1"):
        admit(tenants, tenants.first(), 1.0)
    running.release()
    admit(tenants, tenants.first(), 1.0).release()
    with pytest.raises(RateLimited, match="Limit 3, Used 3"):
        admit(tenants, tenants.first(), 1.0)
    with pytest.raises(Unauthorized):
        tenants.identify([bearer("beta")])
    with pytest.raises(Unauthorized):
        admit(tenants, beta, 1.0)


# ── The window ────────────────────────────────────────────────────────────────────────────────────────────────────────

Steps = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 12)), min_size=1, max_size=60)


@given(st.integers(1, 20), st.floats(-1e6, 1e6), Steps)
def test_no_sixty_seconds_exceed_the_limit(limit: int, start: float, steps: list[tuple[float, int]]) -> None:
    """However calls come, what is let in within any 60 seconds stays within the limit."""
    window = Window(limit)
    taken: list[tuple[float, int]] = []
    now = start
    for pause, amount in steps:
        now += pause
        if window.wait(amount, now) == 0:
            window.take(min(amount, limit), now)
            taken.append((now, min(amount, limit)))

    for end, _ in taken:
        assert sum(amount for at, amount in taken if end - 60 < at <= end) <= limit


@given(st.integers(1, 20), st.floats(0, 1e6), Steps)
def test_a_wait_is_enough_and_not_needlessly_long(limit: int, start: float, steps: list[tuple[float, int]]) -> None:
    """After the wait that is named an amount fits, and the wait never exceeds the window."""
    window = Window(limit)
    now = start
    for pause, amount in steps:
        now += pause
        wait = window.wait(amount, now)
        assert 0 <= wait <= 61
        now += wait + 1e-6  # sums of floats may fall short of the second by a hair
        assert window.wait(amount, now) == 0
        window.take(min(amount, limit), now)
        assert 0 <= window.remaining <= limit


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_clock_jumps_never_break_the_count(times: list[float]) -> None:
    """Whatever the clock says, what is used is what its slots hold, never negative, and a minute of peace frees all."""
    window = Window(10)
    for now in times:
        second = window.take(1, now)
        window.correct(second, -1 if now > 0 else 1, now)
        assert 0 <= window.used == sum(window._slots)

    last = times[-1]
    window.wait(1, last + 30)
    window.wait(1, last + 62)
    assert window.used == 0


def test_a_clock_that_jumps_back_neither_frees_nor_blocks() -> None:
    """After an hour's jump back the limit still holds, and ends a minute later by the new clock."""
    window = Window(2)
    window.take(2, 10_000.0)

    assert window.wait(1, 6_400.0) == 61.0
    assert window.wait(1, 6_430.0) == 31.0
    assert window.wait(1, 6_461.0) == 0.0


def test_what_has_expired_is_not_given_back() -> None:
    """A correction downwards after more than a minute does not touch what others have used since."""
    window = Window(10)
    second = window.take(5, 0.0)
    window.take(4, 70.0)

    window.correct(second, -5, 70.0)

    assert (window.used, repr(window)) == (4, "<Window 4/10>")
