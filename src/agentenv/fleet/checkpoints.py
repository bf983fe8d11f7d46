"""A file that must not be lost: two copies, each with a checksum, and the last good one counts.

A write goes to the older of the two, by a temporary file, and is read back before it counts; whatever happens in
between, the other copy is whole. A torn file or a flipped bit is found by checksum, reported, and the copy before it
is used. What the bytes mean is the caller's business.

    4s magic | u64 generation | u64 length | 16 bytes BLAKE2b over all the rest | the bytes
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from agentenv.telemetry.atomic import write_atomic
from agentenv.telemetry.regular import read_regular

logger = logging.getLogger("agentenv.fleet")

_MAGIC = b"AEC1"
_HEAD = struct.Struct("<4sQQ16s")


@dataclass(frozen=True, slots=True)
class Copy:
    """One of the two copies: its number in the order of writes, and its content."""

    generation: int
    data: bytes


class Checkpoint:
    """A durable value under ``<path>.0`` and ``<path>.1``.

    Args:
        path: The name without the number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places = (path.with_name(path.name + ".0"), path.with_name(path.name + ".1"))

    def write(self, data: bytes) -> None:
        """Make this the value. When it returns, it is on the disk and was read back.

        Raises:
            ResourceLimit: The disk is full; the value before is kept.
            OSError: It cannot be written, or reads back wrong; likewise.
        """
        generations = [held.generation if (held := _read(place)) else 0 for place in self.places]
        place = self.places[generations.index(min(generations))]
        generation = max(generations) + 1
        write_atomic(place, _frame(generation, data))
        if _read(place) != Copy(generation, data):
            raise OSError(0, f"{place} does not read back as it was written; {self.path} keeps its value before", None)

    def read(self, *, quiet: bool = False) -> bytes | None:
        """The value, or None where there is none that is whole.

        Args:
            quiet: Say nothing of a damaged copy, which is otherwise reported through ``logging``.
        """
        held = [(place, _read(place)) for place in self.places]
        whole = [copy for _, copy in held if copy is not None]
        for place, copy in held:
            if copy is None and not quiet and os.path.lexists(place):
                use = "the copy before it is used" if whole else "there is no other copy"
                logger.warning("%s is damaged: %s", place, use)
        return max(whole, key=lambda copy: copy.generation).data if whole else None


def _frame(generation: int, data: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, generation, len(data), _checksum(generation, data)) + data


def _checksum(generation: int, data: bytes) -> bytes:
    return blake2b(struct.pack("<4sQQ", _MAGIC, generation, len(data)) + data, digest_size=16).digest()


def _read(place: Path) -> Copy | None:
    try:
        raw = read_regular(place)
    except OSError:
        return None
    if len(raw) < _HEAD.size:
        return None
    magic, generation, length, checksum = _HEAD.unpack_from(raw)
    data = raw[_HEAD.size :]
    if magic != _MAGIC or length != len(data) or checksum != _checksum(generation, data):
        return None
    return Copy(generation, data)
