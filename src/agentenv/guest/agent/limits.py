"""A control group inside the machine for what runs there, so that it runs into its limits before the machine does.

Without one, a machine that is short of memory reads its programs from disk again and again instead of ending anybody.
Where the kernel has no control groups of version 2, the machine's own size is the only limit.
"""

from __future__ import annotations

import contextlib
import os

from agentenv.guest import confine

_TOP = "/sys/fs/cgroup"
_GROUP = f"{_TOP}/cell"
_RESERVE_BYTES = 40 << 20
"""For the kernel, the agent and the zygote's own pages."""


def put_under(pid: int, pids: int) -> bool:
    """Limit a process and all it will start; whether that was possible.

    Args:
        pid: The process.
        pids: Most processes and threads.
    """
    try:
        if not os.path.exists(f"{_TOP}/cgroup.controllers"):
            confine.mount("cgroup2", _TOP, "cgroup2", 0)
        _write(f"{_TOP}/cgroup.subtree_control", "+memory +pids")
        os.makedirs(_GROUP, exist_ok=True)
        _write(f"{_GROUP}/memory.max", str(_available_bytes() - _RESERVE_BYTES))
        _write(f"{_GROUP}/memory.swap.max", "0")
        _write(f"{_GROUP}/pids.max", str(pids))
        _write(f"{_GROUP}/cgroup.procs", str(pid))
    except OSError:
        return False
    return True


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, in the group or in all of the machine."""
    for path in (f"{_GROUP}/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as stream:
            return next((int(line.split()[1]) for line in stream if line.startswith("oom_kill ")), 0)
    return 0


def child_of(pid: int) -> int | None:
    """The last child of a process, as this pid namespace numbers it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
            children = [int(word) for word in stream.read().split()]
    except OSError:
        return None
    return max(children, default=None)


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as stream:
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable"))


def _write(path: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "w", encoding="ascii") as stream:
        stream.write(text)
