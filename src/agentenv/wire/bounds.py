"""What is judged of a message's header before it is parsed: how deep it goes, and how much memory its values will take.

A few characters can stand for an object of a few hundred bytes (``{},``), so the length of a message does not bound
what it becomes. What stands outside its texts does: every bracket, comma and colon is counted at the most that it was
seen to cost. Raw bytes are counted too, at what they cost as text of any width.
"""

from __future__ import annotations

import re

import numpy as np

from agentenv.errors import ProtocolError
from agentenv.wire.sink import MAX_DEPTH

MEMORY_TIMES = 8
LEAST_MEMORY = 64 << 20
_MAX_NESTING = MAX_DEPTH + 2  # the deepest value may be an array, whose shape stands in brackets of its own
_LONG_DIGITS = re.compile(r"(?<![0-9])[0-9]{4301}")  # tried once per run of digits, not once per digit
# Bytes of memory, on CPython 3.11 to 3.13: a bracket is an empty set at most; a colon a place in a dict just grown.
_BRACKET, _COMMA, _COLON, _QUOTE = 152, 40, 96, 16
_CHARACTER, _WIDE_CHARACTER, _RAW_BYTE = 3.5, 7.5, 6.0  # below MEMORY_TIMES: one text or array always fits
_HEAVIEST = 160  # a bracket


def most_memory(max_bytes: int) -> int:
    """How much memory the values of a message may take, from the longest message that is accepted."""
    return max(LEAST_MEMORY, MEMORY_TIMES * max_bytes)


def light_size(max_bytes: int) -> int:
    """Up to which length no message can become too large, whatever it holds."""
    return most_memory(max_bytes) // _HEAVIEST


def weigh(text: str, raw: int, bare: str | None = None) -> float:
    """The most memory that decoding a message can take, in bytes.

    Args:
        text: Its header.
        raw: How many raw bytes follow.
        bare: What is outside the header's texts, where that is known; with more in it, more comes out.
    """
    bare = _outside_texts(text) if bare is None else bare
    brackets, commas, colons, quotes = (
        bare.count("[") + bare.count("{"),
        bare.count(","),
        bare.count(":"),
        bare.count('"'),
    )
    objects = brackets * _BRACKET + commas * _COMMA + colons * _COLON + quotes * _QUOTE
    return objects + len(text) * (_WIDE_CHARACTER if "\\u" in text else _CHARACTER) + raw * _RAW_BYTE


def find_excess(text: str, raw: int, max_bytes: int) -> float:
    """What a message weighs, where that is more than its values may take, else 0; arguments as for ``check_header``."""
    most = most_memory(max_bytes)
    if len(text) <= light_size(max_bytes) or weigh(text, raw, text) <= most:
        return 0
    weight = weigh(text, raw)
    return weight if weight > most else 0


def check_size(message: bytes, max_bytes: int) -> None:
    """Refuse to send what would not be accepted: an error tells more than an end.

    Args:
        message: As ``encode`` makes it.
        max_bytes: Longest message accepted.

    Raises:
        ValueError: It is too long, or its values take too much memory.
    """
    if len(message) > max_bytes:
        raise ValueError(
            f"the environment returned {len(message) / 1e6:.0f} MB of info or variable-size data in one answer; at most"
            f" {max_bytes / 1e6:.0f} MB are accepted: raise max_message_mb or return less"
        )
    length = int.from_bytes(message[:4], "little")
    weight = find_excess(str(message[4 : 4 + length], "ascii"), len(message) - 4 - length, max_bytes)
    if weight:
        raise ValueError(
            f"the environment returned info or variable-size data that may take {weight / 1e6:.0f} MB of memory in"
            f" one answer; at most {most_memory(max_bytes) / 1e6:.0f} MB are accepted: return numpy arrays instead of"
            " many small objects, or raise max_message_mb"
        )


def check_header(text: str, raw: int, max_bytes: int) -> bool:
    """Refuse what would make the parser recurse deeply, convert numbers for minutes or fill the memory.

    Args:
        text: The header.
        raw: How many raw bytes follow.
        max_bytes: Longest message accepted.

    Returns:
        Whether it nests deeper than 64 levels, of which two may be an array's: the values' own are then to be counted.

    Raises:
        ProtocolError: It nests deeper than 66 levels, holds a number of more than 4300 digits, or stands for values
            that take more memory than ``most_memory``.
    """
    if len(text) > 4300 and _LONG_DIGITS.search(text) and _LONG_DIGITS.search(_outside_texts(text)):
        raise ProtocolError("expected numbers of at most 4300 digits")
    if weight := find_excess(text, raw, max_bytes):
        raise ProtocolError(
            f"expected values that take at most {most_memory(max_bytes) / 1e6:.0f} MB of memory, got"
            f" {len(text) / 1e6:.1f} MB of text that may become {weight / 1e6:.0f} MB"
        )
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    bare = np.frombuffer(_outside_texts(text).encode("ascii"), np.uint8)
    opening = (bare == ord("[")) | (bare == ord("{"))
    closing = (bare == ord("]")) | (bare == ord("}"))
    steps = opening[opening | closing].astype(np.int8) * 2 - 1
    deepest = int(np.cumsum(steps, dtype=np.int32).max()) if len(steps) else 0
    if deepest > _MAX_NESTING:
        raise ProtocolError(f"expected at most {_MAX_NESTING} levels of nesting")
    return deepest > MAX_DEPTH


def _outside_texts(text: str) -> str:
    """The characters outside texts, and the quotes; what follows a mistake that the parser stops at may be wrong."""
    if "\\" in text:
        # From left to right, as the parser reads them: what is left of the quotes begins and ends texts.
        text = text.replace("\\\\", "").replace('\\"', "")
    data = np.frombuffer(text.encode("ascii"), np.uint8)
    quotes = data == ord('"')
    inside = np.cumsum(quotes, dtype=np.uint8)
    inside &= 1
    return str(data[quotes | (inside == 0)].tobytes(), "ascii")
