"""Files of machines: kernels looked into before they are booted, memory written without its empty pages, snapshots
that are there whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from agentenv.disk import MOUNT, Remedy, sync
from agentenv.errors import ResourceLimit, RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import MachineSpec

_BLOCK = 1 << 20
_PIECE = 1 << 16
_ZEROS = bytes(_BLOCK)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_PARTIAL = ".partial"
DESCRIPTION = "machine.json"
"""The file of a snapshot that says what the others are; without it they are none."""
_FICLONE = 0x40049409  # linux/fs.h
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
_PT_NOTE = 4
_XEN_PHYS32_ENTRY = 18  # Xen's public/elfnote.h; where a PVH kernel is entered
_BEYOND = 1 << 40  # any kernel
_NOTE_BYTES = 1 << 16


def find_program(configured: str | None, names: tuple[str, ...], what: str, remedy: str) -> str:
    """The absolute path of a program: the configured one, or the first of these names on PATH.

    Raises:
        RuntimeUnavailable: There is none.
    """
    if configured is not None:
        if not (os.path.isfile(configured) and os.access(configured, os.X_OK)):
            key = f"binary in [{what.lower()}]" if what.isalpha() else "it"
            raise RuntimeUnavailable(
                f"{what}: {configured!r} is not an executable file",
                f"correct {key} in the configuration, or leave it out to use the one on PATH",
            )
        return os.path.abspath(configured)
    for name in names:
        if found := shutil.which(name):
            return os.path.abspath(found)
    raise RuntimeUnavailable(f"{what}: no {' or '.join(names)} on PATH", remedy)


def check_spec(spec: MachineSpec, home: Path, *, most_cpus: int, kernel: bool) -> None:
    """Find out what a monitor would say late, or in words of its own.

    Args:
        spec: The machine.
        home: Where its own drives are.
        most_cpus: How many the monitor can give it.
        kernel: Whether it is booted, so that a kernel is needed.

    Raises:
        RuntimeUnavailable: Something is missing or is not what it should be.
    """
    if kernel:
        check_kernel(spec.kernel)
        if spec.initramfs is not None and not os.access(spec.initramfs, os.R_OK):
            raise RuntimeUnavailable(f"initramfs {spec.initramfs}: expected a readable file, there is none")
    for drive in spec.drives:
        path = home / drive.path
        if not drive.readonly and os.path.isabs(drive.path):
            raise ValueError(f"drive {drive.path}: expected what can be written to be a bare name in the home")
        if not os.access(path, os.R_OK if drive.readonly else os.R_OK | os.W_OK):
            raise RuntimeUnavailable(
                f"drive {path}: expected a file to read{'' if drive.readonly else ' and write'},"
                f" {'it may not be opened so' if path.exists() else 'there is none'}"
            )
    if not 1 <= spec.vcpu_count <= most_cpus:
        raise RuntimeUnavailable(f"vcpu_count = {spec.vcpu_count}: expected 1 to {most_cpus}", "lower vcpu_count")
    total_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if spec.memory_mb > total_mb:
        raise RuntimeUnavailable(f"memory_mb = {spec.memory_mb}: this host has {total_mb} MiB", "lower memory_mb")


def check_kernel(path: Path) -> None:
    """Look whether a file is a kernel that can be entered directly: an ELF image for x86-64 with a PVH entry.

    Raises:
        RuntimeUnavailable: It is not; says what it is, and how to get one.
    """
    remedy = "agentenv fetches one by itself where kernel_image is not set; a distribution's vmlinuz must be unpacked"
    try:
        with open(path, "rb") as file:
            head = file.read(0x210)
            if head[0x202:0x206] == b"HdrS":
                raise RuntimeUnavailable(
                    f"kernel {path}: expected an uncompressed kernel (vmlinux), it is a compressed one (bzImage)",
                    remedy,
                )
            # The ELF header: magic, 64 bits, little-endian; the machine is at 18, 62 is x86-64.
            if head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 18)[0] != 62:
                raise RuntimeUnavailable(
                    f"kernel {path}: expected an ELF image for x86-64, it begins with {head[:4]!r}", remedy
                )
            if has_pvh_entry(file):
                return
    except (OSError, struct.error) as error:
        raise RuntimeUnavailable(f"kernel {path}: expected a readable kernel image: {error}", remedy) from error
    raise RuntimeUnavailable(
        f"kernel {path}: it has no PVH entry", "build it with CONFIG_PVH=y, or use a distribution's kernel"
    )


def has_pvh_entry(file: BinaryIO) -> bool:
    """Whether an ELF image for 64 bits has a note that tells where a PVH kernel is entered.

    Raises:
        struct.error: It is cut short.
    """
    file.seek(0)
    head = file.read(64)
    (table,), (width, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    headers = _read(file, table, width * count)
    for at in range(0, len(headers) - 55, max(1, width)):
        kind, _flags, offset, _virtual, _physical, size = struct.unpack_from("<IIQQQQ", headers, at)
        if kind == _PT_NOTE and _has_entry(_read(file, offset, min(size, _NOTE_BYTES))):
            return True
    return False


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    """What is there; nothing behind the end, however far."""
    file.seek(min(at, _BEYOND))
    return file.read(size)


def _has_entry(notes: bytes) -> bool:
    at = 0
    while at + 12 <= len(notes):
        name_bytes, data_bytes, kind = struct.unpack_from("<III", notes, at)
        if kind == _XEN_PHYS32_ENTRY and notes[at + 12 : at + 12 + name_bytes] == b"Xen\0":
            return True
        at += 12 + (name_bytes + 3 & ~3) + (data_bytes + 3 & ~3)
    return False


def read_version(binary: str, what: str, pattern: str, oldest: tuple[int, int], remedy: str) -> str:
    """The version of a monitor.

    Args:
        binary: The program, which is asked with ``--version``.
        what: Its name, for messages.
        pattern: Finds the version in what it says, as a group that begins with two numbers.
        oldest: Which is good enough.
        remedy: How to get another one.

    Raises:
        RuntimeUnavailable: It does not tell, or is too old.
    """
    try:
        done = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailable(f"{what}: {binary} --version: {error}", remedy) from error
    found = re.search(pattern, done.stdout)
    if found is None:
        said = (done.stdout + done.stderr).strip()[:200]
        raise RuntimeUnavailable(
            f"{what}: expected {binary} --version to tell a version of {what}, it said {said!r}", remedy
        )
    version = found[1]
    major, minor = version.split(".")[:2]
    if (int(major), int(re.match(r"\d+", minor)[0])) < oldest:  # type: ignore[index]  # the pattern has digits there
        least = ".".join(map(str, oldest))
        raise RuntimeUnavailable(f"{what}: expected version {least} or newer, {binary} is {version}", remedy)
    return version


@contextlib.contextmanager
def room_in(directory: Path, what: str, remedy: Remedy) -> Iterator[None]:
    """Say in words that a disk is full or may not be written, where, and what helps.

    Args:
        directory: Where it is written.
        what: What for, as in "keep a snapshot".
        remedy: What helps.

    Raises:
        ResourceLimit: Instead of the error of the system.
    """
    try:
        yield
    except ResourceLimit:
        raise
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        text = f"cannot {what} in {directory}: {error.strerror}{_free(directory, error)}"
        text += f"\n  remedy: {MOUNT if error.errno == errno.EROFS else remedy.room}, or {remedy.elsewhere}"
        raise ResourceLimit(error.errno, text) from error


def _free(directory: Path, error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return ""
    with contextlib.suppress(OSError):
        return f" ({shutil.disk_usage(directory).free >> 20} MB free)"
    return ""


def copy_sparsely(source: Path, target: Path) -> None:
    """Copy a file, leaving out what is empty; shares its blocks where the file system can."""
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        try:
            fcntl.ioctl(writer, _FICLONE, reader.fileno())
        except OSError:
            copy_memory(reader.fileno(), writer.fileno())


def copy_memory(source: int, target: int) -> None:
    """Copy a memory file, leaving out pages that were never touched or hold only zeros."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    for at, end in data_of(source, size):
        while at < end:
            block = os.pread(source, min(_BLOCK, end - at), at)
            write_block(target, block, at)
            at += len(block)


