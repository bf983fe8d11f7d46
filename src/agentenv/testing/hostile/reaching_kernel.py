"""Attempts to use parts of the kernel that would undo the sandbox, or that have undone others."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable, Mapping

from agentenv.guest._syscalls import NUMBERS
from agentenv.testing.hostile.cage import reached, syscall

_NAMESPACES = {
    "mount": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000, "time": 0x80,
}  # fmt: skip
_MS_REMOUNT_BIND = 32 | 4096


def _table() -> dict[str, Callable[[], int]]:
    """Calls with arguments that would do something; each must be refused."""
    path, pad = b"/tmp\0", bytes(256)
    return {
        "mount tmpfs": lambda: syscall("mount", b"none\0", path, b"tmpfs\0", 0, 0),
        "mount proc": lambda: syscall("mount", b"proc\0", path, b"proc\0", 0, 0),
        "remount root writable": lambda: syscall("mount", b"none\0", b"/\0", 0, _MS_REMOUNT_BIND, 0),
        "bind mount": lambda: syscall("mount", b"/\0", path, 0, 4096, 0),
        "umount proc": lambda: syscall("umount2", b"/proc\0", 2),
        "open_tree": lambda: syscall("open_tree", -100, b"/\0", 1),
        "fsopen": lambda: syscall("fsopen", b"tmpfs\0", 0),
        "pivot_root": lambda: syscall("pivot_root", path, path),
        "chroot": lambda: syscall("chroot", path),
        "bpf": lambda: syscall("bpf", 0, struct.pack("4I", 1, 4, 4, 1) + pad, 128),
        "perf_event_open": lambda: syscall("perf_event_open", pad, 0, -1, -1, 0),
        "userfaultfd": lambda: syscall("userfaultfd", 0),
        "io_uring_setup": lambda: syscall("io_uring_setup", 1, pad),
        "keyctl session": lambda: syscall("keyctl", 1, 0, 0, 0, 0),
        "add_key": lambda: syscall("add_key", b"user\0", b"x\0", b"y\0", 1, -3),
        "memfd_secret": lambda: syscall("memfd_secret", 0),
        "kcmp": lambda: syscall("kcmp", 1, os.getpid(), 0, 0, 0),
        "open_by_handle_at": lambda: syscall("open_by_handle_at", -100, pad, 0),
        "fanotify_init": lambda: syscall("fanotify_init", 0, 0),
        "init_module": lambda: syscall("init_module", pad, 256, b"\0"),
        "kexec_load": lambda: syscall("kexec_load", 0, 0, 0, 0),
        "reboot": lambda: syscall("reboot", 0xFEE1DEAD, 672274793, 0, 0),
        "swapon": lambda: syscall("swapon", path, 0),
        "sethostname": lambda: syscall("sethostname", b"x", 1),
        "settimeofday": lambda: syscall("settimeofday", pad, 0),
        "syslog": lambda: syscall("syslog", 3, pad, 64),
        "acct": lambda: syscall("acct", path),
        "personality without address randomisation": lambda: syscall("personality", 0x0040000),
    }


def calls(hints: Mapping[str, str]) -> list[str]:
    """Make each call of the table."""
    known = NUMBERS[platform.machine()]
    assert {"mount", "bpf", "io_uring_setup"} <= set(known)
    return [reached(name, call) for name, call in _table().items()]


def namespaces(hints: Mapping[str, str]) -> list[str]:
    """Make new namespaces, and enter those of the first process."""
    found = []
    for name, flag in _NAMESPACES.items():
        found.append(reached(f"unshare {name}", syscall, "unshare", flag))
        if name != "time":
            found.append(reached(f"clone {name}", _clone, flag))
    found.append(reached("clone3", lambda: syscall("clone3", bytes(88), 88)))
    for name in ("mnt", "net", "pid", "user"):
        found.append(reached(f"enter {name}", _enter, f"/proc/1/ns/{name}"))
    return found


def _clone(flag: int) -> int:
    pid = syscall("clone", flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid


def _enter(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return syscall("setns", fd, 0)
    finally:
        os.close(fd)


def identity(hints: Mapping[str, str]) -> list[str]:
    """Become another user or group."""
    uid = os.getuid()
    found = [reached("setuid", lambda: os.setuid(0 if uid else 1)), reached("setgid", lambda: os.setgid(1))]
    found.append(reached("setgroups", lambda: os.setgroups([0])))
    found.append(reached("setresuid", lambda: os.setresuid(1, 1, 1)))
    if uid == 0:
        found.append("runs as user 0")
    return found


def limits(hints: Mapping[str, str]) -> list[str]:
    """Raise its own limits, and change control groups."""
    import resource

    found = []
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        _, hard = resource.getrlimit(which)
        found.append(reached(f"rlimit {which}", resource.setrlimit, which, (hard + 1, hard + 1)))
    for root in ("/sys/fs/cgroup", "/proc/1/root/sys/fs/cgroup", "/cgroup"):
        found.append(reached(root, os.listdir, root))
    for name in ("oom_score_adj", "oom_adj"):
        found.append(reached(name, _write, f"/proc/1/{name}", "-1000"))
    found.append(reached("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20)))
    return found


def _write(path: str, text: str) -> int:
    with open(path, "w", encoding="ascii") as stream:
        return stream.write(text)


ATTEMPTS = {attempt.__name__: attempt for attempt in (calls, namespaces, identity, limits)}
