# The classifier's arithmetic, compiled: see classifier/native.

from classifier.view import View

# Who said what: what `conversation.Conversation.told` says of such a body; None where it holds what no decoder makes.
def conversation(
    body: dict[str, object], key: str, /
) -> tuple[str, str, str, str, int, int, int, int, int, int, int] | None: ...

# Features of a text, and weights applied to them. `lexicon` is what `features.lexicon_arrays` returns, `weights` the arrays
# named in `weights.KERNEL_ARRAYS` in single precision, `decay` that of `Weights`. ValueError where sizes differ or prototypes
# lie off their grid.
class Kernel:
    def __init__(self, lexicon: tuple[object, ...], weights: tuple[object, ...] = ..., decay: float = ...) -> None: ...

    # Log length, log n-gram length, log output tokens, spread and score.
    def predict(self, view: View, context: bytes | None, /) -> tuple[float, float, float, float, float]: ...

    # Cues as doubles, and the buckets of words and pairs.
    def measure(self, view: View, context: bytes | None, /) -> tuple[bytes, list[int]]: ...

    # Use only what older processors have too: the same numbers, more slowly.
    def be_portable(self) -> None: ...

    # The cues of a system prompt at half weight, as `predict` and `measure` take them.
    def context(self, system: str, /) -> bytes: ...
