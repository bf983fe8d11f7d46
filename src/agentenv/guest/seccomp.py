"""The system-call filter of an environment: a deny-list, because environments are arbitrary Python programs.

Namespaces and dropped capabilities are the wall; this takes away the ways through it that need no capability in the
host's eyes, and most of the kernel's rarely tested code. An allow-list would break the next wheel that calls something
new.
It refuses rather than kills: a program that probes and falls back must go on. Only a call by another machine's
convention (such as 32-bit calls on x86_64, which number differently) kills the process.

It does not try to judge what lies behind a pointer, which seccomp cannot see: where that matters the call is answered
with ENOSYS (clone3, openat2), and C libraries fall back to the form whose arguments can be seen.

Format and constants: seccomp(2), linux/seccomp.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
import sys

from agentenv.guest._blocks import BLOCKS, VERDICTS
from agentenv.guest._bpf import JUMP, JUMP_EQ, JUMP_GE, LOAD, RETURN, Assembler
from agentenv.guest._syscalls import NUMBERS

_KILL_PROCESS = 0x80000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # __X32_SYSCALL_BIT: the same machine, other numbers; -1 has it as well

_NUMBER_AT = 0  # offsets in struct seccomp_data
_MACHINE_AT = 4

# Answered with EPERM: other views of the file system; other namespaces and processes; kernel surface with a history;
# the machine itself.
_REFUSED = """
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
    open_by_handle_at name_to_handle_at fanotify_init quotactl quotactl_fd acct swapon swapoff

    unshare setns ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd move_pages migrate_pages

    bpf perf_event_open userfaultfd keyctl add_key request_key memfd_secret lookup_dcookie nfsservctl modify_ldt

    kexec_load kexec_file_load init_module finit_module delete_module reboot syslog settimeofday clock_settime
    clock_adjtime adjtimex iopl ioperm vhangup sethostname setdomainname
