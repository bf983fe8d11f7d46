"""Large files that are mostly holes: which parts have data, what they contain, and copies of them.

The digest of such a file does not depend on where its holes are, only on what is read from it, and costs as much as the
file has data: a machine's memory is several GB of which most was never touched.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CHUNK = 1 << 20
"""Read at once."""
PAGE = 4096
"""Holes are a multiple of it."""
BLOCK = 1 << 16
"""Digests pass over what is empty in blocks of this size."""
Tick = Callable[[int], None]
_ZEROS = bytes(CHUNK)
_FICLONE = 0x40049409  # linux/fs.h


def data_ranges(fd: int, size: int, unit: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Where a file may hold something else than zeros.

    Args:
        fd: The file.
        size: Looked at from its beginning, in bytes.
        unit: Starts and ends are multiples of it, so that the last end may be behind the file's.

    Yields:
        Starts and ends in order, apart from each other.
    """
    start = end = at = 0
    while at < size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                break
            raise
        if data >= size:
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        first, last = data // unit * unit, -(-min(at, size) // unit) * unit
        if first <= end:
            end = max(end, last)
            continue
        if end > start:
            yield start, end
        start, end = first, last
    if end > start:
        yield start, end


def data_bytes(fd: int) -> int:
    """How much of a file is no hole."""
    return sum(end - start for start, end in data_ranges(fd, os.fstat(fd).st_size, PAGE))


class ContentDigest:
    """SHA-256 over each block of 64 KiB that is not all zeros, after its place, and at last over the file's size.

    Places and the size are numbers of 8 bytes, little-endian. The last block has as many bytes as the file has there.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, at: int, data: bytes) -> None:
        """Take in a part of the file: from the beginning of a block to the end of one, or to the end of the file."""
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            if block != _ZEROS[: len(block)]:
                self._hash.update((at + start).to_bytes(8, "little"))
                self._hash.update(block)

    def finish(self, size: int) -> str:
        """The digest in hexadecimal, after everything that has data was taken in, in order."""
        self._hash.update(size.to_bytes(8, "little"))
        return self._hash.hexdigest()


def read_pieces(fd: int, size: int, unit: int = BLOCK) -> Iterator[tuple[int, bytes]]:
    """The parts of a file that have data, with their places, in pieces of whole units."""
    for start, end in data_ranges(fd, size, unit):
        for at in range(start, end, CHUNK):
            yield at, os.pread(fd, min(CHUNK, end - at, size - at), at)


def digest_content(path: Path, tick: Tick) -> str:
    """The digest of a file that may have holes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        digest = ContentDigest()
        for at, data in read_pieces(fd, size):
            digest.update(at, data)
            tick(len(data))
        return digest.finish(size)
    finally:
        os.close(fd)


def digest_bytes(path: Path, tick: Tick) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(CHUNK):
            found.update(data)
            tick(len(data))
    return found.hexdigest()


def copy_content(source: Path, target: Path, tick: Tick) -> None:
    """Copy a file with its mode; blocks are shared where the file system can, and what is empty becomes a hole."""
    with open(source, "rb", buffering=0) as reader, open(target, "xb", buffering=0) as writer:
        status = os.fstat(reader.fileno())
        os.fchmod(writer.fileno(), status.st_mode & 0o777)
        try:
            fcntl.ioctl(writer, _FICLONE, reader.fileno())
            return
        except OSError:
            pass  # another file system, or one that shares nothing
        os.ftruncate(writer.fileno(), status.st_size)
        for at, data in read_pieces(reader.fileno(), status.st_size, PAGE):
            for start in range(0, len(data), BLOCK):
                block = data[start : start + BLOCK]
                if block != _ZEROS[: len(block)]:
                    write_at(writer.fileno(), block, at + start)
            tick(len(data))


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of something at a place; a disk that becomes full may take a part of it first."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)
