"""What a message is collected in while its value is encoded, with what must be counted over the whole of it."""

from __future__ import annotations

from typing import Any

MAX_HASHED = 4096
"""Most set elements and non-string dict keys in one message: hashes of numbers can be made to collide on purpose, and
the receiver's work grows with the square of their number."""

MAX_DEPTH = 64
"""Most levels of values in values, on both sides: what was decoded can be encoded again."""

PADS = tuple(bytes(n) for n in range(8))


class Sink:
    """The raw chunks of one message, and what has to be counted over the whole of it."""

    __slots__ = ("chunks", "hashed")

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.hashed = 0

    def add(self, chunk: Any, nbytes: int) -> None:
        """Append raw bytes, padded to a multiple of 8."""
        self.chunks.append(chunk)
        if nbytes % 8:
            self.chunks.append(PADS[-nbytes % 8])

    def count_hashed(self, number: int) -> None:
        """Count elements that the receiver will hash.

        Raises:
            ValueError: The message holds too many.
        """
        self.hashed += number
        if self.hashed > MAX_HASHED:
            raise ValueError(
                f"more than {MAX_HASHED} set elements and dict keys that are not strings in one value; "
                "use string keys, a list or a numpy array"
            )


def has_surrogates(text: str) -> bool:
    """Whether the text cannot travel in JSON, which joins two neighbouring surrogates into one character."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
