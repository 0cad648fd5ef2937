"""Figures of finished calls: the compiled part does what the definitions in Python do."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import _native as native
from gateway import log
from gateway.log import plain_micros
from gateway.metrics import spread
from gateway.metrics.spread import PlainSpread

NUMBERS = st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9)


def test_the_gateway_uses_the_compiled_part() -> None:
    """Where a C compiler was there, what the gateway imports is what it made."""
    assert spread.Spread is native.Spread
    assert log.micros is native.micros


@given(
    bounds=st.lists(st.floats(-100, 100), max_size=20, unique=True).map(sorted),
    values=st.lists(NUMBERS | st.floats(-100, 100) | st.just(math.nan) | st.just(math.inf), max_size=30),
)
def test_values_are_counted_alike(bounds: list[float], values: list[float]) -> None:
    """The same counts, sums and examples, on the bounds too, beyond all of them and for what is no number."""
    rows = PlainSpread(bounds), native.Spread(bounds)
    for place, value in enumerate([*values, *bounds]):
        for row in rows:
            if place % 2:
                row.add(value)
            else:
                row.add_example(value, f"req-{place}", float(place))

    assert rows[0].counts == rows[1].counts
    assert repr(float(rows[0].total)) == repr(rows[1].total)
    assert repr(rows[0].examples) == repr(rows[1].examples)


@given(
    numbers=st.lists(NUMBERS | st.none() | st.sampled_from([0, 0.0, -0.0, 1e-7, 5e-7, -5e-7]), max_size=12).map(tuple)
)
def test_numbers_have_six_decimals(numbers: tuple[float | None, ...]) -> None:
    """The same numbers, what is missing left as it is."""
    assert native.micros(numbers) == plain_micros(numbers)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (native.Spread, TypeError),
        (lambda: native.Spread(5), TypeError),
        (lambda: native.Spread(["a"]), TypeError),
        (lambda: native.Spread([float(bound) for bound in range(65)]), ValueError),
        (lambda: native.Spread([1.0]).add("a"), TypeError),
        (lambda: native.Spread([1.0]).add_example(1.0, "a"), TypeError),
        (lambda: native.Spread([1.0]).add_example("a", "a", 1.0), TypeError),
        (lambda: native.micros([1.0]), TypeError),
        (lambda: native.micros((1.0, "a")), TypeError),
    ],
)
def test_what_is_no_number_is_refused(call: Any, error: type[Exception]) -> None:
    """Wrong types raise, and nothing is counted or read that is not there."""
    with pytest.raises(error):
        call()
