"""What a message is read from: its raw bytes, consumed once and in order.

The bytes come from an attacker and may still change while they are read, so every judgement is made on a copy.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from agentenv.errors import ProtocolError, counted
from agentenv.wire.sink import MAX_HASHED


class Source:
    """The raw part of one message, consumed from front to back."""

    __slots__ = ("cursor", "data", "end", "hashed")

    def __init__(self, data: bytes | memoryview, cursor: int, end: int) -> None:
        self.data = data
        self.cursor = cursor
        self.end = end
        self.hashed = 0

    def take(self, nbytes: int) -> int:
        """Claim the next bytes; returns where they begin."""
        start = self.cursor
        if nbytes < 0 or nbytes > self.end - start:
            raise ProtocolError(f"expected {counted(nbytes, 'raw byte')} at offset {start}, got {self.end - start}")
        self.cursor = min(start + nbytes + (-nbytes % 8), self.end)
        return start

    def take_bytes(self, nbytes: object) -> bytes:
        """Copy out the next bytes; their number is as the message claims it."""
        if type(nbytes) is not int:
            raise ProtocolError(f"expected a number of bytes, got {type(nbytes).__name__}")
        start = self.take(nbytes)
        return bytes(self.data[start : start + nbytes])

    def take_array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Copy out the next array."""
        count = prod(shape)
        start = self.take(count * dtype.itemsize)
        array = np.empty(shape, dtype)
        if count:
            array.reshape(-1)[...] = np.frombuffer(self.data, dtype, count, start)
            # The copy is judged, not the input, which may change under our hands.
            if dtype.kind == "b" and array.view(np.uint8).max() > 1:
                raise ProtocolError("expected bytes 0 and 1 in an array of bool")
            if dtype.kind == "U" and array.reshape(-1).view(dtype.byteorder + "u4").max() > 0x10FFFF:
                raise ProtocolError("expected Unicode code points in an array of text, got one above 0x10ffff")
        return array

    def count_hashed(self, number: int) -> None:
        """Count elements that are about to be hashed; colliding hashes cost the square of their number."""
        self.hashed += number
        if self.hashed > MAX_HASHED:
            raise ProtocolError(f"expected at most {MAX_HASHED} set elements and non-string keys in a message")
