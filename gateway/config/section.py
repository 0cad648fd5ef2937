"""What every table of the file is made of: a strict section, and the numbers that stand in it."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], Field(strict=False)]  # TOML knows lists only; what is in them stays strict
Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, StringConstraints(min_length=1)]


class Section(BaseModel):
    """One table of the file: unknown keys are errors, numbers are finite, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