def clear(directory: Path) -> None:
    """Remove what is in a directory."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def data_of(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file of this size is no hole: start and end."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def read_into(fd: int, target: memoryview, at: int) -> None:
    """Fill memory with what a file has from there on.

    Raises:
        OSError: It cannot be read, or is shorter.
    """
    done = 0
    while done < len(target):
        count = os.preadv(fd, [target[done : done + _BLOCK]], at + done)
        if not count:
            raise OSError(errno.EIO, f"expected {len(target)} bytes at {at}, got {done}")
        done += count


def write_block(target: int, block: bytes, at: int) -> None:
    """Write a part of a file that has its size already; what holds only zeros becomes a hole."""
    if block == _ZEROS[: len(block)]:
        return
    for start in range(0, len(block), _PIECE):
        piece = block[start : start + _PIECE]
        if piece == _ZEROS[: len(piece)]:
            continue
        written = 0
        while written < len(piece):
            written += os.pwrite(target, piece[written:], at + start + written)


def receive_memory(read: Callable[[int], bytes], target: int, start: int, size: int) -> None:
    """Write so many bytes that come in a stream; what holds only zeros becomes a hole.

    Raises:
        ConnectionError: The stream ended early.
    """
    at, end = start, start + size
    while at < end:
        block = read(min(_BLOCK, end - at))
        if not block:
            raise ConnectionError(f"the memory ended after {at - start} of {size} bytes")
        write_block(target, block, at)
        at += len(block)


def make_holes(fd: int) -> None:
    """Give back what a file takes of the disk for blocks that hold only zeros.

    Raises:
        OSError: The file system has no holes.
    """
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    at = 0
    while block := os.pread(fd, _PIECE, at):
        if block == _ZEROS[: len(block)] and fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, at, len(block)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        at += len(block)


@contextlib.contextmanager
def written_whole(directory: Path, *, durable: bool = True) -> Iterator[Path]:
    """A directory to write a snapshot's files in; they appear in ``directory`` when all are written, or none does.

    Args:
        directory: An existing, empty directory.
        durable: Whether they are on the disk then: not needed for what is gone with its run.

    Raises:
        RuntimeUnavailable: It is not empty: a snapshot is never written over another one.
    """
    if not directory.is_dir() or any(directory.iterdir()):
        raise RuntimeUnavailable(f"snapshot in {directory}: expected an existing, empty directory")
    partial = directory / _PARTIAL
    partial.mkdir(mode=0o700)
    moved: list[Path] = []
    try:
        yield partial
        for path in sorted(partial.iterdir(), key=lambda path: path.name == DESCRIPTION):
            if durable:
                sync(path)
            moved.append(path.rename(directory / path.name))
        partial.rmdir()
        if durable:
            sync(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for path in moved:
            path.unlink(missing_ok=True)
        raise
