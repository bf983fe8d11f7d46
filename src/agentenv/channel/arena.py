"""One range of addresses over many separate memory files.

Each sandbox has a memory file of its own and can see no other. The host reserves one range and maps file *i* at
``base + i * size``, so that numpy sees the slots of all environments as one array with a stride. The files are sealed
against growing and shrinking: a guest cannot truncate its file and have the host killed by SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import tempfile
import weakref
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from agentenv.errors import ResourceLimit

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 1, 2, 0x10
_MAP_ANONYMOUS = 0x1000 if sys.platform == "darwin" else 0x20
_MAP_NORESERVE = 0x40 if sys.platform == "darwin" else 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


_HARMLESS_BYTES = 1 << 20
"""So much is not looked for beforehand: the looking would take longer than all else."""


def create_memory(size: int, name: str) -> int:
    """A new anonymous memory file of ``size`` bytes, really allocated and sealed; returns its descriptor.

    Raises:
        ResourceLimit: The host has not that much memory, or no descriptor left.
    """
    # Asked first: to fill a memory file that is too large, the kernel kills processes, this one among them; and how
    # large it must be is what an environment says of its own spaces.
    if size > _HARMLESS_BYTES and size > (available := psutil.virtual_memory().available) // 2:
        raise ResourceLimit(
            errno.ENOMEM,
            f"cannot allocate {size} bytes of shared memory for {name!r}: more than half of the {available} bytes"
            " available; use fewer environments or smaller observations",
        )
    fd = -1
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            with tempfile.TemporaryFile() as stream:
                fd = os.dup(stream.fileno())
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        if hasattr(fcntl, "F_ADD_SEALS"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise ResourceLimit(
            error.errno, f"cannot allocate {size} bytes of shared memory for {name!r}: {error.strerror}"
        ) from error
    return fd


class Arena:
    """A reserved range of ``count`` slots of ``size`` bytes, mapped piece by piece.

    The range is unmapped when the last numpy array over it is gone, never before.

    Attributes:
        bytes: uint8 array, shape (count * size,). Touch only slots that were mapped.
    """

    def __init__(self, count: int, size: int) -> None:
        if size % mmap.PAGESIZE:
            raise ValueError(f"a slot must be a whole number of pages of {mmap.PAGESIZE} bytes; got {size}")
        self.count, self.size = count, size
        self._base = self._map(None, count * size, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)
        memory = (ctypes.c_uint8 * (count * size)).from_address(self._base)
        weakref.finalize(memory, _libc.munmap, self._base, count * size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(memoryview(memory).cast("B"), dtype=np.uint8)

    def attach(self, first: int, count: int, fd: int) -> None:
        """Map a memory file over the slots ``first .. first + count - 1``, replacing what was there."""
        address = self._base + first * self.size
        self._map(address, count * self.size, _PROT_READ | _PROT_WRITE, _MAP_SHARED | _MAP_FIXED, fd)

    def column(self, offset: int, dtype: Any, shape: tuple[int, ...] = ()) -> NDArray[Any]:
        """The same field of every slot: an array of shape (count, *shape) without a copy."""
        kind = np.dtype(dtype)
        inner = []
        step = kind.itemsize
        for extent in reversed(shape):
            inner.append(step)
            step *= extent
        strides = (self.size, *reversed(inner))
        return np.ndarray((self.count, *shape), kind, self.bytes, offset, strides)

    def words(self) -> memoryview:
        """All slots as 64-bit words, for single reads and writes quicker than numpy's."""
        return memoryview(self.bytes).cast("Q")  # type: ignore[arg-type]  # numpy arrays are buffers

    def _map(self, address: int | None, length: int, protection: int, flags: int, fd: int) -> int:
        result = _libc.mmap(address, length, protection, flags, fd, 0)
        if result == _FAILED or result is None:
            code = ctypes.get_errno()
            raise ResourceLimit(code, f"cannot map {length} bytes: {os.strerror(code)}")
        return int(result)
