"""Attempts on other processes: their memory, variables, signals, interprocess communication."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping

from agentenv.testing.hostile.cage import canaries, descriptors, reached, syscall

_MOST_VISIBLE = 3  # itself, the first process of its sandbox, and a helper of that
_MAP_LIMIT = 256 << 20
_kept: list[object] = []


def processes(hints: Mapping[str, str]) -> list[str]:
    """See processes that are not the sandbox's own."""
    visible = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [f"sees processes {visible}"] if len(visible) > _MOST_VISIBLE else []


def signals(hints: Mapping[str, str]) -> list[str]:
    """Signal processes of the host by their numbers, and the first process of the sandbox with effect."""
    found = [reached(f"kill {pid}", os.kill, int(pid), 0) for pid in hints["pids"].split(":")]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(1, number)
        except OSError:
            continue
    os.kill(1, 0)  # had one of these worked, this process would be gone as well
    return found


def others_memory(hints: Mapping[str, str]) -> list[str]:
    """Read or write the memory, variables, descriptors and files of every visible process."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        for part in ("mem", "environ", "maps", "auxv"):
            path = f"/proc/{pid}/{part}"
            found.append(reached(path, _read_some, path))
        found.append(reached(f"/proc/{pid}/fd", os.listdir, f"/proc/{pid}/fd"))
        for link in ("root", "cwd", "exe"):
            found.append(reached(f"/proc/{pid}/{link}", os.readlink, f"/proc/{pid}/{link}"))
        found.append(reached("ptrace attach", syscall, "ptrace", 16, int(pid), 0, 0))
        found.append(reached("ptrace seize", syscall, "ptrace", 0x4206, int(pid), 0, 0))
        buffer, remote = bytes(64), bytes(64)
        found.append(reached("process_vm_readv", syscall, "process_vm_readv", int(pid), buffer, 1, remote, 1, 0))
        found.append(reached("pidfd_getfd", _take_descriptor, int(pid)))
    return found


def _take_descriptor(pid: int) -> int:
    holder = os.pidfd_open(pid)
    try:
        return syscall("pidfd_getfd", holder, 0, 0)
    finally:
        os.close(holder)


def _read_some(path: str) -> str:
    with open(path, "rb", buffering=0) as stream:
        return f"{len(stream.read(64))} bytes readable"


def own_memory(hints: Mapping[str, str]) -> list[str]:
    """Search the memory inherited from the common ancestor for a neighbour's variables."""
    own, found = os.environ["SECRET"], set()
    with open("/proc/self/maps", encoding="utf-8") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps.read().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if "w" not in rights or end - start > _MAP_LIMIT:
                continue
            try:
                memory.seek(start)
                found |= canaries(memory.read(end - start))
            except OSError:
                continue
    if own not in found:
        return ["the search is blind: it did not even find its own secret"]
    return [f"found {secret}" for secret in found - {own}]


def variables(hints: Mapping[str, str]) -> list[str]:
    """Find variables of the host's shell in this process's."""
    with open("/proc/self/environ", "rb") as stream:
        seen = stream.read() + repr(dict(os.environ)).encode()
    return [f"sees {name}" for name in hints["variables"].split(":") if name and name.encode() in seen]


def inherited_descriptors(hints: Mapping[str, str]) -> list[str]:
    """Find descriptors that are not the environment's own channel."""
    held = descriptors()
    found = [f"descriptor {fd} is {name}" for fd, name in held.other.items() if not _is_own(name)]
    if len(held.bells_in) > 1 or len(held.bells_out) > 1 or len(held.memory) > 1:
        found.append(f"more than one channel: {held}")
    return found


def _is_own(name: str) -> bool:
    return name.startswith(("/tmp/", "/dev/shm/", "/out/", "/proc/")) or name == "/dev/null" or name in _planted


_planted: set[str] = set()


def interprocess(hints: Mapping[str, str]) -> list[str]:
    """Find a neighbour's or the host's shared memory segments, message queues and sockets without a path."""
    own, found = os.environ["AGENTENV_ID"], []
    for kind in ("shm", "msg", "sem"):
        with open(f"/proc/sysvipc/{kind}", encoding="utf-8") as stream:
            rows = stream.read().splitlines()[1:]
        if len(rows) > (1 if kind == "shm" else 0):
            found.append(f"sees {len(rows)} System V {kind} objects")
    for name in [*hints["neighbours"].split(":"), hints["abstract"]]:
        if name != own:
            found.append(reached(f"abstract socket {name}", _connect, f"\0{name}"))
    found.append(reached(hints["socket"], lambda: _connect(hints["socket"])))
    with open("/proc/net/unix", encoding="utf-8") as stream:
        text = stream.read()
    return [
        *found,
        *[
            f"sees the socket of {name}"
            for name in hints["neighbours"].split(":")
            if name != own and f"@{name}\n" in text
        ],
    ]


def _connect(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        return "connected"


def plant() -> None:
    """Make objects that neighbours must not see: a System V segment and an abstract socket."""
    if not _kept:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmget(0x41454E56, 4096, 0o1666)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{os.environ['AGENTENV_ID']}")
        listener.listen()
        _kept.append(listener)
        _planted.add(os.readlink(f"/proc/self/fd/{listener.fileno()}"))


ATTEMPTS = {
    attempt.__name__: attempt
    for attempt in (
        processes, signals, others_memory, own_memory, variables, inherited_descriptors, interprocess,
    )
}  # fmt: skip