"""

# Answered with ENOSYS: their arguments or their work cannot be seen, and callers know how to do without.
_MISSING = "clone3 openat2 io_uring_setup io_uring_enter io_uring_register"

# Calls judged by their arguments: the block that judges, and the positions of the arguments it reads.
_JUDGED: dict[str, tuple[str, tuple[int, ...]]] = {
    "clone": ("clone", (0,)),
    "chmod": ("mode", (1,)),
    "fchmod": ("mode", (1,)),
    "fchmodat": ("mode", (2,)),
    "fchmodat2": ("mode", (2,)),
    "creat": ("mode", (1,)),
    "mkdir": ("mode", (1,)),
    "mkdirat": ("mode", (2,)),
    "open": ("open", (1, 2)),
    "openat": ("open", (2, 3)),
    "mknod": ("node", (1,)),
    "mknodat": ("node", (2,)),
    "personality": ("personality", (0,)),
    "ioctl": ("ioctl", (1,)),
    "socket": ("socket", (0, 1, 2)),
    "socketpair": ("socketpair", (0,)),
}

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_FLAG_TSYNC = 1  # every thread of the process, not only the caller's
_FLAG_SPEC_ALLOW = 4  # leave speculation alone: without it each switch to this process costs a mitigation


@functools.cache
def program(arch: str, *, allow_network: bool = False) -> bytes:
    """Builds the filter for one machine.

    The number of the call is found by binary search, so that a permitted call costs about eight comparisons. All
    decisions on plain numbers use only operations the kernel can evaluate beforehand (its per-call cache, since 5.11).

    Args:
        arch: "x86_64" or "aarch64", as `platform.machine()` spells it.
        allow_network: Permit raw sockets. Without it IPv4 and IPv6 sockets are streams and datagrams only, which is
            all that loopback use needs. Whether there is a network at all is the network namespace's affair.

    Returns:
        An array of `struct sock_filter`, eight bytes each.

    Raises:
        ValueError: No filter is known for this machine.
    """
    if arch not in NUMBERS:
        raise ValueError(f"no system-call filter for machine {arch!r}; expected one of {', '.join(sorted(NUMBERS))}")
    asm = Assembler()
    asm.emit(LOAD, _MACHINE_AT)
    asm.emit(JUMP_EQ, _AUDIT_ARCH[arch], if_true="our machine")
    asm.emit(RETURN, _KILL_PROCESS)
    asm.mark("our machine")
    asm.emit(LOAD, _NUMBER_AT)
    if arch == "x86_64":
        asm.emit(JUMP_GE, _X32_BIT, if_false="native call")
        asm.emit(RETURN, VERDICTS["ENOSYS"])
        asm.mark("native call")

    verdicts = dict.fromkeys(_REFUSED.split(), "EPERM") | dict.fromkeys(_MISSING.split(), "ENOSYS")
    verdicts |= {name: _label(block, arguments) for name, (block, arguments) in _JUDGED.items()}
    numbers = NUMBERS[arch]
    _search(asm, _ranges({numbers[name]: verdict for name, verdict in verdicts.items() if name in numbers}))
    for block, arguments in sorted({judged for name, judged in _JUDGED.items() if name in numbers}):
        asm.mark(_label(block, arguments))
        BLOCKS[block](asm, arguments, allow_network)
    for label, value in VERDICTS.items():
        asm.mark(label)
        asm.emit(RETURN, value)
    return asm.assemble()


def install(*, allow_network: bool = False) -> None:
    """Puts this process, all its threads and everything it starts under the filter, for good.

    Sets no_new_privs first, which an unprivileged process must and a privileged one should.

    Args:
        allow_network: As for `program`.

    Raises:
        OSError: The machine or the kernel has no such filter, or a thread could not be brought under it. Nothing
            may run on the assumption that it is filtered then.
    """
    machine = platform.machine() if sys.maxsize > 2**32 else f"32-bit {platform.machine()}"
    try:
        code = program(machine, allow_network=allow_network)
    except ValueError as error:
        raise OSError(errno.ENOTSUP, str(error)) from None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise _failure("prctl(PR_SET_NO_NEW_PRIVS)", ctypes.get_errno())
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: u16 length in instructions, padding, pointer
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    for flags in (_FLAG_TSYNC | _FLAG_SPEC_ALLOW, _FLAG_TSYNC):  # SPEC_ALLOW came with Linux 4.17
        call = (NUMBERS[machine]["seccomp"], _SECCOMP_SET_MODE_FILTER, flags)
        result = libc.syscall(*map(ctypes.c_ulong, call), ctypes.byref(header))
        if result == 0:
            return
        if result > 0:
            raise OSError(errno.EBUSY, f"thread {result} runs under another system-call filter; install before it does")
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise _failure("seccomp(SECCOMP_SET_MODE_FILTER)", ctypes.get_errno())


def _failure(call: str, number: int) -> OSError:
    return OSError(
        number,
        f"{call} failed: {os.strerror(number)}; expected Linux 3.17 or later with CONFIG_SECCOMP_FILTER, "
        "and no outer sandbox that forbids it",
    )


def _label(block: str, arguments: tuple[int, ...]) -> str:
    return f"{block} {arguments}"


def _ranges(verdicts: dict[int, str]) -> list[tuple[int, str]]:
    """Turns number -> verdict into (first number, verdict) ranges that cover everything from zero up."""
    ranges = [(0, "ALLOW")]
    for number in sorted(verdicts):
        for start, verdict in ((number, verdicts[number]), (number + 1, verdicts.get(number + 1, "ALLOW"))):
            if ranges[-1][0] == start:
                ranges[-1] = (start, verdict)
            elif ranges[-1][1] != verdict:
                ranges.append((start, verdict))
    return ranges


def _search(asm: Assembler, ranges: list[tuple[int, str]]) -> None:
    """Emits a binary search over ranges; each leaf decides or goes to its block."""
    if len(ranges) == 1:
        verdict = ranges[0][1]
        if verdict in VERDICTS:
            asm.emit(RETURN, VERDICTS[verdict])
        else:
            asm.emit(JUMP, if_true=verdict)
        return
    middle = len(ranges) // 2
    upper = f"from {ranges[middle][0]}"
    asm.emit(JUMP_GE, ranges[middle][0], if_true=upper)
    _search(asm, ranges[:middle])
    asm.mark(upper)
    _search(asm, ranges[middle:])
