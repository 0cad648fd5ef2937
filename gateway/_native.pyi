# The data path's own compiled part: see gateway/native.

from collections.abc import Callable

# Lets ordinary events of a stream through as they came: `write` is the client's transport's, `keep` the bytes of events that
# are kept until they are taken, 0 for none.
class Passage:
    open: bool
    def __init__(self, write: Callable[[bytes], object], keep: int) -> None: ...

    # Events of this stream begin and end so, with a text between that has no quote and no line break. Opens the passage.
    def learn(self, head: bytes, tail: bytes, /) -> None: ...

    # Whether the bytes, whole chunks of HTTP/1.1, held nothing but such events, and have been written. All or nothing.
    def __call__(self, data: bytes, /) -> bool: ...
    @property
    def events(self) -> int: ...

    # How many events have passed since the last time, and the bytes of those that were kept.
    def take(self) -> tuple[int, bytes]: ...
