"""What engines cost: in which currency prices are written, and from which day on they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from gateway.config.section import Amount, Section

CURRENCY: Final = r"^[A-Z]{3}$"


class Currency(Section):
    """What prices are written in. All figures, metrics and budgets are in US dollars, by this one rate."""

    name: Annotated[str, StringConstraints(pattern=CURRENCY)] = "USD"
    usd: Annotated[float, Field(gt=0)] = 1.0  # what one unit of it is worth


class Price(Section):
    """What a replica costs per hour from the beginning of a UTC day on."""

    since: date = Field(alias="from")
    per_hour: Amount


def price_on(day: date, prices: Sequence[Price], before: float) -> float:
    """Return the price that holds on a day: the latest that has begun, or `before` where none has."""
    begun = [price for price in prices if price.since <= day]
    return max(begun, key=lambda price: price.since).per_hour if begun else before
