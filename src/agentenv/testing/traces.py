"""What a run has on the machine while it lives, and what of it is left afterwards: nothing, or it is a fault.

Looks at the kernel's own books (/proc, the control groups), not at what agentenv believes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Traces:
    """A reading of this process's footprint.

    Attributes:
        descriptors: Its open descriptors: number -> what it is.
        children: Processes below it.
        cgroups: Control groups of runs of this process.
        mounts: Mounts in its namespace that look like a sandbox's.
        threads: Its threads.
    """

    descriptors: dict[int, str]
    children: frozenset[int]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    threads: int

    def left_since(self, before: Traces) -> list[str]:
        """What is there now and was not before, in sentences."""
        left = [f"process {pid}: {_command(pid)}" for pid in sorted(self.children - before.children)]
        left += [f"control group {path}" for path in sorted(self.cgroups - before.cgroups)]
        left += [f"mount {line}" for line in sorted(self.mounts - before.mounts)]
        if len(self.descriptors) > len(before.descriptors):
            new = [f"{fd} {name}" for fd, name in self.descriptors.items() if before.descriptors.get(fd) != name]
            left.append(f"{len(self.descriptors) - len(before.descriptors)} descriptors more, among {new}")
        if self.threads > before.threads:
            left.append(f"{self.threads - before.threads} threads: {[thread.name for thread in threading.enumerate()]}")
        return left


def take() -> Traces:
    """Read the footprint of this process now."""
    own = re.compile(rf"agentenv\.{os.getpid()}-")
    groups = [str(path) for top in _tops() for path in top.glob("agentenv.*") if own.match(path.name)]
    with open("/proc/self/mountinfo", encoding="utf-8") as stream:
        mounts = [line.strip() for line in stream if "agentenv" in line or "/newroot" in line or "/oldroot" in line]
    return Traces(
        _descriptors(),
        frozenset(descendants(os.getpid())),
        frozenset(groups),
        frozenset(mounts),
        threading.active_count(),
    )


def descendants(pid: int) -> set[int]:
    """Every process below one, zombies included."""
    found: set[int] = set()
    queue = [pid]
    while queue:
        current = queue.pop()
        for task in _listed(f"/proc/{current}/task"):
            try:
                children = Path(f"/proc/{current}/task/{task}/children").read_text().split()
            except OSError:
                continue
            queue += [int(child) for child in children]
            found |= {int(child) for child in children}
    return found


def pid_namespaces(pids: set[int]) -> frozenset[str]:
    """The pid namespaces that processes live in, besides this process's own."""
    own = os.readlink("/proc/self/ns/pid")
    return frozenset(name for pid in pids if (name := _namespace(pid)) and name != own)


def inhabitants(namespaces: frozenset[str], within_s: float = 0.0) -> list[str]:
    """Processes in any of some pid namespaces, wherever they hang in the tree.

    Waits until there are none, but at most ``within_s`` seconds.
    """
    ends = time.monotonic() + within_s
    while True:
        found = [pid for pid in _listed("/proc") if pid.isdigit() and _namespace(int(pid)) in namespaces]
        if not found or time.monotonic() >= ends:
            return [f"process {pid}: {_command(int(pid))}" for pid in found]
        threading.Event().wait(0.01)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _tops() -> list[Path]:
    return [_CGROUPS, *(path for path in _CGROUPS.glob("*") if path.is_dir()), *_CGROUPS.glob("*/*.slice")]


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _descriptors() -> dict[int, str]:
    found = {}
    for name in _listed("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that lists them
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "?"
