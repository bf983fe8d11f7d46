"""What a program finds out about its own cage: system calls by number, its shared memory, its descriptors."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from agentenv.guest._syscalls import NUMBERS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
CANARY = "AGENTENV" + "-CANARY-"
"""Every secret of the suite begins so, in two parts, lest a search finds the pattern itself."""


def syscall(name: str, *arguments: int | bytes) -> int:
    """Make a system call; bytes are passed by address. Returns its result, or minus the error number."""
    kept = [ctypes.create_string_buffer(value) if isinstance(value, bytes) else value for value in arguments]
    plain = [ctypes.c_ulong(v % 2**64) if isinstance(v, int) else ctypes.c_ulong(ctypes.addressof(v)) for v in kept]
    result = int(_libc.syscall(ctypes.c_ulong(NUMBERS[platform.machine()][name]), *plain))
    return -ctypes.get_errno() if result < 0 else result


def reached(what: str, attempt: Callable[..., object], *arguments: object) -> str:
    """Try something that must fail; returns "" when it did, else what was reached."""
    try:
        result = attempt(*arguments)
    except (OSError, ValueError, OverflowError):
        return ""
    if isinstance(result, int) and not isinstance(result, bool) and result < 0:
        return ""
    return f"{what}: {str(result)[:200]!r}"


def canaries(data: bytes) -> set[str]:
    """The secrets in some bytes."""
    return {found.decode() for found in re.findall(CANARY.encode() + rb"[0-9a-f]{32}", data)}


@dataclass(frozen=True, slots=True)
class Mapping:
    """The step channel's memory as this process has it mapped.

    Attributes:
        start: Address.
        size: Bytes.
    """

    start: int
    size: int

    def words(self) -> memoryview:
        """It, as 64-bit words, to read and write."""
        array = (ctypes.c_uint64 * (self.size // 8)).from_address(self.start)
        return memoryview(array).cast("B").cast("Q")

    def raw(self) -> memoryview:
        """It, as bytes."""
        return memoryview((ctypes.c_uint8 * self.size).from_address(self.start)).cast("B")


def channel_memory() -> Mapping:
    """Find the shared memory of the step channel.

    Raises:
        LookupError: There is none yet.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "memfd:agentenv" in line and "rw-s" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                return Mapping(start, end - start)
    raise LookupError("no shared memory of agentenv is mapped here")


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What this process inherited.

    Attributes:
        control: The control socket.
        bells_in: What it is woken by: an eventfd, or the end to read of a pipe.
        bells_out: What it rings, besides standard output and error: an eventfd, or the end to write of a pipe.
        memory: Memory files.
        other: Whatever else is open, as /proc/self/fd names it.
    """

    control: int
    bells_in: tuple[int, ...]
    bells_out: tuple[int, ...]
    memory: tuple[int, ...]
    other: dict[int, str]


def descriptors() -> Descriptors:
    """Sort the open descriptors by what they are."""
    control = -1
    bells_in: list[int] = []
    bells_out: list[int] = []
    memory: list[int] = []
    other: dict[int, str] = {}
    output = {os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)}
    for fd in range(3, 256):
        try:
            mode, name = os.fstat(fd).st_mode, os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if name in output:
            continue  # its standard error once more, for the stacks of a hung environment
        if stat.S_ISSOCK(mode) and control < 0:
            control = fd
        elif stat.S_ISFIFO(mode):
            writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            (bells_out if writable == os.O_WRONLY else bells_in).append(fd)
        elif name == "anon_inode:[eventfd]":
            # The host sends the bell to wait for first, so its number is the lower one.
            (bells_out if bells_in else bells_in).append(fd)
        elif "memfd:agentenv" in name:
            memory.append(fd)
        else:
            other[fd] = name
    return Descriptors(control, tuple(bells_in), tuple(bells_out), tuple(memory), other)
