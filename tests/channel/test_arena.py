"""One strided view over many memory files, none of which a guest can shrink under the host."""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import pytest

from agentenv.channel.arena import Arena, create_memory
from agentenv.errors import ResourceLimit

PAGE = mmap.PAGESIZE


def _filled(count: int, value: int) -> int:
    fd = create_memory(count * PAGE, "test")
    with mmap.mmap(fd, count * PAGE) as memory:
        memory[:] = bytes([value]) * (count * PAGE)
    return fd


def test_files_lie_side_by_side_in_one_array() -> None:
    arena = Arena(5, PAGE)
    for first, count in ((0, 1), (1, 3), (4, 1)):
        fd = _filled(count, first + 1)
        arena.attach(first, count, fd)
        os.close(fd)
    column = arena.column(64, np.uint8)
    assert column.tolist() == [1, 2, 2, 2, 5]
    assert np.shares_memory(column, arena.bytes)


def test_a_column_has_the_fields_shape_and_writes_through() -> None:
    arena = Arena(2, PAGE)
    fd = _filled(2, 0)
    arena.attach(0, 2, fd)
    field = arena.column(128, np.float32, (2, 3))
    assert (field.shape, field.dtype, field.strides) == ((2, 2, 3), np.float32, (PAGE, 12, 4))
    field[1] = 7
    with mmap.mmap(fd, 2 * PAGE) as memory:
        assert np.frombuffer(memory[PAGE + 128 : PAGE + 152], np.float32).tolist() == [7] * 6
    os.close(fd)


def test_a_new_file_replaces_the_old_one_in_place() -> None:
    arena = Arena(2, PAGE)
    column = arena.column(0, np.uint8)
    for value in (3, 4):
        fd = _filled(2, value)
        arena.attach(0, 2, fd)
        os.close(fd)
        assert column.tolist() == [value, value]


def test_the_memory_outlives_the_arena_as_long_as_an_array_does() -> None:
    arena = Arena(1, PAGE)
    fd = _filled(1, 9)
    arena.attach(0, 1, fd)
    os.close(fd)
    column = arena.column(0, np.uint8)
    del arena
    assert column.tolist() == [9]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux: elsewhere files cannot be sealed")
def test_a_guest_can_neither_shrink_nor_grow_its_file() -> None:
    fd = create_memory(PAGE, "test")
    for size in (0, 2 * PAGE):
        with pytest.raises(OSError, match="not permitted") as caught:
            os.ftruncate(fd, size)
        assert caught.value.errno == errno.EPERM
    os.close(fd)


def test_memory_that_is_not_there_is_refused_early_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ResourceLimit, match="cannot allocate"):
        create_memory(1 << 60, "test")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_slot_is_whole_pages() -> None:
    with pytest.raises(ValueError, match="whole number of pages"):
        Arena(1, PAGE + 8)
