"""What changed in a large file since another one, as pages; found by comparing, and applied to a copy of the other.

Two files hold it. ``.extents`` is a list of records of 16 bytes, little-endian: the number of the first page (8 bytes),
how many pages (4 bytes), and what they are (4 bytes): 1 for data, 2 for pages that are empty now. They are in order and
do not overlap. ``.pages`` is the data of all records of the first kind, one after another, 4096 bytes a page; where the
file ends within a page, the page is filled up with zeros. Pages in no record are as in the other file, or empty behind
its end.

That a page became empty is said and not left to a hole. Firecracker's diff snapshots are sparse files in which a
hole means "as before", so that a tool which copies them sparsely loses emptied pages; streams of ZFS have records of
their own for what was freed, and so have we.
"""

from __future__ import annotations

import ctypes
import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from agentenv.snapshots.blocks import BLOCK, CHUNK, PAGE, ContentDigest, Tick, data_ranges, write_at

DATA, EMPTY = 1, 2
_RECORD = np.dtype([("first", "<u8"), ("count", "<u4"), ("kind", "<u4")])
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h

Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Compared:
    """What comparing two files gave.

    Attributes:
        digest: Of the new file's content.
        extents: What changed; None where it was more than was wanted.
        page_bytes: Data of the pages that changed.
    """

    digest: str
    extents: Records | None
    page_bytes: int


def compare(old: int, new: int, pages: BinaryIO, most_bytes: int, tick: Tick) -> Compared:
    """Write the pages of a file that differ from another one's, reading only where one of them has data.

    Args:
        old: The other file.
        new: The file.
        pages: Takes the data of pages that changed.
        most_bytes: How much of it is wanted; when there is more, only the digest is worked out.
        tick: Told how many bytes were compared.
    """
    size = os.fstat(new).st_size
    digest = ContentDigest()
    found: list[Records] = []
    written = 0
    for start, end in _either(old, new, size):
        for at in range(start, end, CHUNK):
            length = min(CHUNK, end - at)
            before, after = os.pread(old, length, at), os.pread(new, length, at)
            digest.update(at, after)
            tick(length)
            if before == after or written > most_bytes:
                continue
            whole = -(-len(after) // PAGE) * PAGE
            records = _differences(before[:whole].ljust(whole, b"\0"), after.ljust(whole, b"\0"))
            for first, count, kind in records.tolist():
                if kind == DATA:
                    written += count * PAGE
                    if written <= most_bytes:
                        pages.write(after[first * PAGE : (first + count) * PAGE].ljust(count * PAGE, b"\0"))
            records["first"] += at // PAGE
            found.append(records)
    extents = None if written > most_bytes else _joined(found)
    return Compared(digest.finish(size), extents, written)


def _either(old: int, new: int, size: int) -> Iterator[tuple[int, int]]:
    """Where one of two files has data, in order, put together where they touch."""
    start = end = 0
    for first, last in heapq.merge(data_ranges(old, size), data_ranges(new, size)):
        if first > end:
            if end > start:
                yield start, end
            start = first
        end = max(end, last)
    if end > start:
        yield start, end


def _differences(before: bytes, after: bytes) -> Records:
    """Runs of pages that differ, numbered from the beginning of these bytes."""
    old = np.frombuffer(before, np.uint64).reshape(-1, PAGE // 8)
    new = np.frombuffer(after, np.uint64).reshape(-1, PAGE // 8)
    kinds = np.where((old != new).any(axis=1), np.where(new.any(axis=1), DATA, EMPTY), 0)
    starts = np.flatnonzero(np.diff(kinds, prepend=-1))
    records = np.empty(len(starts), _RECORD)
    records["first"] = starts
    records["count"] = np.diff(starts, append=len(kinds))
    records["kind"] = kinds[starts]
    changed: Records = records[records["kind"] != 0]
    return changed


def _joined(found: list[Records]) -> Records:
    """All records, those put together that were cut only because files are read in pieces."""
    if not found:
        return np.empty(0, _RECORD)
    records = np.concatenate(found)
    ends = records["first"] + records["count"]
    apart = np.ones(len(records), bool)
    apart[1:] = (records["first"][1:] != ends[:-1]) | (records["kind"][1:] != records["kind"][:-1])
    starts = np.flatnonzero(apart)
    joined = records[starts]
    if len(starts):
        joined["count"] = np.add.reduceat(records["count"], starts)
    return joined


def write_extents(path: Path, extents: Records) -> None:
    """Write the list of what changed."""
    path.write_bytes(extents.tobytes())


def read_extents(path: Path, size: int, page_bytes: int) -> list[tuple[int, int, int]]:
    """The list of what changed.

    Args:
        path: The file.
        size: Of the file it is about.
        page_bytes: How much data there is for it.

    Raises:
        ValueError: It is none, or does not belong to these; says why.
    """
    data = path.read_bytes()
    if len(data) % _RECORD.itemsize:
        raise ValueError(f"expected records of {_RECORD.itemsize} bytes, got {len(data)} bytes")
    records = np.frombuffer(data, _RECORD)
    ends = records["first"] + records["count"]
    if np.any(ends[:-1] > records["first"][1:]) or np.any(ends < records["first"]) or np.any(ends > -(-size // PAGE)):
        raise ValueError("expected pages in order and within the file")
    kinds = records["kind"]
    if not np.all((kinds == DATA) | (kinds == EMPTY)):
        raise ValueError(f"expected the kinds {DATA} and {EMPTY}, got others")
    told = int(records["count"][kinds == DATA].sum(dtype=np.uint64)) * PAGE
    if told != page_bytes:
        raise ValueError(f"expected {page_bytes} bytes of pages, it has {told}")
    listed: list[tuple[int, int, int]] = records.tolist()
    return listed


def apply(target: int, extents: list[tuple[int, int, int]], pages: int, size: int, tick: Tick) -> None:
    """Change a copy of the other file, so that it is the file that was compared.

    Args:
        target: The copy.
        extents: What changed.
        pages: The file with the data of it.
        size: Of the file that was compared.
        tick: Told how many bytes were written.
    """
    os.ftruncate(target, size)
    source = 0
    for first, count, kind in extents:
        at, end = first * PAGE, min((first + count) * PAGE, size)
        if kind == EMPTY:
            _clear(target, at, end - at)
            continue
        for start in range(at, end, CHUNK):
            data = os.pread(pages, min(CHUNK, end - start), source + start - at)
            write_at(target, data, start)
            tick(len(data))
        source += count * PAGE


def _clear(fd: int, at: int, length: int) -> None:
    if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, at, length) == 0:
        return
    # The file system has no holes: zeros are the same, and take room.
    for start in range(at, at + length, BLOCK):
        write_at(fd, bytes(min(BLOCK, at + length - start)), start)


def _load_fallocate() -> Any:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    return function


_fallocate = _load_fallocate()
