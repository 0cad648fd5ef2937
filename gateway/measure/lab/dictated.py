"""Lets vLLM's CPU engine accept as many drafted tokens as it is told to: a part of the lab's `plugin`.

vLLM's `rejection_sample_method: synthetic` accepts drafted tokens by a coin instead of by what the target thinks, which is how
a chosen acceptance is forced on an engine that is otherwise real. In 0.32 the CPU build refuses it ("not yet implemented in
the C++ CPU kernel"); this is that kernel, as the one for GPUs has it. The acceptance length can be changed while the engine
runs: it stands in the file that DRAFTLANE_LAB_ACCEPTANCE names, and is read anew when that changes. Greedy calls only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "DRAFTLANE_LAB_ACCEPTANCE"


def register() -> None:
    """Put the kernel in its place, before vLLM chooses kernels."""
    from vllm.utils import cpu_triton_utils as kernels

    kernels._rejection_greedy_sample_kernel_impl = _with_synthetic(kernels._rejection_greedy_sample_kernel_impl)


def rates(length: float, window: int) -> list[float]:
    """Return for each place of a draft the chance to be accepted when those before it were.

    The schedule is vLLM's own: as many whole tokens as the length has, then one by chance, then none.
    """
    drafted = max(0.0, min(length - 1.0, float(window)))
    whole = int(drafted)
    return ([1.0] * whole + [drafted - whole] + [0.0] * window)[:window]


class _Wish:
    """The acceptance length that is asked for, followed as its file changes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int] | None = None
        self._length: float | None = None

    def length(self) -> float | None:
        """Return it, or None where there is no file or nothing to read in it."""
        try:
            status = self._path.stat()
            if (status.st_mtime_ns, status.st_ino) != self._seen:
                self._length = float(self._path.read_text())
                self._seen = (status.st_mtime_ns, status.st_ino)
        except (OSError, ValueError):
            pass  # half written: the one before holds
        return self._length


def _with_synthetic(plain: Callable[..., None]) -> Callable[..., None]:
    """Return vLLM's kernel, with synthetic mode; its arguments are those of the kernel that it replaces, in their order."""
    wish = _Wish(os.environ.get(VARIABLE, ""))

    def kernel(  # noqa: PLR0913, PLR0917 - the arguments are vLLM's
        output: Any,
        ends: Any,
        drafted: Any,
        target: Any,
        bonus: Any,
        is_greedy: Any,
        longest: int,
        coins: Any = None,
        conditional: Any = None,
        synthetic: bool = False,  # noqa: FBT001, FBT002 - passed by position
    ) -> None:
        if not synthetic:
            plain(output, ends, drafted, target, bonus, is_greedy, longest)
            return
        length = wish.length()
        chances = conditional.tolist() if length is None else rates(length, len(conditional))
        begin = 0
        for row, end in enumerate(ends.tolist()):
            if is_greedy is None or bool(is_greedy[row]):
                _accept(output[row], drafted[begin:end], target[begin:end], coins[begin:end], chances, bonus[row])
            begin = end

    return kernel


def _accept(output: Any, drafted: Any, target: Any, coins: Any, chances: list[float], bonus: Any) -> None:
    """Write one call's tokens: drafted ones as long as the coins allow, then the target's own, or the bonus after all."""
    place = 0
    for token, own, coin, chance in zip(drafted.tolist(), target.tolist(), coins.tolist(), chances, strict=False):
        accepted = coin < chance and token >= 0  # -1 fills up drafts that are shorter than others
        output[place] = token if accepted else own
        if not accepted:
            return
        place += 1
    output[place] = bonus.reshape(-1)[0]
