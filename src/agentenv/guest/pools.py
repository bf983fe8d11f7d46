"""Taking what is free in the pages of the zygote, so that environments begin new pages instead of copying these.

Python's allocator hands out blocks of one size from pools of four or sixteen KiB. Importing packages leaves thousands
of free blocks between those in use; each that a forked process takes makes a page its own, with all that is on it.
Filled up before the fork, they stay shared. Source: Objects/obmalloc.c of CPython ("usedpools" before "usable_arenas").
"""

from __future__ import annotations

import sys
from collections.abc import Callable

POOL_BYTES = 1 << 14 if sys.version_info >= (3, 10) else 1 << 12
_HEADER = 48
_ALIGNMENT, _LARGEST = 16, 512
_BYTES_OVERHEAD = 33
# An address, and what is computed from it, are objects too.
_SIZE_OF_NUMBERS, _NUMBERS = 32, 16
# Of a size, should the allocator be another one; importing numpy and gymnasium leaves 63 KB at most.
_MOST_BYTES = 1 << 19
_SOURCE = memoryview(bytes(range(256)) * 2)

_held: list[list[object]] = []


def fill_pools() -> int:
    """Take all free blocks of pools that have blocks in use, for as long as the process lives; returns their bytes."""
    taken = 0
    for size in range(_ALIGNMENT, _LARGEST + 1, _ALIGNMENT):
        blocks = _blocks_of_used_pools(size, _maker(size))
        _held.append(blocks)
        taken += len(blocks) * size
    return taken


def _maker(size: int) -> Callable[[], object]:
    """What makes objects of one block of this size, and no other objects of it meanwhile."""
    if size == 16:
        return object
    if size == 32:
        return lambda: complex(1.5)
    count = size - _BYTES_OVERHEAD
    return lambda: bytes(_SOURCE[:count])


def _blocks_of_used_pools(size: int, make: Callable[[], object]) -> list[object]:
    """Objects, until a whole pool was handed out at one go: only a pool that nothing was in does that."""
    whole = (POOL_BYTES - _HEADER) // size - (_NUMBERS if size == _SIZE_OF_NUMBERS else 0)
    held: list[object] = []
    run: list[object] = []
    pool = -1
    while len(held) * size < _MOST_BYTES:
        one = make()
        if id(one) // POOL_BYTES != pool:
            if len(run) >= whole:
                break
            held += run
            run, pool = [], id(one) // POOL_BYTES
        run.append(one)
    return held
