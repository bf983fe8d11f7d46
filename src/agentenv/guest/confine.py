"""Turning a freshly cloned process into a cell: its own mounts, its own loopback, no privileges.

Runs in the first process of a new set of namespaces, which holds every capability there and none outside.
What is mounted follows bubblewrap's own defaults: a new procfs, tmpfs with a size, a private devpts. After
``drop_privileges`` nothing here can be undone by the code that follows. It decides no policy; the host sends it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CELL_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_RDONLY = 2, 4, 8, 32, 4096, 1
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
READ_ONLY = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)  # keeps Python's lock, as fork() must


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def clone(flags: int, *, tid_address: int = 0) -> int:
    """Fork with flags such as those for new namespaces; returns 0 in the child, the child's pid in the parent.

    Only for a single-threaded process. Without ``tid_address`` glibc's cached thread id is stale in the child, so the
    child must do little itself and let an ordinary ``os.fork`` carry everything else.

    Args:
        flags: ``CLONE_*`` flags; none makes it ``os.fork``.
        tid_address: Where the kernel is to write the child's thread id, with ``CLONE_CHILD_SETTID``.

    Raises:
        OSError: The kernel refuses (user namespaces disabled, limits).
    """
    if flags == 0:
        return os.fork()
    number = _SYS_CLONE[os.uname().machine]
    ctypes.pythonapi.PyOS_BeforeFork()
    tid = ctypes.c_ulong(tid_address)
    # The last two arguments of clone(2) stand the other way round on aarch64.
    last = (tid, ctypes.c_ulong(0)) if number == 56 else (ctypes.c_ulong(0), tid)
    pid: int = _holding.syscall(number, ctypes.c_ulong(flags | 17), 0, 0, *last)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


def map_ids(uid: int, gid: int) -> None:
    """Map one user and one group of the parent namespace to the same numbers in this one."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2), with an error that names the target."""
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def private_mounts() -> None:
    """Let no mount made from here on be seen elsewhere."""
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def mount_proc() -> None:
    """A procfs that shows only this pid namespace."""
    mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def mount_tmpfs(target: str, size_bytes: int, keep: Sequence[str] = ()) -> None:
    """An empty, size-limited tmpfs over ``target``; paths of ``keep`` below it stay visible through it."""
    inside = [path for path in keep if path.startswith(target + "/")]
    held = [(path, os.open(path, os.O_PATH)) for path in inside]
    mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes},mode=1777,nr_inodes=65536")
    for path, fd in held:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).touch()
        mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND | _MS_REC)
        os.close(fd)


def mount_private_ptys() -> None:
    """A devpts instance of our own: the outer one would let cells open each other's terminals."""
    mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def bind(source: str, target: str) -> None:
    """Show the directory ``source`` at ``target`` as well, without devices or set-uid programs."""
    mount(source, target, None, _MS_BIND)
    mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_NOSUID | _MS_NODEV)


def hide(target: str) -> None:
    """Cover a directory with an empty, unwritable tmpfs."""
    mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RDONLY, "size=4k,mode=755")


def raise_loopback() -> None:
    """Bring up ``lo`` in this network namespace, so that 127.0.0.1 works between the cell's own processes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def drop_privileges() -> None:
    """Give up every capability, for good: bounding set, permitted set, and no new ones through exec."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def hide_memory() -> None:
    """Refuse /proc/PID/{mem,environ,fd} and ptrace of this process, and of its children, to others of its user."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def show_memory() -> None:
    """Undo ``hide_memory`` for this process: what is hidden cannot even open its own files in /proc."""
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent ends; ends at once when it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, where no pid namespace does it."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
