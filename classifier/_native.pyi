"""The classifier's arithmetic, compiled; see classifier/native."""

class Kernel:
    """Features of a text, and weights applied to them.

    `lexicon` is what `features.lexicon_arrays` returns, `weights` the arrays named in `weights.KERNEL_ARRAYS` in single precision,
    `decay` that of `Weights`. Raises ValueError where sizes differ or prototypes lie off their grid.
    """

    def __init__(
        self, lexicon: tuple[object, ...], weights: tuple[object, ...] = ..., decay: float = ...
    ) -> None: ...
    def predict(
        self, user: str, user_chars: float, form: bool, context: bytes | None, request: tuple[float, ...], /
    ) -> tuple[float, float, float, float, float]:
        """Log length, log n-gram length, log output tokens, spread and score."""

    def measure(
        self, user: str, user_chars: float, form: bool, context: bytes | None, request: tuple[float, ...], /
    ) -> tuple[bytes, list[int]]:
        """Cues as doubles, and the buckets of words and pairs."""

    def context(self, system: str, /) -> bytes:
        """The cues of a system prompt at half weight, as `predict` and `measure` take them."""
