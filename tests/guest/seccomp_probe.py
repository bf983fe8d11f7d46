"""Makes system calls by number in a child each, with or without the filter; prints what came back as JSON.

A script of its own so that the filter never covers the test runner. Arguments are chosen so that even a call that
should have been refused does no harm: bad pointers, bad descriptors, wrong magic numbers, names that do not exist.

Usage: seccomp_probe.py filtered|bare|network FILE-TO-TOUCH
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import mmap
import os
import platform
import sys
from collections.abc import Callable

from agentenv.guest import seccomp
from agentenv.guest._syscalls import NUMBERS

BAD = 1  # no page is mapped there: EFAULT
HIGH = 1 << 32  # a bit above the half the kernel reads
AT_FDCWD = 2**64 - 100
_TABLE = NUMBERS[platform.machine()]
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.mmap.restype = ctypes.c_void_p
_KEEP: list[object] = []


def raw(name: str | int, *arguments: int) -> Callable[[], int]:
    number = _TABLE[name] if isinstance(name, str) else name
    return lambda: _LIBC.syscall(ctypes.c_ulong(number), *(ctypes.c_ulong(value % 2**64) for value in arguments))


def text(value: str | bytes) -> int:
    buffer = ctypes.create_string_buffer(value.encode() if isinstance(value, str) else value)
    _KEEP.append(buffer)
    return ctypes.addressof(buffer)


def zeros(size: int = 256) -> int:
    return text(bytes(size))


def int80() -> int:
    """getpid through the 32-bit door, which has call numbers of its own."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())


