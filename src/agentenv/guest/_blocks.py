"""Blocks of the system-call filter that judge a call by its arguments.

Each block reads one to three arguments and ends in one of the `VERDICTS`; which calls come here, and with which
positions, is the table in `agentenv.guest.seccomp`. A block judges values only: what lies behind a pointer cannot be
seen.

Constants: linux/sched.h, linux/stat.h, asm-generic/fcntl.h, linux/personality.h, asm-generic/ioctls.h, linux/net.h.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from agentenv.guest._bpf import AND, JUMP_EQ, JUMP_SET, LOAD, RETURN, Assembler

_ERRNO = 0x00050000  # SECCOMP_RET_ERRNO; the number goes into the low half

VERDICTS = {
    "ALLOW": 0x7FFF0000,
    "EPERM": _ERRNO | errno.EPERM,
    "ENOSYS": _ERRNO | errno.ENOSYS,
    "EAFNOSUPPORT": _ERRNO | errno.EAFNOSUPPORT,
}

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME (0x80) lies among clone()'s signal
# bits and works with unshare and clone3 only.
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_SETID_BITS = 0o6000
_FORMAT_BITS, _CHARACTER_DEVICE, _BLOCK_DEVICE = 0o170000, 0o020000, 0o060000
_CREATES_FILE = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE: without one of them open() ignores its mode
_PERSONALITIES = (0x0, 0x20000, 0xFFFFFFFF)  # PER_LINUX, UNAME26, and the query; above all not ADDR_NO_RANDOMIZE
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the caller's terminal
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_PACKET, _SOCK_TYPE_BITS = 1, 2, 10, 0xF


def _load(asm: Assembler, argument: int) -> None:
    # The low half only: all these arguments are 32-bit or shorter in the kernel, which drops the upper half. Comparing
    # it too would let a caller pass by setting a bit the kernel then ignores. Both machines are little-endian.
    asm.emit(LOAD, 16 + 8 * argument)


def _judge_clone(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    asm.emit(JUMP_SET, _CLONE_NEW, if_true="EPERM", if_false="ALLOW")


def _judge_mode(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    asm.emit(JUMP_SET, _SETID_BITS, if_true="EPERM", if_false="ALLOW")


def _judge_open(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    asm.emit(JUMP_SET, _CREATES_FILE, if_false="ALLOW")
    _judge_mode(asm, arguments[1:], allow_network)


def _judge_node(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    asm.emit(JUMP_SET, _SETID_BITS, if_true="EPERM")
    asm.emit(AND, _FORMAT_BITS)
    asm.emit(JUMP_EQ, _CHARACTER_DEVICE, if_true="EPERM")
    asm.emit(JUMP_EQ, _BLOCK_DEVICE, if_true="EPERM", if_false="ALLOW")


def _judge_personality(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    for value in _PERSONALITIES:
        asm.emit(JUMP_EQ, value, if_true="ALLOW")
    asm.emit(RETURN, VERDICTS["EPERM"])


def _judge_ioctl(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    for request in _TERMINAL_INPUT:
        asm.emit(JUMP_EQ, request, if_true="EPERM")
    asm.emit(RETURN, VERDICTS["ALLOW"])


def _judge_socket(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    family, kind, protocol = arguments
    _load(asm, family)
    asm.emit(JUMP_EQ, _AF_UNIX, if_true="ALLOW")
    asm.emit(JUMP_EQ, _AF_INET, if_true="socket: internet")
    asm.emit(JUMP_EQ, _AF_INET6, if_true="socket: internet")
    asm.emit(JUMP_EQ, _AF_NETLINK, if_false="EAFNOSUPPORT")
    _load(asm, protocol)
    asm.emit(JUMP_EQ, 0, if_true="ALLOW", if_false="EAFNOSUPPORT")  # NETLINK_ROUTE: getaddrinfo and if_nameindex
    asm.mark("socket: internet")
    _load(asm, kind)
    asm.emit(AND, _SOCK_TYPE_BITS)
    # For (AF_INET, SOCK_PACKET) the kernel makes an AF_PACKET socket, an old way around the check of the family.
    asm.emit(JUMP_EQ, _SOCK_PACKET, if_true="EAFNOSUPPORT")
    if not allow_network:
        asm.emit(JUMP_EQ, _SOCK_STREAM, if_true="ALLOW")
        asm.emit(JUMP_EQ, _SOCK_DGRAM, if_false="EPERM")
    asm.emit(RETURN, VERDICTS["ALLOW"])


def _judge_socketpair(asm: Assembler, arguments: tuple[int, ...], allow_network: bool) -> None:
    _load(asm, arguments[0])
    asm.emit(JUMP_EQ, _AF_UNIX, if_true="ALLOW", if_false="EAFNOSUPPORT")


BLOCKS: dict[str, Callable[[Assembler, tuple[int, ...], bool], None]] = {
    "clone": _judge_clone,
    "mode": _judge_mode,
    "open": _judge_open,
    "node": _judge_node,
    "personality": _judge_personality,
    "ioctl": _judge_ioctl,
    "socket": _judge_socket,
    "socketpair": _judge_socketpair,
}
