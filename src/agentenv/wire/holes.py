"""Files written without what they do not hold: whole pages of zeros become holes, which take no room on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

_PAGE = 4096
_ZEROS = bytes(_PAGE)


def write_sparsely(fd: int, data: bytes) -> None:
    """Write at a descriptor's place in a new file, and go on behind it; ``end_sparsely`` comes last.

    Raises:
        OSError: It cannot be written.
    """
    here = os.lseek(fd, 0, os.SEEK_CUR)
    view = memoryview(data)
    for start, stop in _held(data, here):
        os.lseek(fd, here + start, os.SEEK_SET)
        left = view[start:stop]
        while left:
            left = left[os.write(fd, left) :]
    os.lseek(fd, here + len(data), os.SEEK_SET)


def end_sparsely(fd: int) -> None:
    """Give a file its length, which a hole at its end does not."""
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


def _held(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Where in a piece of a file there is anything: beginnings and ends."""
    begun = at = 0
    while at < len(data):
        end = min(len(data), at + _PAGE - (offset + at) % _PAGE)
        if end - at == _PAGE and data.startswith(_ZEROS, at):
            if begun < at:
                yield begun, at
            begun = end
        at = end
    if begun < at:
        yield begun, at
