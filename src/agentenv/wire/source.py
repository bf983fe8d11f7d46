"""What a message is read from: its raw bytes, consumed once and in order, and the bounds that are checked beforehand.

The bytes come from an attacker and may still change while they are read, so every judgement is made on a copy.
"""

from __future__ import annotations

import re
import sys
from math import prod
from typing import Any

import numpy as np

from agentenv.errors import ProtocolError, counted
from agentenv.wire.sink import MAX_DEPTH, MAX_HASHED

MAX_NESTING = MAX_DEPTH + 2  # the deepest value may be an array, whose shape stands in brackets of its own
_LONG_DIGITS = re.compile(r"(?<![0-9])[0-9]{4301}")  # tried once per run of digits, not once per digit
# The closing quote is optional so that no scan restarts. Older Pythons, which only run in images and read what the host
# wrote, keep a way back for every character.
_ANY_TEXT = r'"(?:[^"\\]++|\\.)*+"?' if sys.version_info >= (3, 11) else r'"(?:[^"\\]|\\.)*"?'
_QUOTED = re.compile(_ANY_TEXT, re.DOTALL)
_NOT_BRACKETS = re.compile(r"[^\[\]{}]+")


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


def check_text(text: str) -> bool:
    """Refuse headers that would make the parser recurse deeply or convert numbers for minutes.

    Returns:
        Whether it nests deeper than 64 levels, of which two may be an array's: the values' own are then to be counted.

    Raises:
        ProtocolError: It nests deeper than 66 levels or holds a number of more than 4300 digits.
    """
    if len(text) > 4300 and _LONG_DIGITS.search(text):
        raise ProtocolError("expected numbers of at most 4300 digits")
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_NOT_BRACKETS.sub("", _QUOTED.sub("", text)).encode("ascii"), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    deepest = int(np.cumsum(steps).max()) if len(steps) else 0
    if deepest > MAX_NESTING:
        raise ProtocolError(f"expected at most {MAX_NESTING} levels of nesting")
    return deepest > MAX_DEPTH
