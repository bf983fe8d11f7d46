"""How fast this host's time stamp counter counts, which is the one that emulated machines see.

An emulated machine of this kind has one clock besides it, an old timer whose counter Linux compares the two by. On a
busy host that comparison fails (QEMU is not always running when it should), and with no clock left the kernel waits
for ever for its first tick. So it is told.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

# rdtsc; shl rdx, 32; or rax, rdx; ret
_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_APART_S = 0.05
_TRIES = 20


@functools.cache
def counter_khz() -> int | None:
    """Ticks of the time stamp counter in a millisecond, good to some parts in 100 000; None where it cannot be read."""
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # a hardened kernel
        return None
    code.write(_READ)
    held = ctypes.c_char.from_buffer(code)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(held))
    first_ns, first = _read_both(read)
    time.sleep(_APART_S)
    last_ns, last = _read_both(read)
    return round((last - first) * 1_000_000 / (last_ns - first_ns))


def _read_both(read: Callable[[], int]) -> tuple[int, int]:
    """The time in nanoseconds and the counter at the same moment: of several readings, the least interrupted."""
    readings = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        ticks = read()
        after = time.monotonic_ns()
        readings.append((after - before, (before + after) // 2, ticks))
    _, at, ticks = min(readings)
    return at, ticks
