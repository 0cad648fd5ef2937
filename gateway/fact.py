"""Records that are made once per call: immutable to the type checker, and as cheap to make as any other object.

A frozen dataclass writes each field through `object.__setattr__`, which costs three times a plain write. A call makes a
hundred such writes and more, so what is made on its path leaves the guard to mypy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fact(*, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator for a slotted dataclass whose fields nobody may assign, by mypy's word; equal ones hash alike."""
    return dataclass(slots=True, kw_only=kw_only, unsafe_hash=True)