def cases(path: str) -> dict[str, Callable[[], int]]:
    here, gone, me = text(path), text("/nonexistent/x"), os.getpid()
    names = (text(f"{path}.new{n}") for n in itertools.count())  # one each, so that EEXIST never hides an answer
    made: dict[str, Callable[[], int]] = {
        "mount": raw("mount", gone, gone, BAD, 0, 0),
        "umount2": raw("umount2", gone, 0),
        "pivot_root": raw("pivot_root", gone, gone),
        "chroot": raw("chroot", text("/")),
        "move_mount": raw("move_mount", -1, gone, -1, gone, 0),
        "open_tree": raw("open_tree", AT_FDCWD, text("/"), 0),
        "open_tree_attr": raw("open_tree_attr", AT_FDCWD, gone, 0, 0, 0),
        "fsopen": raw("fsopen", text("tmpfs"), 0),
        "fsconfig": raw("fsconfig", -1, 0, 0, 0, 0),
        "fsmount": raw("fsmount", -1, 0, 0),
        "fspick": raw("fspick", AT_FDCWD, gone, 0),
        "mount_setattr": raw("mount_setattr", -1, gone, 0, BAD, 32),
        "open_by_handle_at": raw("open_by_handle_at", -1, BAD, 0),
        "name_to_handle_at": raw("name_to_handle_at", AT_FDCWD, gone, BAD, BAD, 0),
        "fanotify_init": raw("fanotify_init", -1, 0),
        "quotactl": raw("quotactl", -1, gone, 0, 0),
        "quotactl_fd": raw("quotactl_fd", -1, 0, 0, 0),
        "acct": raw("acct", gone),
        "swapon": raw("swapon", gone, 0),
        "swapoff": raw("swapoff", gone),
        "unshare": raw("unshare", 0),
        "unshare user": raw("unshare", 0x10000000),
        "setns": raw("setns", -1, 0),
        "ptrace": raw("ptrace", 12, -1, 0, 0),
        "process_vm_readv": raw("process_vm_readv", me, 0, 0, 0, 0, 0),
        "process_vm_writev": raw("process_vm_writev", me, 0, 0, 0, 0, 0),
        "process_madvise": raw("process_madvise", -1, 0, 0, 0, 0),
        "kcmp": raw("kcmp", me, me, 1, 0, 0),
        "pidfd_getfd": raw("pidfd_getfd", -1, 0, 0),
        "move_pages": raw("move_pages", 0, 0, 0, 0, 0, 0),
        "migrate_pages": raw("migrate_pages", 0, 0, 0, 0),
        "bpf": raw("bpf", -1, BAD, 0),
        "perf_event_open": raw("perf_event_open", BAD, 0, -1, -1, 0),
        "userfaultfd": raw("userfaultfd", -1),
        "keyctl": raw("keyctl", 0, -3, 0),
        "add_key": raw("add_key", BAD, BAD, 0, 0, 0),
        "request_key": raw("request_key", BAD, BAD, 0, 0),
        "memfd_secret": raw("memfd_secret", -1),
        "lookup_dcookie": raw("lookup_dcookie", 0, BAD, 0),
        "nfsservctl": raw("nfsservctl", 0, 0, 0),
        "kexec_load": raw("kexec_load", 0, -1, BAD, -1),
        "kexec_file_load": raw("kexec_file_load", -1, -1, 0, 0, -1),
        "init_module": raw("init_module", BAD, 0, BAD),
        "finit_module": raw("finit_module", -1, BAD, 0),
        "delete_module": raw("delete_module", text("nonexistent"), 0x800),
        "reboot": raw("reboot", 0, 0, 0, 0),
        "syslog": raw("syslog", 10, 0, 0),
        "settimeofday": raw("settimeofday", BAD, 0),
        "clock_settime": raw("clock_settime", 1, zeros()),
        "clock_adjtime": raw("clock_adjtime", 0, zeros()),
        "adjtimex": raw("adjtimex", zeros()),
        "vhangup": lambda: (os.setsid(), raw("vhangup")())[1],
        "sethostname": raw("sethostname", BAD, -1),
        "setdomainname": raw("setdomainname", BAD, -1),
        "clone3": raw("clone3", BAD, 88),
        "openat2": raw("openat2", AT_FDCWD, here, zeros(), 24),
        "io_uring_setup": raw("io_uring_setup", 0, BAD),
        "io_uring_enter": raw("io_uring_enter", -1, 0, 0, 0, 0, 0),
        "io_uring_register": raw("io_uring_register", -1, 0, 0, 0),
        "clone user": raw("clone", 0x10000000, 0, 0, 0, 0),
        "clone net high": raw("clone", 0x40000000 + HIGH, 0, 0, 0, 0),
        "fchmod setuid": raw("fchmod", os.open(path, os.O_RDONLY), 0o4755),
        "fchmodat setgid": raw("fchmodat", AT_FDCWD, here, 0o2755),
        "fchmodat high": raw("fchmodat", AT_FDCWD, here, 0o4755 + HIGH),
        "fchmodat2 setuid": raw("fchmodat2", AT_FDCWD, here, 0o4755, 0),
        "mkdirat setgid": raw("mkdirat", AT_FDCWD, next(names), 0o2755),
        "openat setuid": raw("openat", AT_FDCWD, next(names), os.O_CREAT | os.O_WRONLY, 0o4755),
        "openat tmpfile setuid": raw("openat", AT_FDCWD, text(os.path.dirname(path)), os.O_TMPFILE | 1, 0o4755),
        "mknodat setuid": raw("mknodat", AT_FDCWD, next(names), 0o104755, 0),
        "mknodat character": raw("mknodat", AT_FDCWD, next(names), 0o020666, 0x103),
        "mknodat block": raw("mknodat", AT_FDCWD, next(names), 0o060666, 0x103),
        "personality no_randomize": raw("personality", 0x40000),
        "personality high": raw("personality", 0x40000 + HIGH),
        "ioctl TIOCSTI": raw("ioctl", -1, 0x5412, BAD),
        "ioctl TIOCSTI high": raw("ioctl", -1, 0x5412 + HIGH, BAD),
        "ioctl TIOCLINUX": raw("ioctl", -1, 0x541C, BAD),
        "socket packet": raw("socket", 17, 3, 0),
        "socket inet packet": raw("socket", 2, 10, 0),
        "socket vsock": raw("socket", 40, 1, 0),
        "socket alg": raw("socket", 38, 5, 0),
        "socket alg high": raw("socket", 38 + HIGH, 5, 0),
        "socket bluetooth": raw("socket", 31, 3, 0),
        "socket netlink audit": raw("socket", 16, 3, 9),
        "socket raw": raw("socket", 2, 3, 1),
        "socketpair tipc": raw("socketpair", 30, 1, 0, BAD),
        # These go on working.
        "clone fork": raw("clone", 17, 0, 0, 0, 0),
        "fchmodat plain": raw("fchmodat", AT_FDCWD, here, 0o1755),
        "openat ignored mode": raw("openat", AT_FDCWD, here, os.O_RDONLY, 0o7777),
        "openat create": raw("openat", AT_FDCWD, here, os.O_CREAT | os.O_WRONLY, 0o644),
        "mknodat fifo": raw("mknodat", AT_FDCWD, text(path + ".fifo"), 0o010644, 0),
        "personality query": raw("personality", 0xFFFFFFFF),
        "personality linux": raw("personality", 0),
        "ioctl other": raw("ioctl", -1, 0x5413, BAD),
        "socket unix": raw("socket", 1, 1, 0),
        "socket inet": raw("socket", 2, 1 | 0o2000000, 6),
        "socket inet6": raw("socket", 10, 2, 17),
        "socket netlink route": raw("socket", 16, 3, 0),
        "memfd_create": lambda: os.memfd_create("x"),
        "future call": raw(0x3FF),
    }
    if platform.machine() == "x86_64":
        made |= {
            "iopl": raw("iopl", 4),
            "ioperm": raw("ioperm", -1, 1, 1),
            "modify_ldt": raw("modify_ldt", 0, zeros(), 0),
            "chmod setuid": raw("chmod", here, 0o4755),
            "mkdir setuid": raw("mkdir", next(names), 0o4755),
            "mknod character": raw("mknod", next(names), 0o020666, 0x103),
            "mknod setuid": raw("mknod", next(names), 0o104755, 0),
            "creat setuid": raw("creat", next(names), 0o4755),
            "open setuid": raw("open", next(names), os.O_CREAT | os.O_WRONLY, 0o4755),
            "x32 getpid": raw(0x40000000 + 39),
            "minus one": raw(-1),
            "int80": int80,
        }
    return made


def outcome(call: Callable[[], int]) -> str:
    """Runs one call in a child: "ok", an errno's name, or the signal that killed it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result = call()
            os.write(writing, b"%d\n" % (ctypes.get_errno() if result < 0 else 0))
        finally:
            os._exit(0)
    os.close(writing)
    status = os.waitpid(pid, 0)[1]
    said = os.read(reading, 16)
    os.close(reading)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    number = int(said.split(b"\n")[0])  # a clone that worked answers twice
    return "ok" if number == 0 else errno.errorcode[number]


def main() -> None:
    mode, path = sys.argv[1:]
    made = cases(path)
    if mode != "bare":
        seccomp.install(allow_network=mode == "network")
    print(json.dumps({name: outcome(call) for name, call in made.items()}))


if __name__ == "__main__":
    main()
