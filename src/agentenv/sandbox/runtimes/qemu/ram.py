"""The RAM of a machine as a file of this host: all of it, or what it was before the machine changed it.

A machine that was booted shares its RAM with us, in a memory file. One that was brought back has mapped the memory of
its snapshot for itself. What it changed since is in no file, but the kernel tells which pages they are, and lets
whoever might debug QEMU read them: so a snapshot of such a machine costs what it changed, and where the file system can
share blocks no more than that; elsewhere the rest is copied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.files import copy_memory, data_of, read_into

_ENTRY = 8
_MOST_PAGES = 1 << 17
_CHUNK = 1 << 20
# Bits of an entry of /proc/PID/pagemap; the kernel's Documentation/admin-guide/mm/pagemap.rst.
_PRESENT, _SWAPPED, _OF_FILE = 63, 62, 61
_FICLONE = 0x40049409


class Ram:
    """A machine's RAM. Several threads may use it."""

    def __init__(self, fd: int, *, shared: bool) -> None:
        """Take over a descriptor.

        Args:
            fd: Of the file.
            shared: Whether the machine writes to this file; else it has it mapped copy-on-write.
        """
        self._fd = fd
        self._lock = threading.Lock()
        self.shared = shared

    @classmethod
    def fresh(cls, size_mb: int, *, huge: bool = False) -> Self:
        """A memory file for a machine to boot: no name, no disk, and its size never changes.

        Args:
            size_mb: How much.
            huge: Whether it consists of pages of 2 MiB; then all of them are its own from now on.

        Raises:
            RuntimeUnavailable: There are not so many huge pages.
        """
        kind = os.MFD_HUGETLB | os.MFD_HUGE_2MB if huge else 0
        if huge:
            _check_huge_pages(size_mb)
        fd = os.memfd_create("agentenv-ram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | kind)
        try:
            os.ftruncate(fd, size_mb << 20)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            if huge:
                mmap.mmap(fd, size_mb << 20).close()  # sets them aside for this file
        except OSError as error:
            os.close(fd)
            if huge and error.errno == errno.ENOMEM:
                raise _no_huge_pages(size_mb) from error
            raise
        return cls(fd, shared=True)

    @classmethod
    def filled(cls, path: Path) -> Self:
        """Huge pages with the memory of a snapshot: a file on a disk cannot be mapped in those.

        Raises:
            RuntimeUnavailable: There are not so many.
            OSError: It cannot be read.
        """
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(source).st_size
            made = cls.fresh(size >> 20, huge=True)
            try:
                # A file of huge pages is not written to, only mapped.
                with mmap.mmap(made.fileno(), size) as mapped, memoryview(mapped) as view:
                    for start, end in data_of(source, size):
                        read_into(source, view[start:end], start)
            except BaseException:
                made.close()
                raise
            return made
        finally:
            os.close(source)

    @classmethod
    def of_snapshot(cls, path: Path) -> Self:
        """The memory of a snapshot, for a machine that is brought back."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), shared=False)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._fd

    def copy(self, target: int, pid: int) -> bool:
        """Write what a paused machine has in its RAM.

        Args:
            target: An empty file.
            pid: Its monitor's process.

        Returns:
            Whether that was possible: the kernel may keep us from looking into the process.

        Raises:
            ConnectionError: The process ended meanwhile.
            OSError: There is no room.
        """
        with self._lock:
            if self._fd < 0:
                raise ConnectionError("the machine was ended")
            fd = os.dup(self._fd)  # ended meanwhile, the number would be another file's
        try:
            if self.shared:
                copy_memory(fd, target)
                return True
            return _copy_changed(fd, target, pid)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _check_huge_pages(size_mb: int) -> None:
    if size_mb % 2:
        raise RuntimeUnavailable(
            f'memory_mb = {size_mb} with huge_pages = "2M": expected an even number', "raise it by 1"
        )


def _no_huge_pages(size_mb: int) -> RuntimeUnavailable:
    there = "how many is unknown"
    with contextlib.suppress(OSError):
        places = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
        counts = [int((places / name).read_text()) for name in ("nr_hugepages", "free_hugepages", "resv_hugepages")]
        there = f"the host has {counts[0]}, of which {max(0, counts[1] - counts[2])} are free"
    return RuntimeUnavailable(
        f"a machine of {size_mb} MiB needs {size_mb // 2} huge pages of 2 MiB: {there}",
        'sudo sysctl vm.nr_hugepages=N with enough for all machines, or huge_pages = "none"',
    )


def _copy_changed(base: int, target: int, pid: int) -> bool:
    try:
        pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        os.close(pages)
        return False
    try:
        found = os.fstat(base)
        mappings = list(_mappings(pid, found))
        if sum(length for _, _, length in mappings) != found.st_size:
            return False
        try:
            fcntl.ioctl(target, _FICLONE, base)
        except OSError:
            copy_memory(base, target)
        for address, offset, length in mappings:
            for start, count in _changed(pages, address, length):
                _copy(memory, address + start, target, offset + start, count)
        return True
    finally:
        os.close(pages)
        os.close(memory)


def _mappings(pid: int, file: os.stat_result) -> Iterator[tuple[int, int, int]]:
    """Where a process has mapped a file for itself: address, offset in the file, length."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            where, rights, offset, on, inode = line.split(maxsplit=5)[:5]
            if on.decode() == device and int(inode) == file.st_ino and rights.endswith(b"p"):
                first, _, last = where.partition(b"-")
                yield int(first, 16), int(offset, 16), int(last, 16) - int(first, 16)


def _changed(pages: int, address: int, length: int) -> Iterator[tuple[int, int]]:
    """Which parts of a mapping are the process's own by now: start and length."""
    size = os.sysconf("SC_PAGE_SIZE")
    for start in range(0, length, _MOST_PAGES * size):
        wanted = min(_MOST_PAGES, (length - start) // size) * _ENTRY
        data = os.pread(pages, wanted, (address + start) // size * _ENTRY)
        if len(data) != wanted:
            raise ConnectionError("the machine ended")
        entries = np.frombuffer(data, np.uint64)
        there = (entries >> np.uint64(_PRESENT) | entries >> np.uint64(_SWAPPED)) & np.uint64(1)
        own = there & ~(entries >> np.uint64(_OF_FILE)) & np.uint64(1)
        edges = np.flatnonzero(np.diff(own.astype(np.int8), prepend=0, append=0)).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            yield start + first * size, (last - first) * size


def _copy(source: int, address: int, target: int, at: int, count: int) -> None:
    done = 0
    while done < count:
        block = os.pread(source, min(_CHUNK, count - done), address + done)
        if not block:
            raise ConnectionError("the machine ended")
        written = 0
        while written < len(block):
            written += os.pwrite(target, block[written:], at + done + written)
        done += len(block)
