"""Facts: records of a call, cheap to make."""

from __future__ import annotations

from dataclasses import replace

from gateway.fact import fact


@fact(kw_only=True)
class Weather:
    """What a day was like."""

    rain: float
    wind: float = 0.0


def test_a_fact_is_a_value() -> None:
    """Facts with equal fields are equal and hash alike, have no other attributes, and are changed by making another one."""
    day = Weather(rain=1.0)

    assert day == Weather(rain=1.0, wind=0.0)
    assert {day, Weather(rain=1.0)} == {day}
    assert replace(day, wind=2.0) == Weather(rain=1.0, wind=2.0)
    assert not hasattr(day, "__dict__")
